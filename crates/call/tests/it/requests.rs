//! The requests that the tests use.

use crate::support::key;
use bytestring::ByteString;
use toolbus_call::{JoinMode, Origin, ReplaySetting, Request, SessionHold, SessionKey, TaskRequest};

/// A call that must not run twice. Calls with different ids have different content.
pub fn call(caller: &str, id: &str) -> Request {
    let mut content = [0; 32];
    content.iter_mut().zip(id.bytes()).for_each(|(byte, of_id)| *byte = of_id);
    Request {
        key: key(caller, id),
        content,
        server: 0,
        tool: "write".into(),
        has_effect: true,
        replay: ReplaySetting::Never,
        join: JoinMode::Gone,
        join_window: 60_000,
        origin: Origin::Mailbox { delivery: 1, unsure: false },
        task: None,
        deadline: None,
        timeout: None,
        age: 0,
        session: None,
        continues: false,
        hands_back: false,
        needs_permit: true,
        guarded: true,
        share: None,
        exclusive: None,
        reserves: false,
    }
}

/// Calls of this kind are equal, whatever their ids.
pub fn equal(caller: &str, id: &str) -> Request {
    Request { content: [7; 32], ..call(caller, id) }
}

pub fn replay_safe(caller: &str, id: &str) -> Request {
    Request { replay: ReplaySetting::Safe, ..call(caller, id) }
}

pub fn read(caller: &str, id: &str) -> Request {
    Request { has_effect: false, tool: "tools/list".into(), ..call(caller, id) }
}

/// A call that runs as a task, for a minute.
pub fn task(caller: &str, id: &str) -> Request {
    Request { task: Some(TaskRequest { ttl: 60_000 }), ..call(caller, id) }
}

/// A task of an earlier process.
pub fn resumed(request: Request) -> Request {
    Request { origin: Origin::Journal, ..request }
}

pub fn until(deadline: u64, request: Request) -> Request {
    Request { deadline: Some(deadline), ..request }
}

pub fn session(name: &str) -> SessionKey {
    SessionKey { server: 0, mailbox: ByteString::from_static("w#1"), key: name.into() }
}

/// A request of the session `s`.
pub fn in_session(request: Request) -> Request {
    Request { session: Some((session("s"), SessionHold::UntilSent)), ..request }
}

/// The `initialize` of the session `s`.
pub fn initialize(id: &str) -> Request {
    Request { session: Some((session("s"), SessionHold::UntilAnswered)), ..read("w#1", id) }
}
