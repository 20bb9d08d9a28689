//! A request, parsed once: its name, its content hash and its subject for the audit log.

use crate::failure;
use crate::outbox::Form;
use crate::session::SessionId;
use bytestring::ByteString;
use ring::digest::{Context, SHA256};
use toolbus_audit::canonical::canonical;
use toolbus_audit::{Subject, argument_hash};
use toolbus_mcp::{Members, NameKey, Rpc, RpcError, meta, required_name};
use toolbus_protocol::{ErrorCode, InboxMessage};

const TRACE_PARENT: &str = "traceparent";
const ARGUMENTS: &str = "arguments";

/// Names stay in memory as long as their calls are journaled, so longer ones are truncated. The content hash still
/// tells such calls apart.
const MAX_NAME_BYTES: usize = 1024;

fn truncated_name(name: &str) -> ByteString {
    ByteString::from(&name[..name.floor_char_boundary(MAX_NAME_BYTES)])
}

/// Refuses impossible names of servers and sessions before any of them is stored.
pub fn check_names(server: &str, session: &str) -> Result<(), RpcError> {
    let what = match () {
        () if server.len() > MAX_NAME_BYTES => "server",
        () if session.len() > MAX_NAME_BYTES || SessionId::is_key_of_task(session) => "session",
        () => return Ok(()),
    };
    Err(failure::bus(ErrorCode::BadArguments, format!("invalid {what} name; the call was not run")))
}

/// A client's request.
pub struct ParsedCall {
    pub rpc: Rpc,
    /// The item that it names, or why that can't be determined.
    pub name: Result<Option<NameKey>, RpcError>,
    /// The tool as the caller named it; the method if it names no tool.
    pub tool: ByteString,
    pub content: [u8; 32],
    pub subject: Subject,
}

impl ParsedCall {
    pub fn new(message: &InboxMessage, rpc: Rpc, form: Form) -> Self {
        let name = required_name(&rpc.method, rpc.params.as_ref());
        let name = name.map_err(|error| RpcError::invalid_params(format!("Invalid params: {error}")));
        let tool = match &name {
            Ok(Some(NameKey::Tool(tool))) => truncated_name(tool),
            _ => truncated_name(&rpc.method),
        };
        // Only the arguments can be large, so they are hashed once, for both.
        let arguments = Members::of(rpc.params.as_ref()).ok().and_then(|params| params.get(ARGUMENTS));
        let arguments = arguments.map(|arguments| argument_hash(Some(arguments.get())));
        let content = content_of(&rpc, form, arguments.as_deref());
        let subject = subject_of(message, &rpc, name.as_ref().ok().and_then(Option::as_ref), arguments);
        Self { rpc, name, tool, content, subject }
    }

    pub fn key(&self) -> Option<&NameKey> {
        self.name.as_ref().ok().and_then(Option::as_ref)
    }

    /// The tool that it calls, under the name that workers see.
    pub fn named_tool(&self) -> Option<&str> {
        match self.key() {
            Some(NameKey::Tool(tool)) => Some(tool),
            _ => None,
        }
    }
}

/// The subject of a request, as its caller names it.
fn subject_of(message: &InboxMessage, rpc: &Rpc, key: Option<&NameKey>, arguments: Option<String>) -> Subject {
    let (kind, name) = match key {
        Some(NameKey::Tool(name)) => ("tool", Some(name)),
        Some(NameKey::Prompt(name)) => ("prompt", Some(name)),
        Some(NameKey::Uri(uri)) => ("resource", Some(uri)),
        Some(NameKey::Task(task)) => ("task", Some(task)),
        None => (rpc.method.as_str(), None),
    };
    let takes_arguments = matches!(kind, "tool" | "prompt");
    // From the bus message, or from the request in it.
    let of_message = message.trace.as_deref().and_then(trace_id);
    Subject {
        server: rpc.server.clone(),
        kind: kind.to_owned(),
        name: name.cloned(),
        args: takes_arguments.then(|| arguments.unwrap_or_else(|| argument_hash(None))),
        request: message.id.to_string(),
        trace: of_message.or_else(|| trace_id(meta::get(rpc.params.as_ref(), TRACE_PARENT)?.get())),
    }
}

