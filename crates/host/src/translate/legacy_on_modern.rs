//! Translation for a legacy client on a modern server. `initialize` is answered from `server/discover`, each request
//! gets the envelope that follows from the client's `initialize`, and an `input_required` result becomes requests to
//! the client, whose answers go into a repetition of the request.

use super::log_level::LogLevel;
use super::{InputRequest, SERVER_INFO, TASKS_EXTENSION, server_has};
use serde_json::json;
use toolbus_mcp::{
    LATEST_LEGACY, LEGACY_VERSIONS, MODERN_VERSION, Members, MembersError, Outcome, Raw, empty_object, meta, raw,
};

/// The result of `initialize`, from the server's result of `server/discover`.
pub fn initialize_result(discover: &Raw, initialize: &Raw, server_name: &str) -> Result<Raw, MembersError> {
    let mut from = Members::of(Some(discover))?.clone();
    let requested = Members::of(Some(initialize))?.text("protocolVersion").unwrap_or_default();
    let version = if LEGACY_VERSIONS.contains(&requested.as_str()) { requested } else { LATEST_LEGACY.to_owned() };
    let mut capabilities = Members::of(from.get("capabilities"))?.clone();
    let mut extensions = Members::of(capabilities.get("extensions")).unwrap_or_default().clone();
    if extensions.remove(TASKS_EXTENSION).is_some() {
        match extensions.is_empty() {
            true => drop(capabilities.remove("extensions")),
            false => capabilities.set("extensions", extensions.into_raw()),
        }
    }
    let capabilities = capabilities.into_raw();
    let mut result = Members::default();
    result.set("protocolVersion", raw(&version));
    result.set("capabilities", capabilities);
    let own = Members::of(from.get(meta::META))?;
    let info = own.get(SERVER_INFO).map(ToOwned::to_owned);
    let nameless = || raw(&json!({"name": server_name, "version": "unknown"}));
    result.set("serverInfo", info.unwrap_or_else(nameless));
    if let Some(instructions) = from.remove("instructions") {
        result.set("instructions", instructions);
    }
    Ok(result.into_raw())
}

/// Methods that a modern server lacks and that can't be emulated.
pub fn is_unsupported(method: &str) -> bool {
    method.starts_with("tasks/") || method == "server/discover" || method == super::listen::LISTEN
}

/// What a legacy client says about itself in `initialize`, and each modern request repeats.
#[derive(Debug, Clone)]
pub struct ClientIdentity {
    pub capabilities: Raw,
    client_info: Option<Raw>,
}

impl ClientIdentity {
    pub fn of_initialize(initialize: &Raw) -> Result<Self, MembersError> {
        let mut members = Members::of(Some(initialize))?.clone();
        let capabilities = members.remove("capabilities").unwrap_or_else(empty_object);
        Ok(Self { capabilities, client_info: members.remove("clientInfo") })
    }

    /// The host itself, which offers no capabilities to servers.
    pub fn of_host() -> Self {
        let info = json!({"name": "toolbus", "version": env!("CARGO_PKG_VERSION")});
        Self { capabilities: empty_object(), client_info: Some(raw(&info)) }
    }

    /// Adds the envelope to the params; other members of `_meta` are kept.
    pub fn add_envelope(&self, params: Option<&Raw>, level: Option<LogLevel>) -> Result<Raw, MembersError> {
        meta::edit(params, |own| {
            for (name, value) in meta::modern(MODERN_VERSION, self.capabilities.clone(), self.client_info.clone()) {
                own.set(name, value);
            }
            if let Some(level) = level {
                own.set(meta::LOG_LEVEL, raw(level.as_str()));
            }
        })
    }
}

/// The level for a legacy client that never set one: what servers commonly send.
pub fn default_level(discover: &Raw) -> Option<LogLevel> {
    server_has(discover, "logging").then_some(LogLevel::Info)
}

/// The kinds of modern results.
#[derive(Debug)]
pub enum ModernResult {
    Complete(Raw),
    /// The server needs answers of the client first. The state is returned to it unchanged.
    InputRequired {
        requests: Vec<InputRequest>,
        state: Option<Raw>,
    },
}

pub fn result(result: &Raw) -> Result<ModernResult, MembersError> {
    let mut members = Members::of(Some(result))?.clone();
    if members.text("resultType").as_deref() != Some("input_required") {
        for name in ["resultType", "ttlMs", "cacheScope"] {
            members.remove(name);
        }
        remove_server_info(&mut members);
        return Ok(ModernResult::Complete(members.into_raw()));
    }
    let mut requests = Vec::new();
    for (key, request) in Members::of(members.get("inputRequests"))?.iter() {
        let mut request = Members::of(Some(request))?.clone();
        let method = request.text("method").unwrap_or_default();
        requests.push(InputRequest { key: key.to_owned(), method, params: request.remove("params") });
    }
    Ok(ModernResult::InputRequired { requests, state: members.remove("requestState") })
}

/// Modern servers describe themselves in every result; a legacy client knows its server from `initialize`, which with several
/// servers is another one.
fn remove_server_info(result: &mut Members) {
    let Ok(mut own) = Members::of(result.get(meta::META)).cloned() else { return };
    if own.remove(SERVER_INFO).is_none() {
        return;
    }
    match own.is_empty() {
        true => drop(result.remove(meta::META)),
        false => result.set(meta::META, own.into_raw()),
    }
}

/// The client's answer as an input response. A failed elicitation counts as cancelled by the user; other errors of the
/// client end the call.
pub fn input_response(method: &str, outcome: Outcome) -> Result<Raw, Raw> {
    match outcome {
        Outcome::Result(result) => Ok(result),
        Outcome::Error(_) if method == "elicitation/create" => Ok(raw(&json!({"action": "cancel"}))),
        Outcome::Error(error) => Err(error),
    }
}

/// The request again, with the client's answers.
pub fn repetition(
    params: Option<&Raw>,
    responses: Vec<(String, Raw)>,
    state: Option<Raw>,
) -> Result<Raw, MembersError> {
    let mut members = Members::of(params)?.clone();
    let mut given = Members::default();
    for (key, response) in responses {
        given.set(key, response);
    }
    if !given.is_empty() {
        members.set("inputResponses", given.into_raw());
    }
    if let Some(state) = state {
        members.set("requestState", state);
    }
    Ok(members.into_raw())
}

#[cfg(test)]
#[path = "legacy_on_modern_tests.rs"]
mod tests;
