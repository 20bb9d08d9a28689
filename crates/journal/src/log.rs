//! The journal's files: entries are appended, and a segment goes as a whole when nothing in it matters any more.

use crate::entry::Entry;
use crate::record::{self, ChecksumKey};
use crate::replay::{self, Recovery, SEGMENTS};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, RwLock};
use toolbus_wal::{Disk, DiskFile};

#[derive(Debug, Clone)]
pub struct LogOptions {
    /// A new segment is begun past this size.
    pub segment_bytes: u64,
    /// The folder's secret.
    pub checksum_seed: u64,
    /// Lets syncs do nothing, for tests of the tests.
    pub planted_no_sync: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { segment_bytes: 16 << 20, checksum_seed: 0, planted_no_sync: false }
    }
}

/// Where an entry is, or what it carries while it is on its way there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Log { segment: u32, offset: u64, length: u32 },
    Held(Bytes),
}

impl Place {
    pub fn segment(&self) -> Option<u32> {
        match self {
            Self::Log { segment, .. } => Some(*segment),
            Self::Held(_) => None,
        }
    }
}

pub struct Segment {
    pub file: Arc<dyn DiskFile>,
    pub bytes: u64,
    /// The youngest entry in it, in milliseconds since 1970.
    pub newest: u64,
}

/// Appends, syncs, reads back. Everything that may block on the disk (a sync, a new segment, reading or removing one) can be
/// done without holding it.
pub struct JournalLog {
    disk: Arc<dyn Disk>,
    options: LogOptions,
    segments: BTreeMap<u32, Segment>,
    /// How much of the last segment is certainly on disk.
    safe: u64,
    /// Records that have a place and are not written yet.
    staged: Vec<u8>,
    /// The segment before the last is not synced yet, so nothing is written to the last one: a crash may tear only the end
    /// of the log.
    held: bool,
    reader: Reader,
}

impl JournalLog {
    /// Opens the log, cuts off what a crash left unfinished, and tells what is in it, in order.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: LogOptions,
        mut each: impl FnMut(Entry, Place),
    ) -> io::Result<(Self, Recovery)> {
        let key = ChecksumKey(options.checksum_seed);
        let (segments, recovery) = replay::replay(&*disk, key, &mut each)?;
        let files = segments.iter().map(|(number, segment)| (*number, Arc::clone(&segment.file))).collect();
        let reader = Reader { key, files: Arc::new(RwLock::new(files)) };
        let mut log = Self { disk, options, segments, safe: 0, staged: Vec::new(), held: false, reader };
        if log.segments.is_empty() {
            let next = NextSegment { disk: Arc::clone(&log.disk), number: 1 };
            log.add_segment(next.create()?);
        }
        // What an earlier process wrote and did not sync counts from now on, so it has to stay.
        log.sync()?;
        Ok((log, recovery))
    }

    /// Writes entries with one call, to a new segment if the last one is full. They are durable only after a sync, but
    /// outlive this process from now on.
    pub fn append<'a>(&mut self, entries: impl IntoIterator<Item = &'a Entry>, now: u64) -> io::Result<Vec<Place>> {
        if let Some(next) = self.next_segment() {
            let sealed = self.seal(next.create()?)?;
            sealed.sync()?;
            self.sealed();
        }
        self.append_here(entries, now)
    }

    /// The same, to the last segment even if it is full.
    pub fn append_here<'a>(
        &mut self,
        entries: impl IntoIterator<Item = &'a Entry>,
        now: u64,
    ) -> io::Result<Vec<Place>> {
        let places = entries.into_iter().map(|entry| self.stage(entry, now)).collect::<io::Result<_>>()?;
        self.flush()?;
        Ok(places)
    }

    /// Gives an entry its place. It is written with the next [`JournalLog::flush`].
    pub fn stage(&mut self, entry: &Entry, now: u64) -> io::Result<Place> {
        let End { segment, bytes: offset } = self.end();
        let from = self.staged.len();
        record::encode(ChecksumKey(self.options.checksum_seed), entry, self.safe, &mut self.staged);
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.newest = segment.newest.max(now);
        }
        Ok(Place::Log { segment, offset, length: (self.staged.len() - from) as u32 })
    }

    /// Writes what was staged, unless the segment before is not synced yet.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.staged.is_empty() || self.held {
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
        // Whatever part arrived must not stay in the way.
        written.or_else(|error| segment.file.truncate(segment.bytes).and(Err(error)))
    }

    /// The segment to create, if the last one is full.
    pub fn next_segment(&self) -> Option<NextSegment> {
        let End { segment, bytes } = self.end();
        let is_full = bytes >= self.options.segment_bytes && !self.held;
        is_full.then(|| NextSegment { disk: Arc::clone(&self.disk), number: segment + 1 })
    }

    /// Entries go to the new segment from now on. They are only staged until the returned end of the full one is synced and
    /// [`JournalLog::sealed`] was called.
    pub fn seal(&mut self, created: CreatedSegment) -> io::Result<Unsynced> {
        self.flush()?;
        let full = self.unsynced().ok_or(io::ErrorKind::NotFound)?;
        self.add_segment(created);
        self.held = true;
        Ok(full)
    }

    /// The full segment is durable.
    pub fn sealed(&mut self) {
        self.held = false;
    }

    /// Whether entries are only staged for now.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// Makes everything durable that was written.
    pub fn sync(&mut self) -> io::Result<()> {
        let Some(unsynced) = self.unsynced() else { return Ok(()) };
        unsynced.sync()?;
        self.synced(&unsynced);
        Ok(())
    }

    /// What was written so far, to be synced while others write.
    pub fn unsynced(&self) -> Option<Unsynced> {
        let (number, segment) = self.segments.last_key_value()?;
        let file = (!self.options.planted_no_sync).then(|| Arc::clone(&segment.file));
        Some(Unsynced { file, segment: *number, bytes: segment.bytes })
    }

    /// It is durable now.
    pub fn synced(&mut self, what: &Unsynced) {
        // A segment that is not the last one was synced before the next was begun.
        if self.end().segment == what.segment {
            self.safe = self.safe.max(what.bytes);
        }
    }

    /// Reads while others write.
    pub fn reader(&self) -> Reader {
        self.reader.clone()
    }

    /// The oldest segment, unless it is the one that is written to.
    pub fn oldest(&self) -> Option<(u32, &Segment)> {
        (self.segments.len() > 1).then(|| self.segments.first_key_value()).flatten().map(|(number, it)| (*number, it))
    }

    /// What can be read of a segment, without the log while it is read.
    pub fn contents(&self, number: u32) -> io::Result<Contents> {
        let segment = self.segments.get(&number).ok_or(io::ErrorKind::NotFound)?;
        Ok(Contents { key: self.reader.key, file: Arc::clone(&segment.file), number })
    }

    pub fn bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.bytes).sum()
    }

    pub fn segment_bytes(&self) -> u64 {
        self.options.segment_bytes
    }

    /// The file of a segment, to be removed without the log.
    pub fn file_of(&self, number: u32) -> SegmentFile {
        SegmentFile { disk: Arc::clone(&self.disk), number }
    }

    /// The file of that segment is gone. Whatever in it is still needed has been written anew.
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
        self.segments.insert(number, Segment { file, bytes: 0, newest: 0 });
        self.safe = 0;
    }
}

