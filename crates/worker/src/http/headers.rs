//! Request headers: content negotiation, sessions, and the check of the modern headers against the body.

use crate::envelope::Envelope;
use crate::error::header_mismatch;
use crate::view::{View, params};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use serde_json::Value;
use std::borrow::Cow;
use toolbus_mcp::{Members, Request, RpcError};

pub const VERSION: &str = "mcp-protocol-version";
/// Names the session of a legacy client. Only the answer to `initialize` has it.
pub const SESSION: &str = "mcp-session-id";
pub const LAST_EVENT: &str = "last-event-id";
const METHOD: &str = "mcp-method";
const NAME: &str = "mcp-name";
const PARAM: &str = "mcp-param-";

pub fn version(headers: &HeaderMap) -> Option<&str> {
    Some(headers.get(VERSION)?.to_str().ok()?.trim())
}

pub fn session(headers: &HeaderMap) -> Option<&str> {
    Some(headers.get(SESSION)?.to_str().ok()?.trim())
}

pub fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// A request without `Accept` accepts everything.
pub fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    if !headers.contains_key(ACCEPT) {
        return true;
    }
    let family = kind.split('/').next().unwrap_or_default();
    let values = headers.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| {
        let part = part.split(';').next().unwrap_or_default().trim();
        let is_family = |prefix: &str| prefix.eq_ignore_ascii_case(family);
        part.eq_ignore_ascii_case(kind) || part == "*/*" || part.strip_suffix("/*").is_some_and(is_family)
    })
}

/// Checks the headers that mirror the body against the body.
pub fn check_repeated(headers: &HeaderMap, request: &Request, envelope: &Envelope) -> Result<(), RpcError> {
    check(headers, VERSION, &envelope.version)?;
    check(headers, METHOD, &request.method)?;
    let member = match request.method.as_str() {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return Ok(()),
    };
    let name = Members::of(request.params.as_ref()).ok().and_then(|params| params.text(member));
    // A body without a name is rejected by its server.
    name.map_or(Ok(()), |name| check(headers, NAME, &name))
}

fn check(headers: &HeaderMap, name: &'static str, expected: &str) -> Result<(), RpcError> {
    match single(headers, name)? {
        None => Err(header_mismatch(format!("Header mismatch: header {name} is missing"))),
        Some(value) if value == expected => Ok(()),
        Some(value) => {
            Err(header_mismatch(format!("Header mismatch: header {name} is {value:?}, but the body has {expected:?}")))
        }
    }
}

/// Checks the arguments that the tool's schema requires in headers.
pub fn check_params(headers: &HeaderMap, request: &Request, view: &View) -> Result<(), RpcError> {
    if request.method != "tools/call" {
        return Ok(());
    }
    let Ok(members) = Members::of(request.params.as_ref()) else { return Ok(()) };
    let annotated = members.text("name").and_then(|tool| view.param_headers(&tool));
    let Some(annotated) = annotated.filter(|annotated| !annotated.is_empty()) else { return Ok(()) };
    let arguments: Option<Value> = members.get("arguments").and_then(|text| serde_json::from_str(text.get()).ok());
    for wanted in annotated {
        let name = format!("{PARAM}{}", wanted.name);
        let argument = params::argument(arguments.as_ref(), &wanted.path);
        let agree = match (single(headers, &name)?, argument) {
            (None, None) => true,
            (Some(header), Some(argument)) => params::agrees(&header, argument),
            _ => false,
        };
        if !agree {
            let path = wanted.path.join(".");
            return Err(header_mismatch(format!("Header mismatch: header {name} and argument {path} differ")));
        }
    }
    Ok(())
}

/// The decoded value of a header that may occur once.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<Cow<'a, str>>, RpcError> {
    let mut values = headers.get_all(name).into_iter();
    let Some(value) = values.next() else { return Ok(None) };
    let unreadable = || header_mismatch(format!("Header mismatch: header {name} has an invalid value"));
    if values.next().is_some() {
        return Err(header_mismatch(format!("Header mismatch: header {name} occurs more than once")));
    }
    let value = value.to_str().map_err(|_| unreadable())?.trim();
    decode(value).ok_or_else(unreadable).map(Some)
}

/// Decodes a value in the form `=?base64?...?=`, which is used for text that a header can't hold.
fn decode(value: &str) -> Option<Cow<'_, str>> {
    let Some(encoded) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(Cow::Borrowed(value));
    };
    let bytes = STANDARD.decode(encoded).ok()?;
    Some(Cow::Owned(String::from_utf8(bytes).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn accept_understands_wildcards_and_parameters() {
        let check = |value: &'static str, kind, expected| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(value));
            assert_eq!(accepts(&headers, kind), expected, "{value} {kind}");
        };
        check("application/json, text/event-stream", "text/event-stream", true);
        check("application/json", "text/event-stream", false);
        check("*/*;q=0.1", "text/event-stream", true);
        check("text/*, application/json", "text/event-stream", true);
        check("APPLICATION/JSON", "application/json", true);
        assert!(accepts(&HeaderMap::new(), "application/json"));
    }

    #[test]
    fn encoded_values_are_decoded_and_invalid_ones_rejected() {
        assert_eq!(decode("plain").as_deref(), Some("plain"));
        assert_eq!(decode("=?base64?w7xiZXI=?=").as_deref(), Some("über"));
        assert_eq!(decode("=?base64?!!?="), None);
        assert_eq!(decode("=?base64?w7xiZXI?="), None);
    }
}