/// The trace id of a `traceparent`, `00-<trace>-<span>-<flags>`.
fn trace_id(trace_parent: &str) -> Option<String> {
    let trace = trace_parent.trim_matches('"').split('-').nth(1)?;
    (trace.len() == 32 && trace.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| trace.to_owned())
}

/// A hash over era, server, method and params without `_meta`: equal for equal calls. The eras format answers
/// differently, and so does the original, so their calls are never equal. The arguments are given by their hash.
fn content_of(rpc: &Rpc, form: Form, arguments: Option<&str>) -> [u8; 32] {
    let mut hash = Context::new(&SHA256);
    let mut update = |part: &str| {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    };
    let era = match form {
        Form::Mcp => rpc.client.era.as_str(),
        Form::Original => "original",
    };
    [era, &rpc.server, &rpc.method].into_iter().for_each(&mut update);
    let params = rpc.params.as_ref();
    match Members::of(params) {
        Ok(members) => {
            let mut members: Vec<_> = members.iter().filter(|(name, _)| *name != meta::META).collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            for (name, value) in members {
                update(name);
                match arguments.filter(|_| name == ARGUMENTS) {
                    Some(hash) => update(hash),
                    None => update(&canonical(value.get())),
                }
            }
        }
        Err(_) => params.iter().for_each(|params| update(params.get())),
    }
    let mut content = [0; 32];
    content.copy_from_slice(hash.finish().as_ref());
    content
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_mcp::has_effect;
    use toolbus_mcp::{ClientHello, Raw};
    use toolbus_protocol::{AgentRef, Body};

    fn content(server: &str, method: &str, params: Option<&str>) -> [u8; 32] {
        let params = params.map(|params| Raw::parse(params).expect("JSON"));
        let (server, method, session) = (server.to_owned(), method.to_owned(), "s".to_owned());
        let rpc = Rpc { server, session, client: ClientHello::modern(), method, params, task: None, hand_back: false };
        ParsedCall::new(&InboxMessage::new(AgentRef::new("w"), "mcp_request", Body::null()), rpc, Form::Mcp).content
    }

    #[test]
    fn content_depends_on_the_request_but_not_on_its_metadata_or_order() {
        let call = |params| content("one", "tools/call", Some(params));
        let usual = call(r#"{"name":"a","arguments":{"x":1,"y":[1,2]}}"#);
        assert_eq!(usual, call(r#"{ "arguments": {"y":[1,2], "x":1}, "name":"a", "_meta": {"progressToken": 7} }"#));
        for other in [
            r#"{"name":"b","arguments":{"x":1,"y":[1,2]}}"#,
            r#"{"name":"a","arguments":{"x":1,"y":[2,1]}}"#,
            r#"{"name":"a","arguments":{"x":1.0,"y":[1,2]}}"#,
            r#"{"name":"a","arguments":{"x":1,"y":[1,2],"_meta":{}}}"#,
            r#"{"name":"a","arguments":{"x":1,"y":[1,2]},"requestState":"s"}"#,
        ] {
            assert_ne!(usual, call(other), "{other}");
        }
        assert_ne!(content("ab", "c", None), content("a", "bc", None));
        assert_ne!(usual, content("two", "tools/call", Some(r#"{"name":"a","arguments":{"x":1,"y":[1,2]}}"#)));
    }

    #[test]
    fn long_names_are_truncated() {
        assert_eq!(truncated_name("tool"), "tool");
        assert_eq!(truncated_name(&"ü".repeat(20_000)).len(), MAX_NAME_BYTES);
        assert_eq!(truncated_name(&format!("x{}", "ü".repeat(20_000))).len(), MAX_NAME_BYTES - 1);
    }

    #[test]
    fn only_methods_with_possible_effects_are_journaled() {
        for method in ["tools/call", "vendor/anything", "tasks/update"] {
            assert!(has_effect(method), "{method}");
        }
        for method in ["tools/list", "resources/read", "initialize", "subscriptions/listen", "tasks/get", "ping"] {
            assert!(!has_effect(method), "{method}");
        }
    }
}
