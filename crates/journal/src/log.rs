//! The journal's log: encodes entries as records of a [`toolbus_wal::Log`], and decodes them.

use crate::entry::Entry;
use crate::lineage::renew_lineage;
use crate::payload::{put_entry, take_entry};
use crate::planted::PlantedBug;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use toolbus_wal::{ChecksumKey, Contents, Disk, Frame, Log, Recovery, Segments};

/// Configuration of a [`JournalLog`].
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Segment size in bytes past which the log rotates to a new segment.
    pub segment_bytes: u64,
    /// Key of the checksums: the folder's secret.
    pub checksum_seed: u64,
    /// A defect for tests to detect. Has no effect without the feature `planted`.
    pub planted: Option<PlantedBug>,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { segment_bytes: 16 << 20, checksum_seed: 0, planted: None }
    }
}

impl LogOptions {
    fn of_log(&self) -> toolbus_wal::LogOptions {
        toolbus_wal::LogOptions {
            segments: Segments { prefix: "journal-" },
            segment_bytes: self.segment_bytes,
            key: ChecksumKey(self.checksum_seed),
            // An extra entry only makes a host more cautious, but a missing one could make it run a call twice.
            keep_after_torn: true,
            readable_after_removal: 2,
            planted: self.planted.and_then(PlantedBug::of_log),
        }
    }
}

/// The location of an entry in the log, or its body while the entry is not durable yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A record in the log.
    Log(toolbus_wal::Location),
    /// The request or reply itself.
    InMemory(Bytes),
}

impl Location {
    /// The segment of a record in the log.
    pub fn segment(&self) -> Option<u32> {
        match self {
            Self::Log(location) => Some(location.segment),
            Self::InMemory(_) => None,
        }
    }

    /// Orders entries as in the log. Those that are not durable yet are the newest.
    pub(crate) fn position(&self) -> (u32, u32) {
        match self {
            Self::Log(location) => (location.segment, location.offset),
            Self::InMemory(_) => (u32::MAX, u32::MAX),
        }
    }

    /// The length of the record, or of the body in memory.
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::Log(location) => location.length as usize,
            Self::InMemory(bytes) => bytes.len(),
        }
    }
}

/// A log of entries.
pub struct JournalLog {
    pub(crate) records: Log,
    /// Timestamp of the newest entry of each segment, in milliseconds since 1970.
    newest: BTreeMap<u32, u64>,
}

impl JournalLog {
    /// Opens the log, removes torn writes after the journal got a new lineage, and calls `each` for all entries in log
    /// order.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: LogOptions,
        mut each: impl FnMut(Entry, Location),
    ) -> io::Result<(Self, Recovery)> {
        let (mut newest, mut undecodable) = (BTreeMap::new(), 0);
        let before_repair = &mut || renew_lineage(&*disk);
        let (records, mut recovery) = Log::open(Arc::clone(&disk), options.of_log(), before_repair, &mut |frame| {
            let length = u64::from(frame.location.length);
            match decode(frame) {
                Some((location, entry)) => {
                    note(&mut newest, location.segment(), entry.at());
                    each(entry, location);
                }
                None => undecodable += length,
            }
        })?;
        recovery.damaged += u64::from(undecodable > 0);
        recovery.damaged_bytes += undecodable;
        if recovery.is_damaged() {
            let Recovery { damaged_bytes, missing_segments, .. } = recovery;
            tracing::error!(
                damaged_bytes,
                missing_segments,
                "the call journal is corrupt; calls may be missing from it"
            );
        }
        Ok((Self { records, newest }, recovery))
    }

    /// Writes entries with one `append`, to a new segment if the active one is full. They survive a crash of this
    /// process, and are durable only after a sync.
    pub fn append<'a>(&mut self, entries: impl IntoIterator<Item = &'a Entry>, now: u64) -> io::Result<Vec<Location>> {
        if self.records.next_segment().is_some() {
            self.records.rotate()?;
        }
        self.append_here(entries, now)
    }

    /// Like [`JournalLog::append`], but always to the active segment, even if it is full.
    pub fn append_here<'a>(
        &mut self,
        entries: impl IntoIterator<Item = &'a Entry>,
        now: u64,
    ) -> io::Result<Vec<Location>> {
        let locations = entries.into_iter().map(|entry| self.stage(entry, now)).collect::<io::Result<_>>()?;
        self.records.flush()?;
        Ok(locations)
    }

    /// Encodes an entry and assigns its location. The next [`Log::flush`] writes it.
    pub fn stage(&mut self, entry: &Entry, now: u64) -> io::Result<Location> {
        let location = Location::Log(self.records.stage(|out| put_entry(entry, out))?);
        note(&mut self.newest, location.segment(), now);
        Ok(location)
    }

    /// Makes all written entries durable.
    pub fn sync(&mut self) -> io::Result<()> {
        let unsynced = self.records.unsynced();
        unsynced.sync()?;
        self.records.synced(&unsynced);
        Ok(())
    }

    /// A reader that works concurrently with writes.
    pub fn reader(&self) -> Reader {
        Reader(self.records.reader().clone())
    }

    /// The oldest segment, unless it is the active one: its number, its size, and the timestamp of its newest entry.
    pub(crate) fn oldest(&self) -> Option<(u32, u64, u64)> {
        let (number, segment) = self.records.oldest()?;
        Some((number, segment.bytes, self.newest.get(&number).copied().unwrap_or_default()))
    }

    /// Records that the file of a segment was removed.
    pub(crate) fn removed(&mut self, number: u32) {
        self.newest.remove(&number);
        self.records.removed(number);
    }
}

fn note(newest: &mut BTreeMap<u32, u64>, segment: Option<u32>, at: u64) {
    let newest = newest.entry(segment.unwrap_or_default()).or_default();
    *newest = at.max(*newest);
}

fn decode(frame: Frame) -> Option<(Location, Entry)> {
    Some((Location::Log(frame.location), take_entry(frame.kind, frame.payload)?))
}

/// Reads all intact entries of a segment.
pub(crate) fn entries_of(contents: &Contents) -> io::Result<Vec<(Location, Entry)>> {
    let mut entries = Vec::new();
    contents.read(&mut |frame| entries.extend(decode(frame)))?;
    Ok(entries)
}

/// Reads entries without blocking on writers.
#[derive(Clone)]
pub struct Reader(toolbus_wal::Reader);

impl Reader {
    /// Reads the entry at a location in the log.
    pub fn read(&self, location: &Location) -> io::Result<Entry> {
        let Location::Log(location) = *location else { return Err(io::ErrorKind::InvalidInput.into()) };
        let entry = decode(self.0.read(location)?).map(|(_, entry)| entry);
        entry.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The reply or request of the entry at a location.
    pub fn payload(&self, location: &Location) -> io::Result<Bytes> {
        if let Location::InMemory(bytes) = location {
            return Ok(bytes.clone());
        }
        match self.read(location)? {
            Entry::Finish(finish) => Ok(finish.reply),
            Entry::Task(task) => Ok(task.request),
            Entry::Dead(dead) => Ok(dead.request),
            Entry::Start(_) | Entry::Joined(_) | Entry::Dropped(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
