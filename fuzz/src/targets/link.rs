//! Frames between brokers: what is decoded is encoded to the same bytes.

use crate::memory::bounded;
use toolbus_cluster::reencode;

/// A command without fields is one byte of a frame, and about 250 bytes in memory; lists grow by doubling.
const BYTES_PER_BYTE: usize = 1_200;

pub fn link(data: &[u8]) {
    let Some((direction, frame)) = data.split_first() else { return };
    let encoded = bounded(frame, BYTES_PER_BYTE, || reencode(frame, direction % 2 == 0));
    if let Some(encoded) = encoded {
        assert_eq!(encoded, frame);
    }
}
