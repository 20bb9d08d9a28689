//! The on-disk format of an entry.
//!
//! ```text
//! record: magic u16 · kind u8 · length u32 · synced u64 · checksum u64 (over all the rest) · payload
//! texts and bytes in a payload: length u32 · content
//! ```
//!
//! `synced` is the number of bytes of the segment that were durable when the record was written. Unreadable bytes
//! before that offset are corruption; after it, they may be a torn write.
//!
//! Checksums are keyed with a secret of the folder: replies are untrusted, and must not be able to contain a valid
//! record.

use crate::entry::Entry;
use crate::payload;
use bytes::{Buf, BufMut, Bytes};
use xxhash_rust::xxh3::Xxh3;

pub const HEADER_BYTES: usize = 23;
pub const MAGIC: u16 = 0x4a54;
/// Maximum payload of a record in bytes. Messages on the bus are smaller.
pub const MAX_PAYLOAD: usize = 128 << 20;

/// The secret key of the checksums.
#[derive(Debug, Clone, Copy)]
pub struct ChecksumKey(pub u64);

impl ChecksumKey {
    fn of(self, kind: u8, synced_bytes: u64, payload: &[u8]) -> u64 {
        let mut hash = Xxh3::with_seed(self.0);
        hash.update(&[kind]);
        hash.update(&synced_bytes.to_le_bytes());
        hash.update(payload);
        hash.digest()
    }
}

pub fn encode(key: ChecksumKey, entry: &Entry, synced_bytes: u64, out: &mut Vec<u8>) {
    let at = out.len();
    out.resize(at + HEADER_BYTES, 0);
    let kind = payload::put_entry(entry, out);
    let length = out.len() - at - HEADER_BYTES;
    let checksum = key.of(kind, synced_bytes, &out[at + HEADER_BYTES..]);
    let mut header = &mut out[at..at + HEADER_BYTES];
    header.put_u16_le(MAGIC);
    header.put_u8(kind);
    header.put_u32_le(length as u32);
    header.put_u64_le(synced_bytes);
    header.put_u64_le(checksum);
}

/// A decoded record.
#[derive(Debug, PartialEq, Eq)]
pub struct Record {
    pub entry: Entry,
    pub length: usize,
    pub synced_bytes: u64,
}

/// Decodes the record at the start of the bytes. Returns `None` if it is truncated or its checksum is wrong.
pub fn decode(key: ChecksumKey, bytes: &Bytes) -> Option<Record> {
    let mut header = bytes.get(..HEADER_BYTES)?;
    (header.get_u16_le() == MAGIC).then_some(())?;
    let (kind, length) = (header.get_u8(), header.get_u32_le() as usize);
    let (synced_bytes, checksum) = (header.get_u64_le(), header.get_u64_le());
    let end = HEADER_BYTES.checked_add(length).filter(|end| length <= MAX_PAYLOAD && *end <= bytes.len())?;
    let payload = bytes.slice(HEADER_BYTES..end);
    (key.of(kind, synced_bytes, &payload) == checksum).then_some(())?;
    Some(Record { entry: payload::take_entry(kind, payload)?, length: end, synced_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{CallKey, Dead, End, Finish, Joined, Start, Task};
    use std::sync::Arc;

    const KEY: ChecksumKey = ChecksumKey(7);

    fn entries() -> Vec<Entry> {
        let key = CallKey { caller: "w#mcp".into(), id: "7c0e".into() };
        let to = CallKey { caller: "w#old".into(), id: "7c0d".into() };
        let (server, tool, content) = ("files".into(), "write".into(), [3; 32]);
        let start = Start { key: key.clone(), server, tool, content, attempt: 2, at: 1_763_000_000_000, safe: true };
        let (server, tool, request) = ("files".into(), "write".into(), Bytes::from_static(b"{\"rpc\":{}}"));
        let (reply_id, reply) = ("r".into(), request.clone());
        let finish = Finish { key: key.clone(), reply_id, reply, end: End::Unknown, at: 5 };
        let joined = Joined { key: key.clone(), to, content, at: 6 };
        let role = Some("operator".into());
        let task = Task { key: key.clone(), server, tool, content, request: request.clone(), role, ttl_ms: 9, at: 7 };
        let (server, tool, story) = ("files".into(), "write".into(), vec!["it died".to_owned(), "again".to_owned()]);
        let dead = Dead { key: key.clone(), server, tool, request, role: None, attempts: 3, story, at: 8 };
        vec![
            Entry::Start(Arc::new(start)),
            Entry::Finish(finish),
            Entry::Joined(joined),
            Entry::Task(task),
            Entry::Dead(dead),
            Entry::Dropped(key),
        ]
    }

    #[test]
    fn an_encoded_entry_is_decoded() {
        for entry in entries() {
            let mut bytes = Vec::new();
            encode(KEY, &entry, 77, &mut bytes);
            let length = bytes.len();
            bytes.extend_from_slice(b"trailing bytes");
            assert_eq!(decode(KEY, &Bytes::from(bytes)), Some(Record { entry, length, synced_bytes: 77 }));
        }
    }

    #[test]
    fn a_truncated_or_changed_record_or_one_with_another_key_is_rejected() {
        for entry in entries() {
            let mut bytes = Vec::new();
            encode(KEY, &entry, 77, &mut bytes);
            for end in 0..bytes.len() {
                assert_eq!(decode(KEY, &Bytes::copy_from_slice(&bytes[..end])), None, "cut at {end}");
            }
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                assert_eq!(decode(KEY, &Bytes::from(changed)), None, "changed at {at}");
            }
            assert_eq!(decode(ChecksumKey(8), &Bytes::from(bytes)), None);
        }
    }
}
