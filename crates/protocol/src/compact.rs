//! The compact framing: a binary WebSocket message holds one or more frames, each an opcode, the length of its content
//! as a varint, and the content. Unknown opcodes are skipped by their length. Sealed envelopes are copied unchanged.

use crate::frames::*;
use crate::varint::{self, put, put_str, take, take_flags, take_slice, take_str, take_u8};
use crate::{AgentRef, Body, BrokerFrame, ClientFrame, DecodeError, Envelope, check_name};
use bytes::{BufMut, Bytes, BytesMut};
use bytestring::ByteString;

mod op {
    pub const SUBSCRIBE: u8 = 0x01;
    pub const DELIVER: u8 = 0x02;
    pub const ACK_TAGS: u8 = 0x03;
    pub const MESSAGE: u8 = 0x41;
    pub const RECEIPTS: u8 = 0x42;
    pub const EVENT: u8 = 0x04;
    /// Wraps the JSON form of a frame that is too rare to need a binary one.
    pub const JSON: u8 = 0x7b;
}

const HAS_DEADLINE: u8 = 1;
const HAS_ACK: u8 = 2;
const HAS_ROLE: u8 = 4;
const HAS_TAG: u8 = 8;
const HAS_AGE: u8 = 16;

/// Appends a client frame.
pub fn write_client(frame: &ClientFrame, me: &AgentRef, out: &mut BytesMut) {
    match frame {
        ClientFrame::Subscribe => framed(out, op::SUBSCRIBE, 0, |_| {}),
        ClientFrame::Deliver(deliver) => write_deliver(deliver, out),
        ClientFrame::AckTags { tags } => write_ack_tags(tags, out),
        ClientFrame::Event(event) => write_event(event, out),
        rare => write_json(&crate::json::write_client(rare, me), out),
    }
}

/// Appends a broker frame.
pub fn write_broker(frame: &BrokerFrame, out: &mut BytesMut) {
    match frame {
        BrokerFrame::Message(push) => write_push(push, out),
        BrokerFrame::Receipts { ranges } => write_receipts(ranges, out),
        BrokerFrame::Event(event) => write_event(event, out),
        rare => {
            let text =
                crate::json::write_broker(rare).expect("only messages and events have bodies that can be invalid");
            write_json(&text, out);
        }
    }
}

/// Takes the next client frame off the input. Returns `None` at the end of the input. After an error the input is at
/// the next frame, or at its end if the frame was truncated.
pub fn read_client(input: &mut Bytes) -> Result<Option<ClientFrame>, DecodeError> {
    let Some((opcode, mut rest)) = next_frame(input)? else { return Ok(None) };
    Ok(Some(match opcode {
        op::SUBSCRIBE => ClientFrame::Subscribe,
        op::DELIVER => ClientFrame::Deliver(read_deliver(rest)?),
        op::ACK_TAGS => ClientFrame::AckTags { tags: read_list(&mut rest)? },
        op::EVENT => ClientFrame::Event(read_event(rest)?),
        op::JSON => crate::json::read_client(&rest)?,
        other => ClientFrame::Unknown { kind: format!("opcode {other:#04x}") },
    }))
}

/// Takes the next broker frame off the input; see [`read_client`].
pub fn read_broker(input: &mut Bytes) -> Result<Option<BrokerFrame>, DecodeError> {
    let Some((opcode, mut rest)) = next_frame(input)? else { return Ok(None) };
    Ok(Some(match opcode {
        op::MESSAGE => BrokerFrame::Message(read_push(rest)?),
        op::RECEIPTS => BrokerFrame::Receipts { ranges: read_ranges(&mut rest)? },
        op::EVENT => BrokerFrame::Event(read_event(rest)?),
        op::JSON => crate::json::read_broker(&rest)?,
        other => BrokerFrame::Unknown { kind: format!("opcode {other:#04x}") },
    }))
}

