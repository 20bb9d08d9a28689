//! Entries for tests.

use bytes::Bytes;
use std::sync::Arc;
use toolbus_journal::{CallKey, End, Entry, Finish, Start};

pub const CONTENT: [u8; 32] = [1; 32];

pub fn key(id: u64) -> CallKey {
    CallKey { caller: "w#mcp".into(), id: id.to_string().into() }
}

pub fn start(id: u64) -> Start {
    Start {
        key: key(id),
        server: "files".into(),
        tool: "write".into(),
        content: CONTENT,
        attempt: 1,
        at: 1000 + id,
        safe: false,
    }
}

pub fn finish(id: u64) -> Finish {
    Finish { key: key(id), reply_id: format!("r{id}").into(), reply: reply(id), end: End::Done, at: 2000 + id }
}

pub fn reply(id: u64) -> Bytes {
    Bytes::from(format!("{{\"rpc\":{{\"result\":{id}}}}}"))
}

pub fn started(id: u64) -> Entry {
    Entry::Start(Arc::new(start(id)))
}
