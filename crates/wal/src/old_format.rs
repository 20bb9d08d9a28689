//! Formats that are only read: logs written before both logs had one format contain them until their segments are
//! reclaimed.
//!
//! ```text
//! journal:     magic u16 · kind u8 · length u32 · synced u64 · checksum u64 · payload
//! store batch: magic u32 · body length u32 · number u64 · next seq u64 · records u32 · checksum u64
//! its records: length u32 · checksum u64 (over kind and payload) · kind u8 · payload
//! ```

use crate::frame::{ChecksumKey, Frame, HEADER_BYTES, payload_of};
use bytes::{Buf, Bytes};
use std::ops::Range;
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// The kind of a frame that is the header of a batch. Its payload is the next sequence number.
pub const BATCH: u8 = 4;

const JOURNAL_MAGIC: u16 = 0x4a54;
const BATCH_MAGIC: u32 = 0x5442_4c31;
const BATCH_BYTES: usize = 36;
const RECORD_BYTES: usize = 13;
/// The kinds of the records of a batch.
const KINDS: Range<u8> = 1..BATCH;

/// Decodes the record or batch header at the start of the bytes.
pub(crate) fn decode(key: ChecksumKey, segment: u32, offset: u64, bytes: &Bytes) -> Option<Frame> {
    if bytes.starts_with(&JOURNAL_MAGIC.to_le_bytes()) {
        return journal_record(key, segment, offset, bytes);
    }
    if bytes.starts_with(&BATCH_MAGIC.to_le_bytes()) {
        return batch_header(key, segment, offset, bytes);
    }
    let mut header = bytes.get(..RECORD_BYTES)?;
    let (length, checksum, kind) = (header.get_u32_le(), header.get_u64_le(), header.get_u8());
    let payload = KINDS.contains(&kind).then(|| payload_of(bytes, RECORD_BYTES, length))??;
    let is_intact = xxh3_64_with_seed(&bytes[RECORD_BYTES - 1..RECORD_BYTES + payload.len()], key.0) == checksum;
    is_intact.then(|| Frame::new(segment, offset, RECORD_BYTES, kind, 0, payload))?
}

fn journal_record(key: ChecksumKey, segment: u32, offset: u64, bytes: &Bytes) -> Option<Frame> {
    let mut header = bytes.get(2..HEADER_BYTES)?;
    let (kind, length, synced) = (header.get_u8(), header.get_u32_le(), header.get_u64_le());
    let payload = payload_of(bytes, HEADER_BYTES, length)?;
    let mut hash = Xxh3::with_seed(key.0);
    hash.update(&[kind]);
    hash.update(&synced.to_le_bytes());
    hash.update(&payload);
    let is_intact = hash.digest() == header.get_u64_le();
    is_intact.then(|| Frame::new(segment, offset, HEADER_BYTES, kind, synced, payload))?
}

/// A batch was synced before the next one was written, so everything before it was durable.
fn batch_header(key: ChecksumKey, segment: u32, offset: u64, bytes: &Bytes) -> Option<Frame> {
    let content = bytes.get(..BATCH_BYTES - 8)?;
    let checksum = bytes.get(BATCH_BYTES - 8..BATCH_BYTES)?.get_u64_le();
    (xxh3_64_with_seed(content, key.0) == checksum).then_some(())?;
    let mut frame = Frame::new(segment, offset, 0, BATCH, offset, bytes.slice(16..24))?;
    frame.location.length = BATCH_BYTES as u32;
    Some(frame)
}

pub(crate) fn length_of(bytes: &[u8], length: impl Fn(usize, usize) -> Option<usize>) -> Option<usize> {
    if bytes.starts_with(&JOURNAL_MAGIC.to_le_bytes()) {
        return length(3, HEADER_BYTES);
    }
    if bytes.starts_with(&BATCH_MAGIC.to_le_bytes()) {
        return Some(BATCH_BYTES);
    }
    // The kind is a cheap filter: these records have no magic number.
    bytes.get(RECORD_BYTES - 1).filter(|kind| KINDS.contains(kind)).and_then(|_| length(0, RECORD_BYTES))
}
