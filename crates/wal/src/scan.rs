//! Reads a segment from its beginning and tells its intact records from unreadable ranges.

use crate::DiskFile;
use crate::frame::{ChecksumKey, Frame, length_of};
use bytes::Bytes;
use std::io;
use std::ops::Range;

/// A part of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Record(Frame),
    Unreadable(Range<u64>),
}

/// Calls `each` for all parts of a segment from an offset on, in order. Records are found at any offset, so that damage
/// costs only the records that it hits. Returns the length of the segment.
pub(crate) fn scan(
    key: ChecksumKey,
    segment: u32,
    file: &dyn DiskFile,
    from: u64,
    each: &mut dyn FnMut(Piece) -> io::Result<()>,
) -> io::Result<u64> {
    let mut window = Window { file, length: file.size()?, start: 0, bytes: Bytes::new() };
    let (mut at, mut readable_to) = (from, from);
    while at < window.length {
        let Some(frame) = window.record(key, segment, at)? else {
            at += 1;
            continue;
        };
        if readable_to < at {
            each(Piece::Unreadable(readable_to..at))?;
        }
        at += u64::from(frame.location.length);
        readable_to = at;
        each(Piece::Record(frame))?;
    }
    if readable_to < at {
        each(Piece::Unreadable(readable_to..at))?;
    }
    Ok(window.length)
}

/// Bytes per read. A larger record is fetched with one read.
const CHUNK: u64 = 4 << 20;
/// More than any header.
const HEAD_BYTES: u64 = 64;

/// A sliding view of a file.
struct Window<'a> {
    file: &'a dyn DiskFile,
    length: u64,
    start: u64,
    bytes: Bytes,
}

impl Window<'_> {
    fn record(&mut self, key: ChecksumKey, segment: u32, at: u64) -> io::Result<Option<Frame>> {
        let rest = self.length - at;
        let head = self.exactly(at, HEAD_BYTES.min(rest))?;
        let Some(length) = length_of(&head).map(|length| length as u64).filter(|length| *length <= rest) else {
            return Ok(None);
        };
        Ok(key.decode(segment, at, &self.exactly(at, length)?))
    }

    fn exactly(&mut self, at: u64, length: u64) -> io::Result<Bytes> {
        let is_covered = at >= self.start && at + length <= self.start + self.bytes.len() as u64;
        if !is_covered {
            let mut buffer = vec![0; CHUNK.max(length).min(self.length - at) as usize];
            self.file.read_at(at, &mut buffer)?;
            (self.start, self.bytes) = (at, Bytes::from(buffer));
        }
        let offset = (at - self.start) as usize;
        Ok(self.bytes.slice(offset..offset + length as usize))
    }
}
