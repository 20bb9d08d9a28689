//! The on-disk format. A batch is a header and records; every record has its own checksum, so that corruption of one
//! record does not affect its neighbours.
//!
//! ```text
//! batch:  magic u32 · body length u32 · number u64 · next seq u64 · records u32 · header checksum u64
//! record: length u32 · checksum u64 (over kind and payload) · kind u8 · payload
//! ```
//!
//! Checksums are keyed with a secret of the data folder. After corruption the log is scanned for intact records, also
//! inside message bodies, which are untrusted: without the key a sender could embed forged batches in a body.

use bytes::{Buf, BufMut, Bytes};
use bytestring::ByteString;
use std::sync::Arc;
use toolbus_engine::{AttemptsNote, Batch, Fingerprint, Message, Sender, Settled};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub const MAGIC: u32 = 0x5442_4c31;
pub const HEADER_BYTES: usize = 36;
const HEADER_CHECKSUM_BYTES: usize = 8;
pub const RECORD_HEADER_BYTES: usize = 13;

/// The secret key of the checksums.
#[derive(Clone, Copy)]
pub struct ChecksumKey(pub u64);

impl ChecksumKey {
    fn checksum(self, bytes: &[u8]) -> u64 {
        xxh3_64_with_seed(bytes, self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    pub body_bytes: u32,
    pub number: u64,
    pub next_seq: u64,
    pub records: u32,
}

impl BatchHeader {
    pub fn write(&self, key: ChecksumKey, out: &mut [u8]) {
        let mut cursor = &mut out[..HEADER_BYTES];
        cursor.put_u32_le(MAGIC);
        cursor.put_u32_le(self.body_bytes);
        cursor.put_u64_le(self.number);
        cursor.put_u64_le(self.next_seq);
        cursor.put_u32_le(self.records);
        let (content, checksum) = out[..HEADER_BYTES].split_at_mut(HEADER_BYTES - HEADER_CHECKSUM_BYTES);
        checksum.copy_from_slice(&key.checksum(content).to_le_bytes());
    }

    pub fn read(key: ChecksumKey, bytes: &[u8]) -> Option<Self> {
        let header = bytes.get(..HEADER_BYTES)?;
        let mut cursor = header;
        (cursor.get_u32_le() == MAGIC).then_some(())?;
        let parsed = Self {
            body_bytes: cursor.get_u32_le(),
            number: cursor.get_u64_le(),
            next_seq: cursor.get_u64_le(),
            records: cursor.get_u32_le(),
        };
        let content = &header[..HEADER_BYTES - HEADER_CHECKSUM_BYTES];
        (cursor.get_u64_le() == key.checksum(content)).then_some(parsed)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Put = 1,
    Settled = 2,
    Attempts = 3,
}

/// A decoded record with a valid checksum.
#[derive(Debug)]
pub enum Record {
    Put(Message),
    Settled(Vec<Settled>),
    Attempts(Vec<AttemptsNote>),
}

/// The byte range of a message record within the encoded batch.
pub struct PutRange {
    pub offset: usize,
    pub length: u32,
}

/// Encodes a batch including its header and returns the byte ranges of its messages.
pub fn encode_batch(key: ChecksumKey, batch: &Batch, number: u64, next_seq: u64, out: &mut Vec<u8>) -> Vec<PutRange> {
    let start = out.len();
    out.resize(start + HEADER_BYTES, 0);
    let mut records = 0;
    let mut put_ranges = Vec::with_capacity(batch.puts.len());
    for message in &batch.puts {
        let offset = out.len() - start;
        encode_record(key, out, Kind::Put, |out| encode_message(message, out));
        put_ranges.push(PutRange { offset, length: (out.len() - start - offset) as u32 });
        records += 1;
    }
    if !batch.settled.is_empty() {
        encode_record(key, out, Kind::Settled, |out| {
            batch.settled.iter().for_each(|settled| encode_settled(settled, out))
        });
        records += 1;
    }
    if !batch.attempts.is_empty() {
        encode_record(key, out, Kind::Attempts, |out| {
            batch.attempts.iter().for_each(|note| encode_attempts(note, out))
        });
        records += 1;
    }
    let body_bytes = (out.len() - start - HEADER_BYTES) as u32;
    BatchHeader { body_bytes, number, next_seq, records }.write(key, &mut out[start..]);
    put_ranges
}

fn encode_record(key: ChecksumKey, out: &mut Vec<u8>, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) {
    encode_kind(key, out, kind as u8, write);
}

/// A record with a right checksum, whatever its payload is.
#[cfg(feature = "fuzzing")]
pub fn encode_raw(key: ChecksumKey, kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_kind(key, &mut out, kind, |out| out.extend_from_slice(payload));
    out
}

fn encode_kind(key: ChecksumKey, out: &mut Vec<u8>, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.resize(start + RECORD_HEADER_BYTES - 1, 0);
    out.push(kind);
    write(out);
    let length = (out.len() - start - RECORD_HEADER_BYTES) as u32;
    let checksum = key.checksum(&out[start + RECORD_HEADER_BYTES - 1..]);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4..start + 12].copy_from_slice(&checksum.to_le_bytes());
}

/// Splits the first record off a batch's body. Returns `None` if its length exceeds the body; the rest is unreadable
/// then.
pub fn split_record(body: &mut Bytes) -> Option<Bytes> {
    let length = u32::from_le_bytes(body.get(..4)?.try_into().ok()?) as usize;
    let whole = length.checked_add(RECORD_HEADER_BYTES)?;
    (whole <= body.len()).then(|| body.split_to(whole))
}

/// A byte range of a corrupt batch.
#[derive(Debug)]
pub enum Piece {
    Whole { at: usize, length: usize, record: Record },
    Unreadable { at: usize, length: usize },
}

/// Finds all intact records at any offset, so that a corrupt length field does not hide the records after it.
pub fn pieces(key: ChecksumKey, bytes: &Bytes) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let (mut at, mut bad_from) = (0, 0);
    while at < bytes.len() {
        let Some((length, record)) = whole_record_at(key, bytes, at) else {
            at += 1;
            continue;
        };
        if bad_from < at {
            pieces.push(Piece::Unreadable { at: bad_from, length: at - bad_from });
        }
        pieces.push(Piece::Whole { at, length, record });
        at += length;
        bad_from = at;
    }
    if bad_from < at {
        pieces.push(Piece::Unreadable { at: bad_from, length: at - bad_from });
    }
    pieces
}

fn whole_record_at(key: ChecksumKey, bytes: &Bytes, at: usize) -> Option<(usize, Record)> {
    let rest = &bytes[at..];
    let length = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?) as usize + RECORD_HEADER_BYTES;
    // Cheap filter before the checksum is computed.
    let plausible = length <= rest.len() && (Kind::Put as u8..=Kind::Attempts as u8).contains(&rest[12]);
    let record = plausible.then(|| read_record(key, bytes.slice(at..at + length)))??;
    Some((length, record))
}

/// Decodes one record. Returns `None` if its length or checksum is wrong.
pub fn read_record(key: ChecksumKey, mut record: Bytes) -> Option<Record> {
    if record.len() < RECORD_HEADER_BYTES {
        return None;
    }
    let length = record.get_u32_le() as usize;
    let checksum = record.get_u64_le();
    if length + 1 != record.len() || key.checksum(&record) != checksum {
        return None;
    }
    match record.get_u8() {
        1 => read_message(&mut record).map(Record::Put),
        2 => read_all(record, read_settled).map(Record::Settled),
        3 => read_all(record, read_attempts).map(Record::Attempts),
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
