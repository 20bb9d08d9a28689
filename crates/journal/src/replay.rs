//! Replays the journal from its beginning. All intact entries are applied, also those after a torn write: an extra
//! entry only makes a host more cautious, but a missing one could make it run a call twice.

use crate::entry::Entry;
use crate::lineage::renew_lineage;
use crate::log::{Location, LogOptions, Segment};
use crate::planted::PlantedBug;
use crate::record::{self, ChecksumKey, HEADER_BYTES, MAGIC, Record};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use toolbus_wal::{Disk, DiskFile, Segments};

/// The result of replaying the journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Interrupted calls that were forgotten because there were too many.
    pub forgotten_calls: u64,
    /// Number of entries.
    pub entries: u64,
    /// Bytes of torn writes at the end, which were removed. They were never reported as durable. The journal has a new
    /// lineage since.
    pub torn_bytes: u64,
    /// Other unreadable bytes. Calls may be missing from the index.
    pub damaged_bytes: u64,
    /// Number of missing segment files.
    pub missing_segments: u32,
}

impl Recovery {
    /// Whether durable entries were lost. A call that is not in the journal may have been started then.
    pub fn is_damaged(&self) -> bool {
        self.damaged_bytes > 0 || self.missing_segments > 0
    }
}

pub const SEGMENTS: Segments = Segments { prefix: "journal-" };

pub fn replay(
    disk: &dyn Disk,
    options: &LogOptions,
    each: &mut dyn FnMut(Entry, Location),
) -> io::Result<(BTreeMap<u32, Segment>, Recovery)> {
    let key = ChecksumKey(options.checksum_seed);
    let numbers = SEGMENTS.list(disk)?;
    let (mut segments, mut recovery) = (BTreeMap::new(), Recovery::default());
    let last = last_written(disk, &numbers)?;
    for number in &numbers {
        let file = disk.open(&SEGMENTS.name(*number))?;
        let mut found = Found::read(key, &*file)?;
        if last == Some(*number) {
            recovery.torn_bytes += found.repair(options, disk, &*file, *number)?;
            // Entries of a killed process may be in the page cache only; decisions rest on them from now on.
            if !options.has_planted(PlantedBug::OpenedWithoutSync) {
                file.sync()?;
            }
        }
        recovery.damaged_bytes += found.unreadable_bytes();
        recovery.entries += found.records.len() as u64;
        let newest = found.records.iter().map(|(_, record)| record.entry.at()).max().unwrap_or_default();
        let unreadable = found.unreadable_bytes();
        for (offset, record) in found.records {
            each(record.entry, Location::Log { segment: *number, offset, length: record.length as u32 });
        }
        segments.insert(*number, Segment { file, bytes: found.bytes, newest, unreadable });
    }
    if let (Some(first), Some(last)) = (numbers.first(), numbers.last()) {
        recovery.missing_segments = (last - first + 1).saturating_sub(numbers.len() as u32);
    }
    report(&recovery);
    Ok((segments, recovery))
}

/// The last segment that is not empty. A crash may tear its end: the next segment is created before this one is synced,
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
        tracing::warn!(bytes = recovery.torn_bytes, "removed torn writes at the end of the call journal");
    }
    if recovery.is_damaged() {
        let Recovery { damaged_bytes, missing_segments, .. } = recovery;
        tracing::error!(damaged_bytes, missing_segments, "the call journal is corrupt; calls may be missing from it");
    }
}

/// The records and the unreadable ranges of a segment.
struct Found {
    records: Vec<(u64, Record)>,
    unreadable: Vec<Range<usize>>,
    bytes: u64,
}

impl Found {
    fn unreadable_bytes(&self) -> u64 {
        self.unreadable.iter().map(|range| range.len() as u64).sum()
    }

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

    /// Removes torn writes: unreadable ranges after the last byte that is known to be durable. Intact records after the
    /// first torn range are rewritten. Returns the number of torn bytes.
    fn repair(&mut self, options: &LogOptions, disk: &dyn Disk, file: &dyn DiskFile, number: u32) -> io::Result<u64> {
        let is_blind = options.has_planted(PlantedBug::CorruptionTakenForTornWrite);
        let synced = self.records.iter().filter(|_| !is_blind).map(|(_, record)| record.synced_bytes);
        let synced_bytes = synced.max().unwrap_or_default();
        let Some(first) = self.unreadable.iter().position(|range| range.end as u64 > synced_bytes) else {
            return Ok(0);
        };
        let torn_from = synced_bytes.max(self.unreadable[first].start as u64);
        let unreadable: u64 = self.unreadable.iter().skip(first).map(|range| range.len() as u64).sum();
        let damaged = self.unreadable[first].start..torn_from as usize;
        let torn = unreadable - damaged.len() as u64;
        self.unreadable.truncate(first);
        self.unreadable.push(damaged);
        let behind = self.records.partition_point(|(offset, _)| *offset < torn_from);
        tracing::debug!(
            segment = number,
            torn,
            again = self.records.len() - behind,
            "removed torn writes at the end of a segment"
        );
        let mut again = Vec::new();
        for (offset, record) in &mut self.records[behind..] {
            *offset = torn_from + again.len() as u64;
            record::encode(ChecksumKey(options.checksum_seed), &record.entry, synced_bytes, &mut again);
        }
        // A torn write can't be told from corruption of the last records.
        renew_lineage(disk)?;
        file.truncate(torn_from)?;
        if !again.is_empty() {
            file.append(&again)?;
        }
        file.sync()?;
        self.bytes = torn_from + again.len() as u64;
        Ok(torn)
    }
}

/// The offset of the next intact record, or the end of the segment.
fn next_record(key: ChecksumKey, whole: &Bytes, from: usize) -> usize {
    let magic = MAGIC.to_le_bytes();
    let end = whole.len().saturating_sub(HEADER_BYTES);
    let is_record = |at: &usize| whole[*at..*at + 2] == magic && record::decode(key, &whole.slice(*at..)).is_some();
    (from..end).find(is_record).unwrap_or(whole.len())
}

/// All intact entries of a segment, of which so many bytes were unreadable when the journal was opened. Fails if there are
/// more now: a record that was lost meanwhile must not vanish with its segment.
pub fn entries(
    key: ChecksumKey,
    file: &dyn DiskFile,
    number: u32,
    known_unreadable: u64,
) -> io::Result<Vec<(Location, Entry)>> {
    let found = Found::read(key, file)?;
    if found.unreadable_bytes() > known_unreadable {
        let name = SEGMENTS.name(number);
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{name} was corrupted since it was opened")));
    }
    let located = |(offset, record): (u64, Record)| {
        (Location::Log { segment: number, offset, length: record.length as u32 }, record.entry)
    };
    Ok(found.records.into_iter().map(located).collect())
}
