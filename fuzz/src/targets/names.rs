//! Names: a valid one has no character that is invisible or changes the display of others, is not a path, and survives
//! everything that it is written into.

use toolbus_base::{from_hex, hex, principal_of};
use toolbus_mcp::{TaskName, raw};
use toolbus_protocol::{AgentRef, Body, ClientFrame, Deliver, InboxMessage, MAX_NAME_BYTES, MsgId, check_name, json};

pub fn names(data: &[u8]) {
    if let Some(bytes) = data.first_chunk::<32>() {
        assert_eq!(from_hex(&hex(bytes)).as_ref(), Some(bytes));
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    // A name with one bad character is rejected whatever its others are, so each is also a name by itself.
    for character in text.split("").filter(|one| check_name(one).is_ok()) {
        check_characters(character);
    }
    let (name, id) = text.split_once('\n').unwrap_or((text, "7c0e"));
    if check_name(name).is_err() {
        return;
    }
    check_characters(name);
    let principal = principal_of(name);
    assert!(name.starts_with(principal) && !principal.contains('#'));
    assert_eq!(principal_of(principal), principal);
    assert_eq!(serde_json::from_str::<String>(raw(name).get()).ok().as_deref(), Some(name));
    if check_name(id).is_err() {
        return;
    }
    let task = TaskName { host: name.to_owned(), id: id.replace(':', "") };
    if !task.id.is_empty() {
        assert_eq!(TaskName::parse(&task.to_string()), Some(task));
    }
    let from = AgentRef::new(name).with_role(name);
    let mut message = InboxMessage::new(from.clone(), name, Body::null());
    message.id = MsgId::from(id);
    let (to, envelope) = (name.into(), message.seal());
    assert_eq!(envelope.open(from.clone()), message);
    let frame = ClientFrame::Deliver(Deliver { to, envelope, deadline_ms: None, ack: None, age_ms: None });
    assert_eq!(json::read_client(json::write_client(&frame, &from).as_bytes()).expect("valid names"), frame);
}

fn check_characters(name: &str) {
    assert!((1..=MAX_NAME_BYTES).contains(&name.len()));
    assert!(!name.contains(['/', '\\', '\0', '\n', '\r', '\u{1b}']) && name != "." && name != "..");
    // The characters of Unicode's Bidi_Control and Default_Ignorable_Code_Point that change the text around them.
    let is_hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    assert!(!name.chars().any(is_hidden), "{name:?} has an invisible character");
}
