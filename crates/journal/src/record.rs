//! The bytes of an entry.
//!
//! ```text
//! record: magic u16 · kind u8 · length u32 · checksum u64 (over all the rest) · payload
//! texts and bytes in a payload: length u32 · content
//! ```
//!
//! Checksums are keyed with a secret of the folder: a reply comes from outside and must not be able to contain a record.

use crate::entry::{CallKey, Entry, Finish, Start};
use bytes::{Buf, BufMut, Bytes};
use bytestring::ByteString;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

pub const HEADER_BYTES: usize = 15;
pub const MAGIC: u16 = 0x4a54;
/// No entry is larger: what the bus can't carry is no reply.
pub const MAX_PAYLOAD: usize = 64 << 20;

const START: u8 = 1;
const FINISH: u8 = 2;
const COLLECTED: u8 = 3;

/// The secret in the checksums.
#[derive(Debug, Clone, Copy)]
pub struct ChecksumKey(pub u64);

impl ChecksumKey {
    fn of(self, kind: u8, payload: &[u8]) -> u64 {
        let mut hash = Xxh3::with_seed(self.0);
        hash.update(&[kind]);
        hash.update(payload);
        hash.digest()
    }
}

pub fn encode(key: ChecksumKey, entry: &Entry, out: &mut Vec<u8>) {
    let at = out.len();
    out.resize(at + HEADER_BYTES, 0);
    let kind = match entry {
        Entry::Start(start) => {
            put_key(out, &start.key);
            put(out, start.server.as_bytes());
            put(out, start.tool.as_bytes());
            out.put_slice(&start.content);
            out.put_u32_le(start.attempt);
            out.put_u64_le(start.at);
            START
        }
        Entry::Finish(finish) => {
            put_key(out, &finish.key);
            out.put_u64_le(finish.at);
            put(out, &finish.reply);
            FINISH
        }
        Entry::Collected(key) => {
            put_key(out, key);
            COLLECTED
        }
    };
    let length = out.len() - at - HEADER_BYTES;
    let checksum = key.of(kind, &out[at + HEADER_BYTES..]);
    let mut header = &mut out[at..at + HEADER_BYTES];
    header.put_u16_le(MAGIC);
    header.put_u8(kind);
    header.put_u32_le(length as u32);
    header.put_u64_le(checksum);
}

/// The entry at the beginning of these bytes and how long its record is, if there is a whole one.
pub fn decode(key: ChecksumKey, bytes: &Bytes) -> Option<(Entry, usize)> {
    let mut header = bytes.get(..HEADER_BYTES)?;
    (header.get_u16_le() == MAGIC).then_some(())?;
    let (kind, length, checksum) = (header.get_u8(), header.get_u32_le() as usize, header.get_u64_le());
    let end = HEADER_BYTES.checked_add(length).filter(|end| length <= MAX_PAYLOAD && *end <= bytes.len())?;
    let mut payload = bytes.slice(HEADER_BYTES..end);
    (key.of(kind, &payload) == checksum).then_some(())?;
    let entry = match kind {
        START => Entry::Start(Arc::new(Start {
            key: take_key(&mut payload)?,
            server: take_text(&mut payload)?,
            tool: take_text(&mut payload)?,
            content: take_array(&mut payload)?,
            attempt: u32::from_le_bytes(take_array(&mut payload)?),
            at: u64::from_le_bytes(take_array(&mut payload)?),
        })),
        FINISH => Entry::Finish(Finish {
            key: take_key(&mut payload)?,
            at: u64::from_le_bytes(take_array(&mut payload)?),
            reply: take(&mut payload)?,
        }),
        COLLECTED => Entry::Collected(take_key(&mut payload)?),
        _ => return None,
    };
    payload.is_empty().then_some((entry, end))
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32_le(bytes.len() as u32);
    out.put_slice(bytes);
}

fn put_key(out: &mut Vec<u8>, key: &CallKey) {
    put(out, key.caller.as_bytes());
    put(out, key.id.as_bytes());
}

fn take(payload: &mut Bytes) -> Option<Bytes> {
    let length = u32::from_le_bytes(take_array(payload)?) as usize;
    (length <= payload.len()).then(|| payload.split_to(length))
}

fn take_text(payload: &mut Bytes) -> Option<ByteString> {
    ByteString::try_from(take(payload)?).ok()
}

fn take_key(payload: &mut Bytes) -> Option<CallKey> {
    Some(CallKey { caller: take_text(payload)?, id: take_text(payload)? })
}

fn take_array<const N: usize>(payload: &mut Bytes) -> Option<[u8; N]> {
    let array = payload.get(..N)?.try_into().ok()?;
    payload.advance(N);
    Some(array)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ChecksumKey = ChecksumKey(7);

    fn entries() -> Vec<Entry> {
        let key = CallKey { caller: "w#mcp".into(), id: "7c0e".into() };
        let start = Start {
            key: key.clone(),
            server: "files".into(),
            tool: "write".into(),
            content: [3; 32],
            attempt: 2,
            at: 1_763_000_000_000,
        };
        let finish = Finish { key: key.clone(), reply: Bytes::from_static(b"{\"rpc\":{}}"), at: 5 };
        vec![Entry::Start(Arc::new(start)), Entry::Finish(finish), Entry::Collected(key)]
    }

    #[test]
    fn what_is_written_is_read_again() {
        for entry in entries() {
            let mut bytes = Vec::new();
            encode(KEY, &entry, &mut bytes);
            let length = bytes.len();
            bytes.extend_from_slice(b"what follows");
            assert_eq!(decode(KEY, &Bytes::from(bytes)), Some((entry, length)));
        }
    }

    #[test]
    fn a_record_that_is_cut_changed_or_of_another_folder_is_none() {
        for entry in entries() {
            let mut bytes = Vec::new();
            encode(KEY, &entry, &mut bytes);
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
