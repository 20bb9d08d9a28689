//! The journal's segment files: entries are appended, and a segment without needed entries is removed as a whole.

use crate::entry::Entry;
use crate::planted::PlantedBug;
use crate::record::{self, ChecksumKey};
use crate::replay::{self, Recovery, SEGMENTS};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, RwLock};
use toolbus_wal::{Disk, DiskFile};

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

/// The location of an entry in the log, or its body while the entry is not durable yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A record in the log.
    Log {
        /// The number of the segment.
        segment: u32,
        /// The offset of the record in the segment.
        offset: u64,
        /// The length of the record.
        length: u32,
    },
    /// The request or reply itself.
    InMemory(Bytes),
}

impl Location {
    /// The segment of a record in the log.
    pub fn segment(&self) -> Option<u32> {
        match self {
            Self::Log { segment, .. } => Some(*segment),
            Self::InMemory(_) => None,
        }
    }

    /// The length of the record, or of the body in memory.
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::Log { length, .. } => *length as usize,
            Self::InMemory(bytes) => bytes.len(),
        }
    }
}

pub struct Segment {
    pub file: Arc<dyn DiskFile>,
    pub bytes: u64,
    /// Timestamp of the newest entry, in milliseconds since 1970.
    pub newest: u64,
    /// Bytes that could not be read when the journal was opened.
    pub unreadable: u64,
}

/// An append-only log of entries. All operations that block on the disk (a sync, creating, reading or removing a
/// segment) can run without exclusive access to the log.
pub struct JournalLog {
    disk: Arc<dyn Disk>,
    options: LogOptions,
    segments: BTreeMap<u32, Segment>,
    /// Number of bytes of the last segment that are durable.
    synced_bytes: u64,
    /// Encoded records that have a location and are not written yet.
    staged: Vec<u8>,
    /// The full segment before the last, while it is not synced. Nothing is written to the last one meanwhile, because a
    /// crash may tear only the end of the log.
    sealing: Option<Unsynced>,
    reader: Reader,
}

