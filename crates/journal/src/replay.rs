//! Reading the journal from its beginning. What can be read counts, wherever it stands: an entry too many makes a host more
//! careful, an entry too few could make it run a call twice.

use crate::entry::Entry;
use crate::log::{Place, Segment};
use crate::record::{self, ChecksumKey, HEADER_BYTES, MAGIC, Record};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use toolbus_wal::{Disk, DiskFile, Segments};

/// What opening the journal found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovery {
    pub entries: u64,
    /// Bytes at the end that a crash left unfinished; they were cut off. Nobody had been told that they were safe.
    pub torn_bytes: u64,
    /// Bytes elsewhere that can't be read. Calls may be missing from the book.
    pub damaged_bytes: u64,
    /// Files that should be there and are not.
    pub missing_segments: u32,
}

impl Recovery {
    /// Whether something was lost that had been safe: then a call that the journal does not know may have been begun.
    pub fn is_damaged(&self) -> bool {
        self.damaged_bytes > 0 || self.missing_segments > 0
    }
}

pub const SEGMENTS: Segments = Segments { prefix: "journal-" };

pub fn replay(
    disk: &dyn Disk,
    key: ChecksumKey,
    each: &mut dyn FnMut(Entry, Place),
) -> io::Result<(BTreeMap<u32, Segment>, Recovery)> {
    let numbers = SEGMENTS.list(disk)?;
    let (mut segments, mut recovery) = (BTreeMap::new(), Recovery::default());
    let last = last_written(disk, &numbers)?;
    for number in &numbers {
        let file = disk.open(&SEGMENTS.name(*number))?;
        let mut found = Found::read(key, &*file)?;
        if last == Some(*number) {
            recovery.torn_bytes += found.repair(key, &*file, *number)?;
        }
        recovery.damaged_bytes += found.unreadable.iter().map(|range| range.len() as u64).sum::<u64>();
        recovery.entries += found.records.len() as u64;
        let newest = found.records.iter().map(|(_, record)| record.entry.at()).max().unwrap_or_default();
        for (offset, record) in found.records {
            each(record.entry, Place::Log { segment: *number, offset, length: record.length as u32 });
        }
        segments.insert(*number, Segment { file, bytes: found.bytes, newest });
    }
    if let (Some(first), Some(last)) = (numbers.first(), numbers.last()) {
        recovery.missing_segments = (last - first + 1).saturating_sub(numbers.len() as u32);
    }
    report(&recovery);
    Ok((segments, recovery))
}

/// The last segment with anything in it. A crash may tear its end: the next segment is created before this one is synced,
/// and written to only afterwards.
fn last_written(disk: &dyn Disk, numbers: &[u32]) -> io::Result<Option<u32>> {
    for number in numbers.iter().rev() {
        if disk.open(&SEGMENTS.name(*number))?.size()? > 0 {
            return Ok(Some(*number));
        }
    }
    Ok(None)
}

fn report(recovery: &Recovery) {
    if recovery.torn_bytes > 0 {
        tracing::warn!(bytes = recovery.torn_bytes, "repaired the end of the call journal after a crash");
    }
    if recovery.is_damaged() {
        let Recovery { damaged_bytes, missing_segments, .. } = recovery;
        tracing::error!(damaged_bytes, missing_segments, "the call journal is damaged; calls may be missing from it");
    }
}

/// What is in a segment.
struct Found {
    records: Vec<(u64, Record)>,
    unreadable: Vec<Range<usize>>,
    bytes: u64,
}

impl Found {
    fn read(key: ChecksumKey, file: &dyn DiskFile) -> io::Result<Self> {
        let mut whole = vec![0; file.size()? as usize];
        file.read_at(0, &mut whole)?;
        let whole = Bytes::from(whole);
        let (mut records, mut unreadable) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < whole.len() {
            match record::decode(key, &whole.slice(at..)) {
                Some(record) => {
                    let offset = at as u64;
                    at += record.length;
                    records.push((offset, record));
                }
                None => {
                    let next = next_record(key, &whole, at + 1);
                    unreadable.push(at..next);
                    at = next;
                }
            }
        }
        Ok(Self { records, unreadable, bytes: whole.len() as u64 })
    }

    /// Takes out what a crash has torn: what stands after the last byte that is known to have been synced. Whatever can be
    /// read behind a hole is written again before it. Returns how many bytes were torn.
    fn repair(&mut self, key: ChecksumKey, file: &dyn DiskFile, number: u32) -> io::Result<u64> {
        let safe = self.records.iter().map(|(_, record)| record.safe).max().unwrap_or_default();
        let Some(first) = self.unreadable.iter().position(|range| range.end as u64 > safe) else { return Ok(0) };
        let torn_from = safe.max(self.unreadable[first].start as u64);
        let unreadable: u64 = self.unreadable.iter().skip(first).map(|range| range.len() as u64).sum();
        let damaged = self.unreadable[first].start..torn_from as usize;
        let torn = unreadable - damaged.len() as u64;
        self.unreadable.truncate(first);
        self.unreadable.push(damaged);
        let behind = self.records.partition_point(|(offset, _)| *offset < torn_from);
        tracing::debug!(segment = number, torn, again = self.records.len() - behind, "the end of a segment is torn");
        let mut again = Vec::new();
        for (offset, record) in &mut self.records[behind..] {
            *offset = torn_from + again.len() as u64;
            record::encode(key, &record.entry, safe, &mut again);
        }
        file.truncate(torn_from)?;
        if !again.is_empty() {
            file.append(&again)?;
        }
        file.sync()?;
        self.bytes = torn_from + again.len() as u64;
        Ok(torn)
    }
}

/// Where the next record begins that can be read.
fn next_record(key: ChecksumKey, whole: &Bytes, from: usize) -> usize {
    let magic = MAGIC.to_le_bytes();
    let end = whole.len().saturating_sub(HEADER_BYTES);
    let is_record = |at: &usize| whole[*at..*at + 2] == magic && record::decode(key, &whole.slice(*at..)).is_some();
    (from..end).find(is_record).unwrap_or(whole.len())
}

/// All entries of a segment that can be read.
pub fn entries(key: ChecksumKey, file: &dyn DiskFile, number: u32) -> io::Result<Vec<(Place, Entry)>> {
    let found = Found::read(key, file)?;
    let placed = |(offset, record): (u64, Record)| {
        (Place::Log { segment: number, offset, length: record.length as u32 }, record.entry)
    };
    Ok(found.records.into_iter().map(placed).collect())
}