/// A segment that is to be created, without the log while that takes.
pub struct NextSegment {
    disk: Arc<dyn Disk>,
    number: u32,
}

/// An empty segment whose name is durable.
pub struct CreatedSegment {
    number: u32,
    file: Arc<dyn DiskFile>,
}

impl NextSegment {
    pub fn create(&self) -> io::Result<CreatedSegment> {
        Ok(CreatedSegment { number: self.number, file: SEGMENTS.create(&*self.disk, self.number)? })
    }
}

/// The end of the last segment, behind what is staged.
#[derive(Clone, Copy)]
struct End {
    segment: u32,
    bytes: u64,
}

/// What had been appended at some moment.
pub struct Unsynced {
    /// Absent where syncs do nothing.
    file: Option<Arc<dyn DiskFile>>,
    segment: u32,
    bytes: u64,
}

impl Unsynced {
    pub fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| file.sync())
    }
}

/// A segment that is not written to any more.
pub struct Contents {
    key: ChecksumKey,
    file: Arc<dyn DiskFile>,
    number: u32,
}

impl Contents {
    pub fn read(&self) -> io::Result<Vec<(Place, Entry)>> {
        replay::entries(self.key, &*self.file, self.number)
    }
}

pub struct SegmentFile {
    disk: Arc<dyn Disk>,
    number: u32,
}

impl SegmentFile {
    pub fn remove(&self) -> io::Result<()> {
        SEGMENTS.remove(&*self.disk, self.number)
    }
}

/// Reads entries back without waiting for whoever writes.
#[derive(Clone)]
pub struct Reader {
    key: ChecksumKey,
    files: Arc<RwLock<BTreeMap<u32, Arc<dyn DiskFile>>>>,
}

/// Segments that can still be read after they were removed, by those who looked something up just before.
const RETIRED: u32 = 2;

impl Reader {
    /// The entry at that place; none if nothing was written down yet.
    pub fn read(&self, place: &Place) -> io::Result<Entry> {
        let Place::Log { segment, offset, length } = *place else { return Err(io::ErrorKind::InvalidInput.into()) };
        let files = self.files.read().expect("no code panics while it holds the list of files");
        let file = Arc::clone(files.get(&segment).ok_or(io::ErrorKind::NotFound)?);
        drop(files);
        let mut bytes = vec![0; length as usize];
        file.read_at(offset, &mut bytes)?;
        let record = record::decode(self.key, &Bytes::from(bytes));
        record.map(|record| record.entry).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// What the entry at that place carries: a reply or a request.
    pub fn carried(&self, place: &Place) -> io::Result<Bytes> {
        if let Place::Held(bytes) = place {
            return Ok(bytes.clone());
        }
        match self.read(place)? {
            Entry::Finish(finish) => Ok(finish.reply),
            Entry::Task(task) => Ok(task.request),
            Entry::Dead(dead) => Ok(dead.request),
            Entry::Start(_) | Entry::Joined(_) | Entry::Dropped(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn add(&self, number: u32, file: Arc<dyn DiskFile>) {
        let mut files = self.files.write().expect("no code panics while it holds the list of files");
        files.insert(number, file);
    }

    fn retire(&self, removed: u32) {
        let mut files = self.files.write().expect("no code panics while it holds the list of files");
        files.retain(|number, _| number.saturating_add(RETIRED) > removed);
    }
}
