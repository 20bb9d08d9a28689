//! Translation for a modern client on a legacy server. The envelope in each request's `_meta` becomes the server's
//! `initialize`, results get the members that the modern era requires, and a server's request during a call becomes an
//! `input_required` result, which the client answers by repeating its request.

use super::log_level::LogLevel;
use super::{InputRequest, SERVER_INFO, listen};
use crate::failure;
use serde_json::json;
use std::collections::BTreeMap;
use toolbus_mcp::{LATEST_LEGACY, ListKind, MODERN_VERSIONS, Members, MembersError, Raw, RpcError, codes, meta, raw};

/// What a modern request says about its client.
#[derive(Debug, Clone)]
pub struct Envelope {
    pub capabilities: Raw,
    pub client_info: Option<Raw>,
    pub log_level: Option<LogLevel>,
    pub progress_token: Option<Raw>,
}

const ENVELOPE_KEYS: [&str; 4] =
    [meta::PROTOCOL_VERSION, meta::CLIENT_CAPABILITIES, meta::CLIENT_INFO, meta::LOG_LEVEL];

impl Envelope {
    pub fn of(params: Option<&Raw>) -> Result<Self, RpcError> {
        let missing = || {
            let keys = format!("{} and {}", meta::PROTOCOL_VERSION, meta::CLIENT_CAPABILITIES);
            RpcError::invalid_params(format!("params._meta must be an object with {keys}"))
        };
        let params = Members::of(params).map_err(|error| RpcError::invalid_params(error.to_string()))?;
        let members = Members::of(params.get(meta::META)).map_err(|_| missing())?;
        let version = members.text(meta::PROTOCOL_VERSION).ok_or_else(missing)?;
        let capabilities = members.get(meta::CLIENT_CAPABILITIES).ok_or_else(missing)?.to_owned();
        if !MODERN_VERSIONS.contains(&version.as_str()) {
            return Err(failure::unsupported_version(&version));
        }
        Ok(Self {
            capabilities,
            client_info: members.get(meta::CLIENT_INFO).map(ToOwned::to_owned),
            log_level: members.get(meta::LOG_LEVEL).and_then(LogLevel::of_raw),
            progress_token: members.get(meta::PROGRESS_TOKEN).map(ToOwned::to_owned),
        })
    }

    /// The params of the `initialize` on behalf of this client.
    pub fn initialize(&self) -> Raw {
        let nameless = || raw(&json!({"name": "unknown", "version": "unknown"}));
        let info = self.client_info.clone().unwrap_or_else(nameless);
        raw(&json!({"protocolVersion": LATEST_LEGACY, "capabilities": self.capabilities, "clientInfo": info}))
    }
}

/// The result of `server/discover`, from the server's result of `initialize`.
pub fn discover(initialize_result: &Raw) -> Result<Raw, MembersError> {
    let mut from = Members::of(Some(initialize_result))?.clone();
    let mut capabilities = Members::of(from.get("capabilities"))?.clone();
    // The tasks of the legacy era differ from the modern extension.
    capabilities.remove("tasks");
    let capabilities = capabilities.into_raw();
    let mut result = Members::default();
    result.set("supportedVersions", raw(MODERN_VERSIONS));
    result.set("capabilities", capabilities);
    if let Some(instructions) = from.remove("instructions") {
        result.set("instructions", instructions);
    }
    add_complete(&mut result);
    add_caching(&mut result);
    if let Some(info) = from.remove("serverInfo") {
        let mut own = Members::of(from.get(meta::META))?.clone();
        own.set(SERVER_INFO, info);
        let own = own.into_raw();
        result.set(meta::META, own);
    }
    Ok(result.into_raw())
}

/// Methods that the modern era removed or that differ in the legacy era.
pub fn is_removed(method: &str) -> bool {
    matches!(method, "initialize" | "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe")
        || method.starts_with("tasks/")
}

/// Whether the server may send requests to the client during this request.
pub fn may_request_input(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read")
}

/// The params without the envelope.
pub fn without_envelope(params: Option<&Raw>) -> Result<Option<Raw>, MembersError> {
    meta::without(params, &ENVELOPE_KEYS)
}

/// The params without the envelope and without the members of a repetition.
pub fn params(params: Option<&Raw>) -> Result<Option<Raw>, MembersError> {
    let Some(stripped) = without_envelope(params)? else { return Ok(None) };
    let mut members = Members::of(Some(&stripped))?.clone();
    members.remove("inputResponses");
    members.remove("requestState");
    Ok((!members.is_empty()).then(|| members.into_raw()))
}

