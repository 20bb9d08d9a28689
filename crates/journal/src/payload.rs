//! Encodes and decodes the fields of each kind of entry.

use crate::entry::{CallKey, Dead, End, Entry, Finish, Joined, Start, Task};
use bytes::{Buf, BufMut, Bytes};
use bytestring::ByteString;
use std::sync::Arc;

const START: u8 = 1;
const FINISH: u8 = 2;
const JOINED: u8 = 3;
const TASK: u8 = 4;
const DEAD: u8 = 5;
const DROPPED: u8 = 6;

/// Writes the fields of an entry and returns its kind.
pub fn put_entry(entry: &Entry, out: &mut Vec<u8>) -> u8 {
    put_key(out, entry.key());
    match entry {
        Entry::Start(start) => {
            put_tool(out, &start.server, &start.tool);
            out.put_slice(&start.content);
            out.put_u32_le(start.attempt);
            out.put_u64_le(start.at);
            out.put_u8(start.safe.into());
            START
        }
        Entry::Finish(finish) => {
            put(out, finish.reply_id.as_bytes());
            out.put_u8(end_number(finish.end));
            out.put_u64_le(finish.at);
            put(out, &finish.reply);
            FINISH
        }
        Entry::Joined(joined) => {
            put_key(out, &joined.to);
            out.put_slice(&joined.content);
            out.put_u64_le(joined.at);
            JOINED
        }
        Entry::Task(task) => {
            put_tool(out, &task.server, &task.tool);
            out.put_slice(&task.content);
            put_optional(out, task.role.as_ref());
            out.put_u64_le(task.ttl_ms);
            out.put_u64_le(task.at);
            put(out, &task.request);
            TASK
        }
        Entry::Dead(dead) => {
            put_tool(out, &dead.server, &dead.tool);
            put_optional(out, dead.role.as_ref());
            out.put_u32_le(dead.attempts);
            out.put_u64_le(dead.at);
            out.put_u32_le(dead.story.len() as u32);
            dead.story.iter().for_each(|line| put(out, line.as_bytes()));
            put(out, &dead.request);
            DEAD
        }
        Entry::Dropped(_) => DROPPED,
    }
}

/// Decodes an entry of this kind. Returns `None` if the payload is truncated or has trailing bytes.
pub fn take_entry(kind: u8, mut payload: Bytes) -> Option<Entry> {
    let from = &mut payload;
    let key = take_key(from)?;
    let entry = match kind {
        START => Entry::Start(Arc::new(Start {
            key,
            server: take_text(from)?,
            tool: take_text(from)?,
            content: take_array(from)?,
            attempt: take_u32(from)?,
            at: take_u64(from)?,
            safe: take_array::<1>(from)? == [1],
        })),
        FINISH => Entry::Finish(Finish {
            key,
            reply_id: take_text(from)?,
            end: end_of(take_array::<1>(from)?[0])?,
            at: take_u64(from)?,
            reply: take(from)?,
        }),
        JOINED => Entry::Joined(Joined { key, to: take_key(from)?, content: take_array(from)?, at: take_u64(from)? }),
        TASK => Entry::Task(Task {
            key,
            server: take_text(from)?,
            tool: take_text(from)?,
            content: take_array(from)?,
            role: take_optional(from)?,
            ttl_ms: take_u64(from)?,
            at: take_u64(from)?,
            request: take(from)?,
        }),
        DEAD => Entry::Dead(Dead {
            key,
            server: take_text(from)?,
            tool: take_text(from)?,
            role: take_optional(from)?,
            attempts: take_u32(from)?,
            at: take_u64(from)?,
            story: take_story(from)?,
            request: take(from)?,
        }),
        DROPPED => Entry::Dropped(key),
        _ => return None,
    };
    payload.is_empty().then_some(entry)
}

fn end_number(end: End) -> u8 {
    match end {
        End::Done => 0,
        End::Failed => 1,
        End::Cancelled => 2,
        End::Unknown => 3,
    }
}

fn end_of(number: u8) -> Option<End> {
    [End::Done, End::Failed, End::Cancelled, End::Unknown].into_iter().find(|end| end_number(*end) == number)
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32_le(bytes.len() as u32);
    out.put_slice(bytes);
}

fn put_key(out: &mut Vec<u8>, key: &CallKey) {
    put(out, key.caller.as_bytes());
    put(out, key.id.as_bytes());
}

fn put_tool(out: &mut Vec<u8>, server: &ByteString, tool: &ByteString) {
    put(out, server.as_bytes());
    put(out, tool.as_bytes());
}

fn put_optional(out: &mut Vec<u8>, text: Option<&ByteString>) {
    out.put_u8(text.is_some().into());
    if let Some(text) = text {
        put(out, text.as_bytes());
    }
}

fn take(from: &mut Bytes) -> Option<Bytes> {
    let length = take_u32(from)? as usize;
    (length <= from.len()).then(|| from.split_to(length))
}

fn take_text(from: &mut Bytes) -> Option<ByteString> {
    ByteString::try_from(take(from)?).ok()
}

fn take_key(from: &mut Bytes) -> Option<CallKey> {
    Some(CallKey { caller: take_text(from)?, id: take_text(from)? })
}

fn take_optional(from: &mut Bytes) -> Option<Option<ByteString>> {
    match take_array::<1>(from)? {
        [0] => Some(None),
        _ => take_text(from).map(Some),
    }
}

fn take_story(from: &mut Bytes) -> Option<Vec<String>> {
    let lines = take_u32(from)?;
    (0..lines).map(|_| take_text(from).map(|line| line.to_string())).collect()
}

fn take_u32(from: &mut Bytes) -> Option<u32> {
    take_array(from).map(u32::from_le_bytes)
}

fn take_u64(from: &mut Bytes) -> Option<u64> {
    take_array(from).map(u64::from_le_bytes)
}

fn take_array<const N: usize>(from: &mut Bytes) -> Option<[u8; N]> {
    let array = from.get(..N)?.try_into().ok()?;
    from.advance(N);
    Some(array)
}
