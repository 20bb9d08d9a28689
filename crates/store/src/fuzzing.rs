//! Entry points for the fuzz targets.

use crate::record::{self, ChecksumKey, Kind, Record};
use bytes::Bytes;
use std::sync::Arc;
use toolbus_engine::Batch;

/// Decodes a record of this kind as if its checksum were right, and returns the record that encodes the result. `None` if
/// the payload is malformed.
pub fn reencode(kind: u8, payload: &[u8]) -> Option<(u8, Vec<u8>)> {
    let key = ChecksumKey(0);
    let mut batch = Batch::default();
    let kind = match record::read_record(key, Bytes::from(record::encode_raw(key, kind, payload)))? {
        Record::Put(message) => {
            batch.puts.push(Arc::new(message));
            Kind::Put
        }
        Record::Settled(settled) => {
            batch.settled = settled;
            Kind::Settled
        }
        Record::Attempts(attempts) => {
            batch.attempts = attempts;
            Kind::Attempts
        }
    };
    let mut bytes = Vec::new();
    record::encode_batch(key, &batch, 1, 1, &mut bytes);
    let payload = bytes.get(record::HEADER_BYTES + record::RECORD_HEADER_BYTES..).unwrap_or_default();
    Some((kind as u8, payload.to_vec()))
}
