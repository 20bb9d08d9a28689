//! The original's two operations, `manifest` and `call`, for workers that support no others.

use crate::calls::{NewCall, ParsedCall};
use crate::catalog::refresh_lists;
use crate::host::Host;
use crate::outbox::Form;
use crate::server::Server;
use crate::upstream::{Usage, host_initialize};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use toolbus_mcp::{ClientHello, HostManifest, Members, Outcome, Raw, Rpc, empty_object, meta, raw};
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
    members.into_raw()
}

/// Replies to `manifest`. Such a worker asks once per connection, so the lists have to be complete and up to date.
pub async fn manifest(host: Arc<Host>, message: Arc<InboxMessage>) {
    refresh_lists(&host).await;
    let manifest = host.catalog.manifest(message.from.role.as_deref(), &host.options.policy.current());
    let reply = raw(&json!({"manifest": original_manifest(&manifest)}));
    host.outbox.reply_text(&message, &reply).await;
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
    let arguments = Raw::parse(text)?;
    let mut params = Members::default();
    params.set("name", raw(tool));
    params.set("arguments", arguments);
    Ok(Rpc {
        server: server.name().to_owned(),
        session: SESSION.to_owned(),
        client: ClientHello::legacy(host_initialize(Usage::Own)),
        method: "tools/call".to_owned(),
        params: Some(params.into_raw()),
        task: None,
        hand_back: false,
    })
}

/// The server that has the tool. Waits for servers that are starting, because calls in the mailbox arrive before the
/// servers' lists are read.
async fn server_of(host: &Arc<Host>, tool: &str) -> Option<Arc<Server>> {
    if let [only] = host.servers.as_slice() {
        // It answers for names that it doesn't list, too.
        return Some(Arc::clone(only));
    }
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

fn message(error: &Raw) -> String {
    let message = Members::of(Some(error)).ok().and_then(|error| error.text("message"));
    message.unwrap_or_else(|| error.get().to_owned())
}

/// The result's text for workers that read nothing else. The complete content follows if it is more than a text and
/// images, which fit into the fields of the library's results.
fn proxied(result: &Raw) -> Raw {
    let members = Members::of(Some(result)).unwrap_or_default();
    let failed = members.get("isError").is_some_and(|failed| failed.get() == "true");
    let content: Vec<Raw> =
        members.get("content").and_then(|content| serde_json::from_str(content.get()).ok()).unwrap_or_default();
    let content: Vec<_> = content.iter().map(|part| Members::of(Some(part)).unwrap_or_default()).collect();
    let is_text = |part: &Members| part.text("type").as_deref() == Some("text");
    let texts = content.iter().filter(|part| is_text(part)).filter_map(|part| part.text("text"));
    let mut proxied = Members::default();
    proxied.set("success", raw(&!failed));
    proxied.set("result", raw(&texts.collect::<Vec<_>>().join("\n")));
    let images: Option<Vec<Value>> = match content.split_first() {
        Some((first, images)) if is_text(first) && first.iter().count() == 2 => {
            images.iter().map(|part| image(part)).collect()
        }
        _ => None,
    };
    match (images, members.get("content")) {
        (Some(images), _) if images.is_empty() => {}
        (Some(images), _) => proxied.set("images", raw(&images)),
        (None, Some(content)) => proxied.set("content", content.to_owned()),
        (None, None) => {}
    }
    if let Some(structured) = members.get("structuredContent") {
        proxied.set("structured_content", structured.to_owned());
    }
    let mut own = Members::of(members.get(meta::META)).unwrap_or_default().clone();
    if let Some(preference) = own.remove(meta::DISPLAY_PREFERENCE) {
        proxied.set("display_preference", preference);
    }
    if !own.is_empty() {
        proxied.set(meta::META, own.into_raw());
    }
    proxied.into_raw()
}

/// An image without annotations.
fn image(part: &Members) -> Option<Value> {
    let is_plain = part.text("type")? == "image" && part.iter().count() == 3;
    is_plain.then_some(())?;
    Some(json!({"mime_type": part.text("mimeType")?, "data": part.text("data")?}))
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
    fn a_text_with_images_fits_into_the_fields_of_the_library() {
        let check = |result: Value, expected: Value| {
            assert_eq!(serde_json::from_str::<Value>(proxied(&raw(&result)).get()).expect("JSON"), expected);
        };
        let (text, image) =
            (json!({"type": "text", "text": "a"}), json!({"type": "image", "data": "x", "mimeType": "m"}));
        check(json!({"content": [text]}), json!({"success": true, "result": "a"}));
        let meta = json!({"toolbus/displayPreference": "wide", "other": 1});
        check(
            json!({"content": [text, image, image], "_meta": meta}),
            json!({"success": true, "result": "a", "images": [{"mime_type": "m", "data": "x"}, {"mime_type": "m", "data": "x"}],
                "display_preference": "wide", "_meta": {"other": 1}}),
        );
        for content in [
            json!([image, text]),
            json!([text, text]),
            json!([{"type": "text", "text": "a", "annotations": {}}]),
            json!([text, {"type": "image", "data": "x", "mimeType": "m", "annotations": {}}]),
        ] {
            let proxied = proxied(&raw(&json!({"content": content})));
            assert_eq!(serde_json::from_str::<Value>(proxied.get()).expect("JSON")["content"], content);
        }
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
