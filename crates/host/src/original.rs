//! The original's two operations, `manifest` and `call`, for workers that support no others.

use crate::calls::{NewCall, ParsedCall};
use crate::host::Host;
use crate::outbox::Form;
use crate::server::Server;
use crate::upstream::{Usage, host_initialize};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::sync::Arc;
use toolbus_mcp::{ClientHello, HostManifest, Members, Outcome, Raw, Rpc, empty_object, raw};
use toolbus_protocol::{Body, InboxMessage};

/// The session key for workers that don't speak MCP.
const SESSION: &str = "original";

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Operation {
    Manifest,
    Call { tool: String, arguments: String },
}

/// `None` if the body has no `op` of the original.
pub fn parse(body: &[u8]) -> Option<Result<Operation, serde_json::Error>> {
    #[derive(Deserialize)]
    struct Op<'a> {
        #[serde(borrow)]
        op: std::borrow::Cow<'a, str>,
    }
    let op: Op<'_> = serde_json::from_slice(body).ok()?;
    matches!(&*op.op, "manifest" | "call").then(|| serde_json::from_slice(body))
}

/// Tools as function schemas.
fn original_manifest(manifest: &HostManifest) -> Vec<Value> {
    let schema = |tool: &Raw| {
        let tool = Members::of(Some(tool)).ok()?;
        let parameters = tool.get("inputSchema").map_or_else(empty_object, ToOwned::to_owned);
        let description = tool.text("description").unwrap_or_default();
        let function = json!({"name": tool.text("name")?, "description": description, "parameters": parameters});
        Some(json!({"type": "function", "function": function}))
    };
    manifest.servers.iter().flat_map(|server| &server.tools).filter_map(schema).collect()
}

/// The original's error reply.
pub fn error(reason: &str) -> Raw {
    raw(&json!({"error": reason}))
}

fn one_member(name: &'static str, value: Raw) -> Raw {
    let mut members = Members::default();
    members.set(name, value);
    members.to_raw()
}

/// The reply to `manifest`.
pub fn manifest_reply(manifest: &HostManifest) -> Raw {
    raw(&json!({"manifest": original_manifest(manifest)}))
}

/// The reply to `call`; `None` for a cancelled call.
pub fn reply_body(outcome: Option<&Outcome>) -> Body {
    let reply = match outcome {
        Some(Outcome::Result(result)) => one_member("result", proxied(result)),
        Some(Outcome::Error(failed)) => error(&message(failed)),
        None => error("the call was cancelled"),
    };
    Body::from_trusted(Bytes::from(reply.get().to_owned()))
}

/// Gives the call to the machine once its server is known.
pub async fn call(host: Arc<Host>, message: Arc<InboxMessage>, tool: String, arguments: String) {
    let refused = match server_of(&host, &tool).await {
        // The request stays in the mailbox.
        None if host.draining.is_cancelled() => return,
        None => format!("unknown tool '{tool}'"),
        Some(server) => match rpc_of(&server, &tool, &arguments) {
            Ok(rpc) => {
                let parsed = ParsedCall::new(&message, rpc, Form::Original);
                let new = NewCall { request: message, parsed, server, form: Form::Original, operator: None };
                let request = host.request_of(&new);
                return host.admit(request, new);
            }
            Err(_) => format!("the arguments of tool '{tool}' are not JSON"),
        },
    };
    host.outbox.reply_text(&message, &error(&refused)).await;
}

/// The equivalent MCP request.
fn rpc_of(server: &Server, tool: &str, arguments: &str) -> Result<Rpc, serde_json::Error> {
    let text = if arguments.trim().is_empty() { "{}" } else { arguments };
    let arguments: &RawValue = serde_json::from_str(text)?;
    let mut params = Members::default();
    params.set("name", raw(tool));
    params.set("arguments", arguments.to_owned());
    Ok(Rpc {
        server: server.name().to_owned(),
        session: SESSION.to_owned(),
        client: ClientHello::legacy(host_initialize(Usage::Own)),
        method: "tools/call".to_owned(),
        params: Some(params.to_raw()),
        task: None,
    })
}

/// The server that has the tool. Waits for servers that are starting, because calls in the mailbox arrive before the
/// servers' lists are read.
async fn server_of(host: &Arc<Host>, tool: &str) -> Option<Arc<Server>> {
    let find = || host.catalog.tool(tool).map(|index| Arc::clone(&host.servers[index]));
    for server in &host.servers {
        if let Some(found) = find() {
            return Some(found);
        }
        tokio::select! {
            // Afterwards the server is known to be up or down.
            _ = server.eras(host) => {}
            () = host.draining.cancelled() => return None,
        }
    }
    find()
}

fn message(error: &RawValue) -> String {
    let message = Members::of(Some(error)).ok().and_then(|error| error.text("message"));
    message.unwrap_or_else(|| error.get().to_owned())
}

/// The result's text for workers that read nothing else, and the complete content for those that do.
fn proxied(result: &RawValue) -> Raw {
    let members = Members::of(Some(result)).unwrap_or_default();
    let failed = members.get("isError").is_some_and(|failed| failed.get() == "true");
    let content: Vec<Raw> =
        members.get("content").and_then(|content| serde_json::from_str(content.get()).ok()).unwrap_or_default();
    let texts = content.iter().filter_map(|part| {
        let part = Members::of(Some(part)).ok()?;
        (part.text("type")? == "text").then(|| part.text("text"))?
    });
    let mut proxied = Members::default();
    proxied.set("success", raw(&!failed));
    proxied.set("result", raw(&texts.collect::<Vec<_>>().join("\n")));
    for (from, to) in [("content", "content"), ("structuredContent", "structured_content"), ("_meta", "_meta")] {
        if let Some(value) = members.get(from) {
            proxied.set(to, value.to_owned());
        }
    }
    proxied.to_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_joined_and_the_content_is_kept() {
        let result = raw(&json!({"content": [{"type": "text", "text": "a"}, {"type": "image", "data": "x"},
            {"type": "text", "text": "b"}], "isError": true, "structuredContent": {"n": 1}}));
        let proxied: Value = serde_json::from_str(proxied(&result).get()).expect("JSON");
        assert_eq!(proxied["success"], false);
        assert_eq!(proxied["result"], "a\nb");
        assert_eq!(proxied["content"][1]["data"], "x");
        assert_eq!(proxied["structured_content"]["n"], 1);
    }

    #[test]
    fn only_the_originals_operations_are_parsed() {
        assert!(matches!(parse(br#"{"op":"manifest"}"#), Some(Ok(Operation::Manifest))));
        assert!(matches!(parse(br#"{"op":"call","tool":"t","arguments":"{}"}"#), Some(Ok(Operation::Call { .. }))));
        assert!(matches!(parse(br#"{"op":"call","tool":5}"#), Some(Err(_))));
        assert!(parse(br#"{"op":"rpc"}"#).is_none());
        assert!(parse(b"null").is_none());
    }
}