impl JournalLog {
    /// Opens the log, truncates torn writes, and calls `each` for all entries in log order.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: LogOptions,
        mut each: impl FnMut(Entry, Location),
    ) -> io::Result<(Self, Recovery)> {
        let key = ChecksumKey(options.checksum_seed);
        let (segments, recovery) = replay::replay(&*disk, &options, &mut each)?;
        let files = segments.iter().map(|(number, segment)| (*number, Arc::clone(&segment.file))).collect();
        let reader = Reader { key, files: Arc::new(RwLock::new(files)) };
        let mut log = Self { disk, options, segments, synced_bytes: 0, staged: Vec::new(), sealing: None, reader };
        if log.segments.is_empty() {
            let next = NextSegment { disk: Arc::clone(&log.disk), number: 1 };
            log.add_segment(next.create()?);
        }
        // The replay has synced them.
        log.synced_bytes = log.end().bytes;
        Ok((log, recovery))
    }

    /// Writes entries with one `append`, to a new segment if the last one is full. They survive a crash of this
    /// process, and are durable only after a sync.
    pub fn append<'a>(&mut self, entries: impl IntoIterator<Item = &'a Entry>, now: u64) -> io::Result<Vec<Location>> {
        if let Some(next) = self.next_segment() {
            self.seal(next.create()?)?;
            self.unsynced_sealed().map_or(Ok(()), |full| full.sync())?;
            self.sealed();
        }
        self.append_here(entries, now)
    }

    /// Like [`JournalLog::append`], but always to the last segment, even if it is full.
    pub fn append_here<'a>(
        &mut self,
        entries: impl IntoIterator<Item = &'a Entry>,
        now: u64,
    ) -> io::Result<Vec<Location>> {
        let locations = entries.into_iter().map(|entry| self.stage(entry, now)).collect::<io::Result<_>>()?;
        self.flush()?;
        Ok(locations)
    }

    /// Encodes an entry and assigns its location. The next [`JournalLog::flush`] writes it.
    pub fn stage(&mut self, entry: &Entry, now: u64) -> io::Result<Location> {
        let End { segment, bytes: offset } = self.end();
        let from = self.staged.len();
        record::encode(ChecksumKey(self.options.checksum_seed), entry, self.synced_bytes, &mut self.staged);
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.newest = segment.newest.max(now);
        }
        Ok(Location::Log { segment, offset, length: (self.staged.len() - from) as u32 })
    }

    /// Writes the staged entries, unless the previous segment is not synced yet.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.staged.is_empty() || self.is_sealing() {
            return Ok(());
        }
        let mut last = self.segments.last_entry().ok_or(io::ErrorKind::NotFound)?;
        let segment = last.get_mut();
        let written = segment.file.append(&self.staged);
        if written.is_ok() {
            segment.bytes += self.staged.len() as u64;
        }
        self.staged.clear();
        self.staged.shrink_to(1 << 20);
        // Remove a partial write.
        written.or_else(|error| segment.file.truncate(segment.bytes).and(Err(error)))
    }

    /// The segment to create, if the last one is full.
    pub fn next_segment(&self) -> Option<NextSegment> {
        let End { segment, bytes } = self.end();
        let is_full = bytes >= self.options.segment_bytes && !self.is_sealing();
        is_full.then(|| NextSegment { disk: Arc::clone(&self.disk), number: segment + 1 })
    }

    /// Rotates to the new segment. Entries are only staged until the caller has synced the full segment and called
    /// [`JournalLog::sealed`].
    pub fn seal(&mut self, created: CreatedSegment) -> io::Result<()> {
        self.flush()?;
        self.sealing = self.unsynced();
        self.add_segment(created);
        Ok(())
    }

    /// The full segment of an unfinished rotation, to be synced.
    pub fn unsynced_sealed(&self) -> Option<Unsynced> {
        self.sealing.clone()
    }

    /// The full segment is durable, so that staged entries may be written.
    pub fn sealed(&mut self) {
        self.sealing = None;
    }

    /// Whether entries are only staged, because the previous segment is not synced yet.
    pub fn is_sealing(&self) -> bool {
        self.sealing.is_some()
    }

    /// Makes all written entries durable.
    pub fn sync(&mut self) -> io::Result<()> {
        let Some(unsynced) = self.unsynced() else { return Ok(()) };
        unsynced.sync()?;
        self.synced(&unsynced);
        Ok(())
    }

    /// A handle to sync the entries written so far, concurrently with further writes.
    pub fn unsynced(&self) -> Option<Unsynced> {
        let (number, segment) = self.segments.last_key_value()?;
        let file = (!self.options.has_planted(PlantedBug::NoSync)).then(|| Arc::clone(&segment.file));
        Some(Unsynced { file, segment: *number, bytes: segment.bytes })
    }

    /// Records that the handle was synced.
    pub fn synced(&mut self, what: &Unsynced) {
        // An earlier segment was synced before the last one was written to.
        if self.end().segment == what.segment {
            self.synced_bytes = self.synced_bytes.max(what.bytes);
        }
    }

    /// A reader that works concurrently with writes.
    pub fn reader(&self) -> Reader {
        self.reader.clone()
    }

    /// The oldest segment, unless it is the active one.
    pub fn oldest(&self) -> Option<(u32, &Segment)> {
        (self.segments.len() > 1).then(|| self.segments.first_key_value()).flatten().map(|(number, it)| (*number, it))
    }

    /// A handle to read a segment without access to the log.
    pub fn contents(&self, number: u32) -> io::Result<Contents> {
        let segment = self.segments.get(&number).ok_or(io::ErrorKind::NotFound)?;
        Ok(Contents { key: self.reader.key, file: Arc::clone(&segment.file), number, unreadable: segment.unreadable })
    }

    /// Size of all segments in bytes.
    pub fn bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.bytes).sum()
    }

    /// The number of the active segment.
    pub fn last_segment(&self) -> u32 {
        self.end().segment
    }

    /// Segment size in bytes past which the log rotates.
    pub fn segment_bytes(&self) -> u64 {
        self.options.segment_bytes
    }

    /// A handle to remove the file of a segment without access to the log.
    pub fn file_of(&self, number: u32) -> SegmentFile {
        SegmentFile { disk: Arc::clone(&self.disk), number }
    }

    /// Records that the file of a segment was removed. Entries that are still needed must have been copied before.
    pub fn removed(&mut self, number: u32) {
        self.segments.remove(&number);
        self.reader.retire(number);
    }

    fn end(&self) -> End {
        let last = self.segments.last_key_value();
        let staged = self.staged.len() as u64;
        last.map_or(End { segment: 1, bytes: 0 }, |(number, it)| End { segment: *number, bytes: it.bytes + staged })
    }

    fn add_segment(&mut self, CreatedSegment { number, file }: CreatedSegment) {
        self.reader.add(number, Arc::clone(&file));
        self.segments.insert(number, Segment { file, bytes: 0, newest: 0, unreadable: 0 });
        self.synced_bytes = 0;
    }
}