/// The result with the members that the modern era requires.
pub fn result(method: &str, result: &Raw) -> Result<Raw, MembersError> {
    let mut members = Members::of(Some(result))?.clone();
    add_complete(&mut members);
    if ListKind::of_method(method).is_some() || method == "resources/read" {
        add_caching(&mut members);
    }
    Ok(members.into_raw())
}

/// The modern era has no code of its own for an unknown resource.
pub fn error(error: &Raw) -> Raw {
    let translate = || {
        let mut members = Members::of(Some(error)).ok()?.clone();
        let code: i64 = serde_json::from_str(members.get("code")?.get()).ok()?;
        (code == codes::RESOURCE_NOT_FOUND).then(|| {
            members.set("code", raw(&codes::INVALID_PARAMS));
            members.into_raw()
        })
    };
    translate().unwrap_or_else(|| error.to_owned())
}

fn add_complete(result: &mut Members) {
    if !result.contains("resultType") {
        result.set("resultType", raw("complete"));
    }
}

/// Legacy results may differ between sessions, so they must not be cached.
fn add_caching(result: &mut Members) {
    if !result.contains("ttlMs") {
        result.set("ttlMs", raw(&0));
    }
    if !result.contains("cacheScope") {
        result.set("cacheScope", raw("private"));
    }
}

/// Where a server's notification during a call goes.
#[derive(Debug)]
pub enum Destination {
    /// To the call.
    Call(Option<Raw>),
    /// To listen streams.
    Listeners,
    /// Nowhere: the client did not ask for it, or doesn't support it.
    Dropped,
}

pub fn notification(envelope: &Envelope, method: &str, params: Option<Raw>) -> Destination {
    match method {
        "notifications/progress" => match &envelope.progress_token {
            // A repeated request may carry another token than the first one.
            Some(token) => Destination::Call(with_token(params, token)),
            None => Destination::Dropped,
        },
        "notifications/message" => match envelope.log_level {
            Some(level) if level.passes(params.as_ref()) => Destination::Call(params),
            _ => Destination::Dropped,
        },
        method if listen::is_listen_notification(method) => Destination::Listeners,
        "notifications/cancelled" | "notifications/elicitation/complete" | "notifications/tasks/status" => {
            Destination::Dropped
        }
        _ => Destination::Call(params),
    }
}

fn with_token(params: Option<Raw>, token: &Raw) -> Option<Raw> {
    let params = params?;
    let Ok(members) = Members::of(Some(&params)) else { return Some(params) };
    let mut members = members.clone();
    if members.get(meta::PROGRESS_TOKEN).is_some_and(|old| old.get() == token.get()) {
        return Some(params);
    }
    members.set(meta::PROGRESS_TOKEN, token.to_owned());
    Some(members.into_raw())
}

/// The result that sends the server's requests to the client.
pub fn input_required(requests: &[InputRequest], state: &str) -> Raw {
    let mut asked = Members::default();
    for request in requests {
        let mut one = Members::default();
        one.set("method", raw(&request.method));
        if let Some(params) = &request.params {
            one.set("params", params.clone());
        }
        asked.set(request.key.clone(), one.into_raw());
    }
    let mut result = Members::default();
    result.set("resultType", raw("input_required"));
    result.set("inputRequests", asked.into_raw());
    result.set("requestState", raw(state));
    result.into_raw()
}

/// The state and the answers of a repeated request.
#[derive(Debug)]
pub struct Repetition {
    pub state: String,
    pub responses: BTreeMap<String, Raw>,
}

impl Repetition {
    /// `None` for a request that is not a repetition.
    pub fn of(params: Option<&Raw>) -> Result<Option<Self>, RpcError> {
        let members = Members::of(params).map_err(|error| RpcError::invalid_params(error.to_string()))?;
        if !members.contains("requestState") {
            return Ok(None);
        }
        let state = members.text("requestState").ok_or_else(failure::unknown_state)?;
        let bad = |_| RpcError::invalid_params("inputResponses must be an object");
        let given = Members::of(members.get("inputResponses")).map_err(bad)?;
        let responses = given.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Ok(Some(Self { state, responses }))
    }
}

#[cfg(test)]
#[path = "modern_on_legacy_tests.rs"]
mod tests;
