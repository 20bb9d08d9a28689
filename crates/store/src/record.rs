//! The records of the message log. A batch is several records, which are synced together.

use bytes::{Buf, BufMut, Bytes};
use bytestring::ByteString;
use std::io;
use std::sync::Arc;
use toolbus_engine::{AttemptsNote, Batch, Fingerprint, Message, Sender, Seq, Settled};
use toolbus_wal::{Frame, Location, Log};

const PUT: u8 = 1;
const SETTLED: u8 = 2;
const ATTEMPTS: u8 = 3;
/// Logs of an older format have one in the header of each batch.
const NEXT_SEQ: u8 = toolbus_wal::BATCH;

/// A decoded record.
#[derive(Debug)]
pub enum Record {
    Put(Message),
    Settled(Vec<Settled>),
    Attempts(Vec<AttemptsNote>),
    /// The first sequence number that was not assigned yet. Those of elided messages have no other trace.
    NextSeq(Seq),
}

/// Stages the records of a batch and returns the locations of its messages. The next sequence number comes first: if the
/// batch is torn, the numbers of its lost messages are not assigned again.
pub fn stage_batch(log: &mut Log, batch: &Batch, next_seq: Seq) -> io::Result<Vec<Location>> {
    log.stage(|out| {
        out.put_u64_le(next_seq);
        NEXT_SEQ
    })?;
    let put = |message: &Arc<Message>| {
        log.stage(|out| {
            encode_message(message, out);
            PUT
        })
    };
    let puts = batch.puts.iter().map(put).collect::<io::Result<_>>()?;
    if !batch.settled.is_empty() {
        log.stage(|out| {
            batch.settled.iter().for_each(|settled| encode_settled(settled, out));
            SETTLED
        })?;
    }
    if !batch.attempts.is_empty() {
        log.stage(|out| {
            batch.attempts.iter().for_each(|note| encode_attempts(note, out));
            ATTEMPTS
        })?;
    }
    Ok(puts)
}

/// Decodes a record. Returns `None` if it is of another version.
pub fn read_record(frame: Frame) -> Option<Record> {
    let mut payload = frame.payload;
    match frame.kind {
        PUT => read_message(&mut payload).map(Record::Put),
        SETTLED => read_all(payload, read_settled).map(Record::Settled),
        ATTEMPTS => read_all(payload, read_attempts).map(Record::Attempts),
        NEXT_SEQ => payload.try_get_u64_le().ok().map(Record::NextSeq),
        _ => None,
    }
}

fn read_all<T>(mut payload: Bytes, read: impl Fn(&mut Bytes) -> Option<T>) -> Option<Vec<T>> {
    let mut all = Vec::new();
    while !payload.is_empty() {
        all.push(read(&mut payload)?);
    }
    Some(all)
}

fn encode_message(message: &Message, out: &mut Vec<u8>) {
    out.put_u64_le(message.seq);
    put_fingerprint(out, message.fingerprint);
    out.put_u64_le(message.content);
    out.put_u64_le(message.accepted_at);
    out.put_u64_le(message.expires_at.unwrap_or_default());
    put_text(out, Some(&message.mailbox));
    put_text(out, Some(&message.from.name));
    put_text(out, message.from.role.as_deref());
    put_text(out, Some(&message.id));
    put_text(out, message.correlation_id.as_deref());
    out.put_slice(&message.sealed);
}

fn read_message(payload: &mut Bytes) -> Option<Message> {
    if payload.len() < 48 {
        return None;
    }
    let seq = payload.get_u64_le();
    let fingerprint = take_fingerprint(payload);
    let content = payload.get_u64_le();
    let accepted_at = payload.get_u64_le();
    let expires_at = Some(payload.get_u64_le()).filter(|at| *at != 0);
    let mailbox: Arc<str> = Arc::from(&*take_text(payload)??);
    let name: Arc<str> = Arc::from(&*take_text(payload)??);
    let role = take_text(payload)?.map(|role| Arc::from(&*role));
    let id = take_text(payload)??;
    let correlation_id = take_text(payload)?;
    let from = Arc::new(Sender { name, role });
    let sealed = std::mem::take(payload);
    Some(Message { seq, mailbox, from, id, correlation_id, sealed, fingerprint, content, accepted_at, expires_at })
}

fn encode_settled(settled: &Settled, out: &mut Vec<u8>) {
    put_fingerprint(out, settled.fingerprint);
    out.put_u64_le(settled.content);
    out.put_u64_le(settled.at);
    put_text(out, settled.stored.as_ref().map(|(mailbox, _)| &**mailbox));
    out.put_u64_le(settled.stored.as_ref().map_or(0, |(_, seq)| *seq));
}

fn read_settled(payload: &mut Bytes) -> Option<Settled> {
    if payload.len() < 32 {
        return None;
    }
    let fingerprint = take_fingerprint(payload);
    let content = payload.get_u64_le();
    let at = payload.get_u64_le();
    let mailbox = take_text(payload)?;
    let seq = (payload.len() >= 8).then(|| payload.get_u64_le())?;
    let stored = mailbox.map(|mailbox| (Arc::from(&*mailbox), seq));
    Some(Settled { fingerprint, content, size: 0, at, stored })
}

fn encode_attempts(note: &AttemptsNote, out: &mut Vec<u8>) {
    put_text(out, Some(&note.mailbox));
    out.put_u64_le(note.seq);
    out.put_u32_le(note.attempts);
}

fn read_attempts(payload: &mut Bytes) -> Option<AttemptsNote> {
    let mailbox = Arc::from(&*take_text(payload)??);
    if payload.len() < 12 {
        return None;
    }
    Some(AttemptsNote { mailbox, seq: payload.get_u64_le(), attempts: payload.get_u32_le() })
}

fn put_fingerprint(out: &mut Vec<u8>, fingerprint: Fingerprint) {
    fingerprint.0.iter().for_each(|word| out.put_u64_le(*word));
}

fn take_fingerprint(payload: &mut Bytes) -> Fingerprint {
    Fingerprint([payload.get_u64_le(), payload.get_u64_le()])
}

const NO_TEXT: u16 = u16::MAX;
/// Precedes a length of 32 bits.
const LONG_TEXT: u16 = u16::MAX - 1;

fn put_text(out: &mut Vec<u8>, text: Option<&str>) {
    let Some(text) = text else { return out.put_u16_le(NO_TEXT) };
    match u16::try_from(text.len()) {
        Ok(length) if length < LONG_TEXT => out.put_u16_le(length),
        _ => {
            out.put_u16_le(LONG_TEXT);
            out.put_u32_le(text.len() as u32);
        }
    }
    out.put_slice(text.as_bytes());
}

/// Outer `None`: malformed. Inner `None`: the text is absent.
fn take_text(payload: &mut Bytes) -> Option<Option<ByteString>> {
    let length = match payload.try_get_u16_le().ok()? {
        NO_TEXT => return Some(None),
        LONG_TEXT => payload.try_get_u32_le().ok()? as usize,
        length => length.into(),
    };
    (length <= payload.len()).then(|| ByteString::try_from(payload.split_to(length)).ok()).flatten().map(Some)
}