/// A segment to be created, without access to the log.
pub struct NextSegment {
    disk: Arc<dyn Disk>,
    number: u32,
}

/// An empty segment whose directory entry is durable.
pub struct CreatedSegment {
    number: u32,
    file: Arc<dyn DiskFile>,
}

impl NextSegment {
    /// Creates the file.
    pub fn create(&self) -> io::Result<CreatedSegment> {
        Ok(CreatedSegment { number: self.number, file: SEGMENTS.create(&*self.disk, self.number)? })
    }
}

/// The end of the last segment, including staged records.
#[derive(Clone, Copy)]
struct End {
    segment: u32,
    bytes: u64,
}

/// The entries that had been written at some moment, to be synced.
#[derive(Clone)]
pub struct Unsynced {
    /// Absent if syncs are no-ops.
    file: Option<Arc<dyn DiskFile>>,
    segment: u32,
    bytes: u64,
}

impl Unsynced {
    /// Makes the entries durable. The caller reports it with [`JournalLog::synced`].
    pub fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| file.sync())
    }
}

/// A segment that is no longer written to.
pub struct Contents {
    key: ChecksumKey,
    file: Arc<dyn DiskFile>,
    number: u32,
    unreadable: u64,
}

impl Contents {
    /// Reads all intact entries.
    pub fn read(&self) -> io::Result<Vec<(Location, Entry)>> {
        replay::entries(self.key, &*self.file, self.number, self.unreadable)
    }
}

/// The file of a segment.
pub struct SegmentFile {
    disk: Arc<dyn Disk>,
    number: u32,
}

impl SegmentFile {
    /// Removes the file durably.
    pub fn remove(&self) -> io::Result<()> {
        SEGMENTS.remove(&*self.disk, self.number)
    }
}

/// Reads entries without blocking on writers.
#[derive(Clone)]
pub struct Reader {
    key: ChecksumKey,
    files: Arc<RwLock<BTreeMap<u32, Arc<dyn DiskFile>>>>,
}

/// Number of removed segments that stay readable, for readers that looked a location up just before the removal.
const RETIRED: u32 = 2;

impl Reader {
    /// Reads the entry at a location in the log.
    pub fn read(&self, location: &Location) -> io::Result<Entry> {
        let Location::Log { segment, offset, length } = *location else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let files = self.files.read().expect("no code panics while holding the lock");
        let file = Arc::clone(files.get(&segment).ok_or(io::ErrorKind::NotFound)?);
        drop(files);
        let mut bytes = vec![0; length as usize];
        file.read_at(offset, &mut bytes)?;
        let record = record::decode(self.key, &Bytes::from(bytes));
        record.map(|record| record.entry).ok_or_else(|| io::ErrorKind::InvalidData.into())
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

    fn add(&self, number: u32, file: Arc<dyn DiskFile>) {
        let mut files = self.files.write().expect("no code panics while holding the lock");
        files.insert(number, file);
    }

    fn retire(&self, removed: u32) {
        let mut files = self.files.write().expect("no code panics while holding the lock");
        files.retain(|number, _| number.saturating_add(RETIRED) > removed);
    }
}
