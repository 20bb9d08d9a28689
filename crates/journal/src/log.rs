//! The journal's files: entries are appended, and a segment goes as a whole when nothing in it matters any more.

use crate::entry::Entry;
use crate::record::{self, ChecksumKey};
use crate::replay::{self, Recovery};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, RwLock};
use toolbus_store::{Disk, DiskFile};

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

pub struct Segment {
    pub file: Arc<dyn DiskFile>,
    pub bytes: u64,
    /// The youngest entry in it, in milliseconds since 1970.
    pub newest: u64,
}

/// Appends, syncs, reads back. One writer at a time.
pub struct JournalLog {
    disk: Arc<dyn Disk>,
    options: LogOptions,
    segments: BTreeMap<u32, Segment>,
    /// How much of the last segment is certainly on disk.
    safe: u64,
    buffer: Vec<u8>,
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
        let mut log = Self { disk, options, segments, safe: 0, buffer: Vec::new(), reader };
        if log.segments.is_empty() {
            log.begin_segment(1)?;
        }
        // What an earlier process wrote and did not sync counts from now on, so it has to stay.
        log.sync()?;
        Ok((log, recovery))
    }

    /// Writes entries with one call. They are durable only after [`JournalLog::sync`].
    pub fn append<'a>(&mut self, entries: impl IntoIterator<Item = &'a Entry>, now: u64) -> io::Result<Vec<Place>> {
        let (mut number, bytes) = self.end();
        if bytes >= self.options.segment_bytes {
            self.sync()?;
            number += 1;
            self.begin_segment(number)?;
        }
        let segment = self.segments.get_mut(&number).ok_or(io::ErrorKind::NotFound)?;
        let key = ChecksumKey(self.options.checksum_seed);
        self.buffer.clear();
        let mut places = Vec::new();
        for entry in entries {
            let from = self.buffer.len();
            record::encode(key, entry, self.safe, &mut self.buffer);
            let (offset, length) = (segment.bytes + from as u64, (self.buffer.len() - from) as u32);
            places.push(Place::Log { segment: number, offset, length });
        }
        if let Err(error) = segment.file.append(&self.buffer) {
            // Whatever part arrived must not stay in the way.
            segment.file.truncate(segment.bytes)?;
            return Err(error);
        }
        segment.bytes += self.buffer.len() as u64;
        segment.newest = segment.newest.max(now);
        self.buffer.clear();
        self.buffer.shrink_to(1 << 20);
        Ok(places)
    }

    pub fn sync(&mut self) -> io::Result<()> {
        let Some((_, segment)) = self.segments.last_key_value() else { return Ok(()) };
        if !self.options.planted_no_sync {
            segment.file.sync()?;
        }
        self.safe = segment.bytes;
        Ok(())
    }

    /// Reads while others write.
    pub fn reader(&self) -> Reader {
        self.reader.clone()
    }

    /// The oldest segment, unless it is the one that is written to.
    pub fn oldest(&self) -> Option<(u32, &Segment)> {
        (self.segments.len() > 1).then(|| self.segments.first_key_value()).flatten().map(|(number, it)| (*number, it))
    }

    /// What can be read of a segment.
    pub fn entries(&self, number: u32) -> io::Result<Vec<(Place, Entry)>> {
        let segment = self.segments.get(&number).ok_or(io::ErrorKind::NotFound)?;
        replay::entries(self.reader.key, &*segment.file, number)
    }

    pub fn bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.bytes).sum()
    }

    pub fn segment_bytes(&self) -> u64 {
        self.options.segment_bytes
    }

    /// Removes a segment. Whatever in it is still needed has been written anew.
    pub fn remove(&mut self, number: u32) -> io::Result<()> {
        self.sync()?;
        self.disk.remove(&replay::segment_name(number))?;
        self.disk.sync_folder()?;
        self.segments.remove(&number);
        self.reader.retire(number);
        Ok(())
    }

    fn end(&self) -> (u32, u64) {
        self.segments.last_key_value().map_or((1, 0), |(number, segment)| (*number, segment.bytes))
    }

    fn begin_segment(&mut self, number: u32) -> io::Result<()> {
        let name = replay::segment_name(number);
        let file = self.disk.create(&name)?;
        if let Err(error) = self.disk.sync_folder() {
            self.disk.remove(&name).ok();
            return Err(error);
        }
        self.reader.add(number, Arc::clone(&file));
        self.segments.insert(number, Segment { file, bytes: 0, newest: 0 });
        self.safe = 0;
        Ok(())
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