fn framed(out: &mut BytesMut, opcode: u8, length: usize, write: impl FnOnce(&mut BytesMut)) {
    out.reserve(length + 6);
    out.put_u8(opcode);
    put(out, length as u64);
    let start = out.len();
    write(out);
    debug_assert_eq!(out.len() - start, length, "the encoded length equals the written one");
}

fn next_frame(input: &mut Bytes) -> Result<Option<(u8, Bytes)>, DecodeError> {
    if input.is_empty() {
        return Ok(None);
    }
    let opcode = take_u8(input)?;
    let rest = take_slice(input);
    if rest.is_err() {
        // The start of the next frame is unknown.
        input.clear();
    }
    Ok(Some((opcode, rest?)))
}

fn write_json(text: &str, out: &mut BytesMut) {
    framed(out, op::JSON, text.len(), |out| out.put_slice(text.as_bytes()));
}

fn write_deliver(deliver: &Deliver, out: &mut BytesMut) {
    let sealed = deliver.envelope.sealed();
    let numbers = [deliver.deadline_ms, deliver.ack, deliver.age_ms];
    let length = 1
        + varint::str_len(&deliver.to)
        + numbers.iter().flatten().map(|n| varint::len(*n)).sum::<usize>()
        + sealed.len();
    framed(out, op::DELIVER, length, |out| {
        let flags =
            flag(deliver.deadline_ms, HAS_DEADLINE) | flag(deliver.ack, HAS_ACK) | flag(deliver.age_ms, HAS_AGE);
        out.put_u8(flags);
        put_str(out, &deliver.to);
        numbers.iter().flatten().for_each(|n| put(out, *n));
        out.put_slice(sealed);
    });
}

fn read_deliver(mut rest: Bytes) -> Result<Deliver, DecodeError> {
    let flags = take_flags(&mut rest, HAS_DEADLINE | HAS_ACK | HAS_AGE)?;
    let to = take_name(&mut rest)?;
    let mut number = |flag| (flags & flag != 0).then(|| take(&mut rest)).transpose();
    let (deadline_ms, ack, age_ms) = (number(HAS_DEADLINE)?, number(HAS_ACK)?, number(HAS_AGE)?);
    Ok(Deliver { to, envelope: Envelope::from_sealed(rest)?, deadline_ms, ack, age_ms })
}

/// The fields of [`Push`] by reference, so that the broker can encode a message without copying names.
#[derive(Debug, Clone, Copy)]
pub struct PushParts<'a> {
    /// Tag of the delivery.
    pub tag: Option<u64>,
    /// 1 for the first delivery.
    pub attempt: u32,
    /// Name of the sender.
    pub from: &'a str,
    /// Role of the sender.
    pub role: Option<&'a str>,
    /// Remaining time to live.
    pub deadline_ms: Option<u64>,
    /// The sealed envelope.
    pub sealed: &'a [u8],
}

fn write_push(push: &Push, out: &mut BytesMut) {
    let parts = PushParts {
        tag: push.tag,
        attempt: push.attempt,
        from: &push.from.session_id,
        role: push.from.role.as_deref(),
        deadline_ms: push.deadline_ms,
        sealed: push.envelope.sealed(),
    };
    write_push_parts(parts, out);
}

/// Appends a `message` frame.
pub fn write_push_parts(push: PushParts<'_>, out: &mut BytesMut) {
    let length = 1
        + push.tag.map_or(0, varint::len)
        + varint::len(push.attempt.into())
        + varint::str_len(push.from)
        + push.role.map_or(0, varint::str_len)
        + push.deadline_ms.map_or(0, varint::len)
        + push.sealed.len();
    framed(out, op::MESSAGE, length, |out| {
        out.put_u8(flag(push.tag, HAS_TAG) | flag(push.role, HAS_ROLE) | flag(push.deadline_ms, HAS_DEADLINE));
        if let Some(tag) = push.tag {
            put(out, tag);
        }
        put(out, push.attempt.into());
        put_str(out, push.from);
        if let Some(role) = push.role {
            put_str(out, role);
        }
        if let Some(deadline) = push.deadline_ms {
            put(out, deadline);
        }
        out.put_slice(push.sealed);
    });
}

