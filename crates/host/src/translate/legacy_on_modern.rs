//! A legacy client in front of a modern server. `initialize` is answered from `server/discover`, each request gets the
//! envelope that the client's `initialize` implies, and an `input_required` result becomes requests to the client,
//! whose answers go into a repetition of the request.

use super::log_level::LogLevel;
use super::{InputRequest, SERVER_INFO, TASKS_EXTENSION, server_has};
use serde_json::json;
use serde_json::value::RawValue;
use toolbus_mcp::{
    LATEST_LEGACY, LEGACY_VERSIONS, MODERN_VERSION, Members, MembersError, Outcome, Raw, empty_object, meta, raw,
};

/// The answer to `initialize`, from the server's answer to `server/discover`.
pub fn initialize_result(discover: &RawValue, initialize: &RawValue, server_name: &str) -> Result<Raw, MembersError> {
    let mut from = Members::of(Some(discover))?;
    let requested = Members::of(Some(initialize))?.text("protocolVersion").unwrap_or_default();
    let version = if LEGACY_VERSIONS.contains(&requested.as_str()) { requested } else { LATEST_LEGACY.to_owned() };
    let mut capabilities = Members::of(from.get("capabilities"))?;
    if let Ok(mut extensions) = Members::of(capabilities.get("extensions"))
        && extensions.remove(TASKS_EXTENSION).is_some()
    {
        let rest = (!extensions.is_empty()).then(|| extensions.to_raw());
        match rest {
            Some(rest) => capabilities.set("extensions", rest),
            None => drop(capabilities.remove("extensions")),
        }
    }
    let capabilities = capabilities.to_raw();
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
    Ok(result.to_raw())
}

/// Methods that a modern server doesn't have and that can't be had otherwise either.
pub fn is_unknown(method: &str) -> bool {
    method.starts_with("tasks/") || method == "server/discover" || method == super::listen::LISTEN
}

/// A legacy client's words about itself, as each modern request has to carry them.
#[derive(Debug, Clone)]
pub struct Introduction {
    pub capabilities: Raw,
    client_info: Option<Raw>,
}

impl Introduction {
    pub fn of_initialize(initialize: &RawValue) -> Result<Self, MembersError> {
        let mut members = Members::of(Some(initialize))?;
        let capabilities = members.remove("capabilities").unwrap_or_else(empty_object);
        Ok(Self { capabilities, client_info: members.remove("clientInfo") })
    }

    /// The host on its own behalf: it can do nothing for a server.
    pub fn of_host() -> Self {
        let info = json!({"name": "toolbus", "version": env!("CARGO_PKG_VERSION")});
        Self { capabilities: empty_object(), client_info: Some(raw(&info)) }
    }

    /// The params with the envelope. What the client itself put into `_meta` stays.
    pub fn envelop(&self, params: Option<&RawValue>, level: Option<LogLevel>) -> Result<Raw, MembersError> {
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

/// A legacy client that never set a level gets what servers commonly send by default.
pub fn default_level(discover: &RawValue) -> Option<LogLevel> {
    server_has(discover, "logging").then_some(LogLevel::Info)
}

/// What a modern result means for a legacy client.
#[derive(Debug)]
pub enum Step {
    Complete(Raw),
    /// The server wants something first. The state goes back to it as it came.
    Ask {
        requests: Vec<InputRequest>,
        state: Option<Raw>,
    },
}

pub fn result(result: &RawValue) -> Result<Step, MembersError> {
    let mut members = Members::of(Some(result))?;
    if members.text("resultType").as_deref() != Some("input_required") {
        for name in ["resultType", "ttlMs", "cacheScope"] {
            members.remove(name);
        }
        return Ok(Step::Complete(members.to_raw()));
    }
    let mut requests = Vec::new();
    for (key, request) in Members::of(members.get("inputRequests"))?.iter() {
        let mut request = Members::of(Some(request))?;
        let method = request.text("method").unwrap_or_default();
        requests.push(InputRequest { key: key.to_owned(), method, params: request.remove("params") });
    }
    Ok(Step::Ask { requests, state: members.remove("requestState") })
}

/// The client's answer as an input response. Whoever asked a person can be told that the person gave none; for other
/// questions an error of the client is the end of the call.
pub fn input_response(method: &str, outcome: Outcome) -> Result<Raw, Raw> {
    match outcome {
        Outcome::Result(result) => Ok(result),
        Outcome::Error(_) if method == "elicitation/create" => Ok(raw(&json!({"action": "cancel"}))),
        Outcome::Error(error) => Err(error),
    }
}

/// The request once more, with the answers.
pub fn repetition(
    params: Option<&RawValue>,
    responses: Vec<(String, Raw)>,
    state: Option<Raw>,
) -> Result<Raw, MembersError> {
    let mut members = Members::of(params)?;
    let mut given = Members::default();
    for (key, response) in responses {
        given.set(key, response);
    }
    if !given.is_empty() {
        members.set("inputResponses", given.to_raw());
    }
    if let Some(state) = state {
        members.set("requestState", state);
    }
    Ok(members.to_raw())
}

#[cfg(test)]
#[path = "legacy_on_modern_tests.rs"]
mod tests;
