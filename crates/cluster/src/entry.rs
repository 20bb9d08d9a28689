//! The content of a message in a partition's log.
//!
//! ```text
//! magic u16 · kind u8 · epoch u64 · position u64 · name length u8 · name · checksum u64 · bytes
//! ```
//!
//! The checksum covers everything else and is keyed with the cluster's secret. The log's servers check what they store too,
//! but recovery must not depend on them. That no message is missing or misplaced is checked by the positions in files.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::sync::Arc;
use toolbus_wal::ChecksumKey;
use xxhash_rust::xxh3::Xxh3;

/// One change of a partition, made by the owner of an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A broker took the partition over.
    Epoch,
    /// Bytes were appended to a file. The first ones create it.
    Append {
        /// Name of the file.
        file: Arc<str>,
        /// Its length before.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// A file was cut.
    Truncate {
        /// Name of the file.
        file: Arc<str>,
        /// Its length afterwards.
        length: u64,
    },
}

/// Why a message of the log is not an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// It does not begin like an entry of this version.
    #[error("has an unknown format")]
    Format,
    /// Its checksum is wrong.
    #[error("is corrupt")]
    Corrupt,
}

/// Bytes of an entry beside its name and its bytes.
const FIXED: usize = 2 + 1 + 8 + 8 + 1 + 8;
const MAGIC: u16 = 0x4354;
const EPOCH: u8 = 1;
const APPEND: u8 = 2;
const TRUNCATE: u8 = 3;

impl Entry {
    /// Bytes that an append to this file takes beside its own.
    pub(crate) fn overhead(file: &str) -> usize {
        FIXED + file.len()
    }

    /// Encodes the entry as one of an epoch.
    pub(crate) fn encode(&self, key: ChecksumKey, epoch: u64) -> Bytes {
        let (kind, name, position, bytes) = match self {
            Self::Epoch => (EPOCH, "", 0, &Bytes::new()),
            Self::Append { file, offset, bytes } => (APPEND, &**file, *offset, bytes),
            Self::Truncate { file, length } => (TRUNCATE, &**file, *length, &Bytes::new()),
        };
        let mut out = BytesMut::with_capacity(FIXED + name.len() + bytes.len());
        out.put_u16(MAGIC);
        out.put_u8(kind);
        out.put_u64(epoch);
        out.put_u64(position);
        let length = u8::try_from(name.len()).expect("names of files are short");
        out.put_u8(length);
        out.put_slice(name.as_bytes());
        let checksum = checksum(key, &out, bytes);
        out.put_u64(checksum);
        out.put_slice(bytes);
        out.freeze()
    }

    /// Decodes a message. Returns the epoch of its author and the entry.
    pub fn decode(key: ChecksumKey, mut message: Bytes) -> Result<(u64, Self), EntryError> {
        if message.len() < FIXED || u16::from_be_bytes([message[0], message[1]]) != MAGIC {
            return Err(EntryError::Format);
        }
        let name_length = usize::from(message[FIXED - 9]);
        if message.len() < FIXED + name_length {
            return Err(EntryError::Corrupt);
        }
        let mut header = message.split_to(FIXED - 8 + name_length);
        let expected = message.get_u64();
        if checksum(key, &header, &message) != expected {
            return Err(EntryError::Corrupt);
        }
        header.advance(2);
        let (kind, epoch, position) = (header.get_u8(), header.get_u64(), header.get_u64());
        header.advance(1);
        let file: Arc<str> = std::str::from_utf8(&header).map_err(|_| EntryError::Format)?.into();
        match kind {
            EPOCH => Ok((epoch, Self::Epoch)),
            APPEND => Ok((epoch, Self::Append { file, offset: position, bytes: message })),
            TRUNCATE => Ok((epoch, Self::Truncate { file, length: position })),
            _ => Err(EntryError::Format),
        }
    }
}

fn checksum(ChecksumKey(seed): ChecksumKey, header: &[u8], bytes: &[u8]) -> u64 {
    let mut hash = Xxh3::with_seed(seed);
    hash.update(header);
    hash.update(bytes);
    hash.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ChecksumKey = ChecksumKey(7);

    fn entries() -> [Entry; 3] {
        let file: Arc<str> = "segment-0000000001.log".into();
        let bytes = Bytes::from_static(b"some records");
        [
            Entry::Epoch,
            Entry::Append { file: Arc::clone(&file), offset: 900, bytes },
            Entry::Truncate { file, length: 17 },
        ]
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        for entry in entries() {
            let encoded = entry.encode(KEY, 5);
            assert_eq!(Entry::decode(KEY, encoded), Ok((5, entry)));
        }
    }

    #[test]
    fn a_flipped_bit_a_cut_and_another_key_are_noticed() {
        for entry in entries() {
            let encoded = entry.encode(KEY, 5);
            for (at, bit) in (0..encoded.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
                let mut flipped = encoded.to_vec();
                flipped[at] ^= 1 << bit;
                assert!(Entry::decode(KEY, flipped.into()).is_err(), "bit {bit} of byte {at}");
            }
            for end in 0..encoded.len() {
                assert!(Entry::decode(KEY, encoded.slice(..end)).is_err(), "cut at {end}");
            }
            assert_eq!(Entry::decode(ChecksumKey(8), encoded), Err(EntryError::Corrupt));
        }
    }
}