fn read_push(mut rest: Bytes) -> Result<Push, DecodeError> {
    let flags = take_flags(&mut rest, HAS_TAG | HAS_ROLE | HAS_DEADLINE)?;
    let tag = (flags & HAS_TAG != 0).then(|| take(&mut rest)).transpose()?;
    let attempt = u32::try_from(take(&mut rest)?).map_err(|_| DecodeError::BadNumber)?.max(1);
    let session_id = take_name(&mut rest)?;
    let role = (flags & HAS_ROLE != 0).then(|| take_name(&mut rest)).transpose()?;
    let deadline_ms = (flags & HAS_DEADLINE != 0).then(|| take(&mut rest)).transpose()?;
    let from = AgentRef { session_id, role };
    Ok(Push { tag, attempt, from, deadline_ms, envelope: Envelope::from_sealed(rest)? })
}

fn write_ack_tags(tags: &[u64], out: &mut BytesMut) {
    let length = varint::len(tags.len() as u64) + tags.iter().map(|tag| varint::len(*tag)).sum::<usize>();
    framed(out, op::ACK_TAGS, length, |out| {
        put(out, tags.len() as u64);
        tags.iter().for_each(|tag| put(out, *tag));
    });
}

fn read_list(rest: &mut Bytes) -> Result<Vec<u64>, DecodeError> {
    let count = take(rest)?;
    // Each entry takes at least one byte, so this bounds the allocation by the size of the input.
    if count > rest.len() as u64 {
        return Err(DecodeError::Truncated);
    }
    (0..count).map(|_| take(rest)).collect()
}

/// Delta-encodes ranges: the distance from the end of the previous range, wrapping so that any order works, then the
/// length of the range minus one.
fn write_receipts(ranges: &[(u64, u64)], out: &mut BytesMut) {
    let mut numbers = Vec::with_capacity(ranges.len() * 2 + 1);
    numbers.push(ranges.len() as u64);
    let mut end = 0u64;
    for (first, last) in ranges {
        numbers.push(first.wrapping_sub(end));
        numbers.push(last.wrapping_sub(*first));
        end = *last;
    }
    let length = numbers.iter().map(|n| varint::len(*n)).sum();
    framed(out, op::RECEIPTS, length, |out| numbers.iter().for_each(|n| put(out, *n)));
}

fn read_ranges(rest: &mut Bytes) -> Result<Vec<(u64, u64)>, DecodeError> {
    let count = take(rest)?;
    if count > rest.len() as u64 {
        return Err(DecodeError::Truncated);
    }
    let mut end = 0u64;
    (0..count)
        .map(|_| {
            let first = end.wrapping_add(take(rest)?);
            let last = first.checked_add(take(rest)?).ok_or(DecodeError::BadNumber)?;
            end = last;
            Ok((first, last))
        })
        .collect()
}

fn write_event(event: &Event, out: &mut BytesMut) {
    let body = event.body.as_bytes();
    let length = varint::str_len(&event.peer) + varint::str_len(&event.correlation_id) + body.len();
    framed(out, op::EVENT, length, |out| {
        put_str(out, &event.peer);
        put_str(out, &event.correlation_id);
        out.put_slice(body);
    });
}

fn read_event(mut rest: Bytes) -> Result<Event, DecodeError> {
    let peer = take_name(&mut rest)?;
    let correlation_id = take_name(&mut rest)?;
    Ok(Event { peer, correlation_id, body: Body::from_trusted(rest) })
}

fn take_name(rest: &mut Bytes) -> Result<ByteString, DecodeError> {
    let name = take_str(rest)?;
    check_name(&name).map_err(DecodeError::BadName)?;
    Ok(name)
}

fn flag<T>(option: Option<T>, bit: u8) -> u8 {
    if option.is_some() { bit } else { 0 }
}
