//! Entry points for the fuzz targets.

use crate::StoreOptions;
use crate::record::{self, Record};
use bytes::Bytes;
use std::sync::Arc;
use toolbus_engine::Batch;
use toolbus_wal::{Frame, Location, Log, MemoryDisk};

/// Decodes a record of this kind as if its checksum were right, writes the result to a log, and returns the last record of
/// this log. `None` if the payload is malformed.
pub fn reencode(kind: u8, payload: &[u8]) -> Option<(u8, Vec<u8>)> {
    let location = Location { segment: 1, offset: 0, length: 0 };
    let (mut batch, mut next_seq) = (Batch::default(), 0);
    match record::read_record(Frame { location, kind, payload: Bytes::copy_from_slice(payload), synced: 0 })? {
        Record::Put(message) => batch.puts.push(Arc::new(message)),
        Record::Settled(settled) => batch.settled = settled,
        Record::Attempts(attempts) => batch.attempts = attempts,
        Record::NextSeq(seq) => next_seq = seq,
    }
    let (disk, options) = (Arc::new(MemoryDisk::default()), StoreOptions::default().of_log());
    let (mut log, _) = Log::open(disk, options, &mut || Ok(()), &mut |_| {}).expect("an empty disk");
    record::stage_batch(&mut log, &batch, next_seq).and_then(|_| log.flush()).expect("a disk in memory is not full");
    let mut last = None;
    let contents = log.contents(log.active_segment()).expect("the active segment exists");
    contents.read(&mut |frame| last = Some((frame.kind, frame.payload.to_vec()))).expect("the log is intact");
    last
}
