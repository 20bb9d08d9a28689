//! The on-disk format of a record.
//!
//! ```text
//! magic u16 · kind u8 · length u32 · synced u64 · checksum u64 · payload
//! ```
//!
//! `synced` is the number of bytes of the segment that were durable when the record was encoded. Unreadable bytes before
//! that offset are corruption; after it, they may be a torn write.
//!
//! The checksum covers everything else and the location of the record, so that a record that a file system brings back
//! at another place (a block of a removed segment) is not read. It is keyed with a secret of the folder: payloads are
//! untrusted, and must not be able to contain a valid record.

use crate::old_format;
use bytes::{Buf, BufMut, Bytes};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The secret key of the checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChecksumKey(pub u64);

/// The location of a record in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// The number of the segment, from 1.
    pub segment: u32,
    /// The offset of the record in the segment.
    pub offset: u32,
    /// The length of the record with its header.
    pub length: u32,
}

/// A record with a valid checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Where it was read.
    pub location: Location,
    /// The meaning of the payload, which belongs to the user of the log. Not zero, which is a record of the log itself.
    pub kind: u8,
    /// The content.
    pub payload: Bytes,
    /// Number of bytes of its segment that were durable when it was encoded.
    pub synced: u64,
}

/// Maximum payload of a record in bytes. Messages on the bus are smaller.
pub const MAX_PAYLOAD: usize = 128 << 20;
/// The kind of a record without content, which only proves how much of its segment is durable.
pub(crate) const PROOF: u8 = 0;
/// Bytes of a record before its payload.
pub const HEADER_BYTES: usize = 23;
const MAGIC: u16 = 0x4c54;
const CHECKSUM_AT: usize = 15;

impl ChecksumKey {
    /// Encodes a record that will be written at that place. `write` appends its payload and returns its kind.
    pub(crate) fn encode(
        self,
        segment: u32,
        offset: u64,
        synced: u64,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut Vec<u8>) -> u8,
    ) {
        let start = out.len();
        out.resize(start + HEADER_BYTES, 0);
        let kind = write(out);
        let length = out.len() - start - HEADER_BYTES;
        let (header, payload) = out[start..].split_at_mut(HEADER_BYTES);
        let mut fields = &mut header[..CHECKSUM_AT];
        fields.put_u16_le(MAGIC);
        fields.put_u8(kind);
        fields.put_u32_le(length as u32);
        fields.put_u64_le(synced);
        let checksum = self.checksum(segment, offset, &header[..CHECKSUM_AT], payload);
        header[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Decodes the record at the start of the bytes, which are at that place of the log. Returns `None` if it is
    /// truncated or its checksum is wrong.
    pub fn decode(self, segment: u32, offset: u64, bytes: &Bytes) -> Option<Frame> {
        let header = bytes.get(..HEADER_BYTES).filter(|header| header[..2] == MAGIC.to_le_bytes());
        let Some(header) = header else { return old_format::decode(self, segment, offset, bytes) };
        let mut fields = &header[2..];
        let (kind, length, synced) = (fields.get_u8(), fields.get_u32_le(), fields.get_u64_le());
        let payload = payload_of(bytes, HEADER_BYTES, length)?;
        let is_intact = self.checksum(segment, offset, &header[..CHECKSUM_AT], &payload) == fields.get_u64_le();
        is_intact.then(|| Frame::new(segment, offset, HEADER_BYTES, kind, synced, payload))?
    }

    fn checksum(self, segment: u32, offset: u64, fields: &[u8], payload: &[u8]) -> u64 {
        let mut header = [0; CHECKSUM_AT + 12];
        header[..CHECKSUM_AT].copy_from_slice(fields);
        header[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&segment.to_le_bytes());
        header[CHECKSUM_AT + 4..].copy_from_slice(&offset.to_le_bytes());
        xxh3_64_with_seed(payload, xxh3_64_with_seed(&header, self.0))
    }
}

impl Frame {
    /// `None` if the location has more than 32 bits.
    pub(crate) fn new(
        segment: u32,
        offset: u64,
        header_bytes: usize,
        kind: u8,
        synced: u64,
        payload: Bytes,
    ) -> Option<Self> {
        let length = u32::try_from(header_bytes + payload.len()).ok()?;
        let location = Location { segment, offset: u32::try_from(offset).ok()?, length };
        Some(Self { location, kind, payload, synced })
    }
}

/// The payload after a header, if its length is plausible and it is not truncated.
pub(crate) fn payload_of(bytes: &Bytes, header_bytes: usize, length: u32) -> Option<Bytes> {
    let end = header_bytes + length as usize;
    (length as usize <= MAX_PAYLOAD && end <= bytes.len()).then(|| bytes.slice(header_bytes..end))
}

/// The length of the record at the start of the bytes according to its header, which may be damaged.
pub(crate) fn length_of(bytes: &[u8]) -> Option<usize> {
    let length = |at: usize, header: usize| {
        let field = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(field) as usize + header).filter(|length| *length <= MAX_PAYLOAD + header)
    };
    let is_new = bytes.starts_with(&MAGIC.to_le_bytes());
    if is_new { length(3, HEADER_BYTES) } else { old_format::length_of(bytes, length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(key: ChecksumKey, segment: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        key.encode(segment, offset, 77, &mut bytes, |out| {
            out.extend_from_slice(payload);
            3
        });
        bytes
    }

    #[test]
    fn a_record_is_decoded_only_whole_unchanged_at_its_place_and_with_its_key() {
        let key = ChecksumKey(7);
        let bytes = encoded(key, 2, 500, b"content");
        let trailing = Bytes::from([&bytes, &b"trailing"[..]].concat());
        let frame = key.decode(2, 500, &trailing).expect("it is intact");
        assert_eq!((frame.kind, frame.synced, &frame.payload[..]), (3, 77, &b"content"[..]));
        assert_eq!(frame.location, Location { segment: 2, offset: 500, length: bytes.len() as u32 });
        for (key, segment, offset) in [(ChecksumKey(8), 2, 500), (key, 1, 500), (key, 2, 501)] {
            assert_eq!(key.decode(segment, offset, &trailing), None);
        }
        for at in 0..bytes.len() {
            assert_eq!(key.decode(2, 500, &Bytes::copy_from_slice(&bytes[..at])), None, "cut at {at}");
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert_eq!(key.decode(2, 500, &Bytes::from(changed)), None, "bit {bit} of {at}");
            }
        }
    }

    /// After damage a log is searched for intact records, also inside payloads, which are untrusted.
    #[test]
    fn a_record_forged_in_a_payload_is_read_only_with_the_right_key() {
        let secret = ChecksumKey(0x5eed);
        let found = |guess: ChecksumKey| {
            let forged = encoded(guess, 1, HEADER_BYTES as u64, b"forged");
            let mut carrier = encoded(secret, 1, 0, &forged);
            carrier[0] ^= 1;
            let disk = crate::MemoryDisk::default();
            let file = crate::Disk::create(&disk, "x").expect("created");
            file.append(&carrier).expect("there is room");
            let mut found = 0;
            crate::scan::scan(secret, 1, &*file, 0, &mut |piece| {
                found += usize::from(matches!(piece, crate::scan::Piece::Record(_)));
                Ok(())
            })
            .expect("readable");
            found
        };
        assert_eq!([0, 1, 0x5eee, u64::MAX].map(|guess| found(ChecksumKey(guess))), [0; 4]);
        assert_eq!(found(secret), 1, "the check can fail");
    }
}
