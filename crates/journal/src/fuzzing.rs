//! Entry points for the fuzz targets.

use crate::entry::Entry;
use crate::payload::{put_entry, take_entry};
use bytes::Bytes;

/// Decodes the payload of a record as if its checksum were right. `None` if it is malformed.
pub fn decode(kind: u8, payload: &[u8]) -> Option<Entry> {
    take_entry(kind, Bytes::copy_from_slice(payload))
}

/// The kind and payload of an entry.
pub fn encode(entry: &Entry) -> (u8, Vec<u8>) {
    let mut payload = Vec::new();
    (put_entry(entry, &mut payload), payload)
}
