//! MCP messages: what is parsed survives being written, and every way of finding a member agrees with serde_json.

use serde_json::Value;
use toolbus_mcp::{HostEvent, HostManifest, HostReply, HostRequest, Members, Message, Raw, member_text};
use toolbus_upstream::fuzzing::scan;

/// Members that messages, requests and results are searched for.
const NAMES: [&str; 6] = ["id", "method", "name", "uri", "taskId", "jsonrpc"];

pub fn mcp(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    bodies(text);
    if let Ok(message) = Message::parse(text) {
        let line = message.to_json();
        assert!(!line.contains(['\n', '\r']), "a message has to be one line");
        let again = Message::parse(&*line).expect("a written message is valid");
        assert_eq!(again.to_json(), line);
        let (one, other): (Value, Value) = match (serde_json::from_str(text), serde_json::from_str(&line)) {
            (Ok(one), Ok(other)) => (one, other),
            // Nested too deeply for a tree.
            _ => return,
        };
        // A message with a method is a request or a notification, whatever else it has.
        let kept = if one.get("method").is_some() { ["method", "params"] } else { ["result", "error"] };
        for member in kept {
            assert_eq!(one.get(member), other.get(member), "{member}");
        }
    }
    members(text);
}

fn members(text: &str) {
    let (raw, value) = (Raw::parse(text), serde_json::from_str::<Value>(text));
    let Ok(raw) = raw else { return };
    let Ok(members) = Members::of(Some(&raw)) else { return };
    let Ok(Value::Object(object)) = value else { return };
    assert_eq!(members.iter().count(), object.len(), "duplicate members are rejected");
    for (name, value) in members.iter() {
        assert_eq!(serde_json::from_str::<Value>(value.get()).ok().as_ref(), object.get(name));
    }
    let again = members.clone().into_raw();
    assert_eq!(serde_json::from_str::<Value>(again.get()).ok(), Some(Value::Object(object.clone())));
    for name in NAMES {
        let expected = object.get(name).and_then(Value::as_str);
        assert_eq!(member_text(&raw, name).as_deref(), expected, "{name}");
        assert_eq!(members.text(name).as_deref(), expected, "{name}");
    }
    for step in [1, 7, text.len().max(1)] {
        scanned(text, members, &object, step);
    }
}

/// The scanner compares keys as they are written, and ignores ids that are longer than any of ours.
fn scanned(text: &str, members: &Members, object: &serde_json::Map<String, Value>, step: usize) {
    let found = scan(text.as_bytes().chunks(step));
    assert!(found.balanced, "a valid message is balanced");
    if text.contains('\\') {
        return;
    }
    assert_eq!(found.has_method, object.contains_key("method"));
    let is_scalar = |id: &&Raw| !id.get().starts_with(['{', '[']);
    let id = members.get("id").filter(is_scalar).map(|id| id.get().to_owned());
    let too_long = id.as_ref().is_some_and(|id| id.len() > 256);
    let expected = if too_long { None } else { id };
    assert_eq!(found.id, expected);
}

fn bodies(text: &str) {
    if let Ok(request) = HostRequest::parse(text) {
        let json = request.to_json();
        assert_eq!(HostRequest::parse(json.clone()).expect("a written request is valid").to_json(), json);
    }
    if let Ok(reply) = HostReply::parse(text) {
        let json = reply.to_json();
        assert_eq!(HostReply::parse(json.clone()).expect("a written reply is valid").to_json(), json);
    }
    if let Ok(event) = HostEvent::parse(text) {
        let json = event.to_json();
        assert_eq!(HostEvent::parse(json.clone()).expect("a written event is valid").to_json(), json);
    }
    if let Ok(manifest) = serde_json::from_str::<HostManifest>(text) {
        let json = serde_json::to_string(&manifest).expect("a manifest");
        serde_json::from_str::<HostManifest>(&json).expect("a written manifest is valid");
    }
}
