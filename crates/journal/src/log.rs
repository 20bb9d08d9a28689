//! The journal's files: entries are appended, and a segment goes as a whole when nothing in it matters any more.

use crate::entry::Entry;
use crate::record::{self, ChecksumKey};
use crate::replay::{self, Recovery};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
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

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    pub segment: u32,
    pub offset: u64,
    pub length: u32,
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
    buffer: Vec<u8>,
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
        let mut log = Self { disk, options, segments, buffer: Vec::new() };
        if log.segments.is_empty() {
            log.begin_segment(1)?;
        }
        Ok((log, recovery))
    }

    /// Writes an entry. It is durable only after [`JournalLog::sync`].
    pub fn append(&mut self, entry: &Entry, now: u64) -> io::Result<Place> {
        let (mut number, bytes) = self.end();
        if bytes >= self.options.segment_bytes {
            self.sync()?;
            number += 1;
            self.begin_segment(number)?;
        }
        self.buffer.clear();
        record::encode(ChecksumKey(self.options.checksum_seed), entry, &mut self.buffer);
        let segment = self.segments.get_mut(&number).ok_or(io::ErrorKind::NotFound)?;
        if let Err(error) = segment.file.append(&self.buffer) {
            // Whatever part arrived must not stay in the way.
            segment.file.truncate(segment.bytes)?;
            return Err(error);
        }
        let place = Place { segment: number, offset: segment.bytes, length: self.buffer.len() as u32 };
        segment.bytes += self.buffer.len() as u64;
        segment.newest = segment.newest.max(now);
        self.buffer.shrink_to(1 << 20);
        Ok(place)
    }

    pub fn sync(&self) -> io::Result<()> {
        if self.options.planted_no_sync {
            return Ok(());
        }
        let (number, _) = self.end();
        self.segments.get(&number).map_or(Ok(()), |segment| segment.file.sync())
    }

    /// The entry at that place.
    pub fn read(&self, place: Place) -> io::Result<Entry> {
        let segment = self.segments.get(&place.segment).ok_or(io::ErrorKind::NotFound)?;
        let mut bytes = vec![0; place.length as usize];
        segment.file.read_at(place.offset, &mut bytes)?;
        let entry = record::decode(ChecksumKey(self.options.checksum_seed), &Bytes::from(bytes));
        entry.map(|(entry, _)| entry).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The oldest segment, if it is not the one that is written to and all in it is older than that, or there is too much
    /// altogether. Whatever in it is still needed has to be written anew before it is removed.
    pub fn removable(&self, older_than: u64, most_bytes: u64) -> Option<u32> {
        let (number, segment) = self.segments.first_key_value()?;
        let total: u64 = self.segments.values().map(|segment| segment.bytes).sum();
        (self.segments.len() > 1 && (segment.newest < older_than || total > most_bytes)).then_some(*number)
    }

    pub fn remove(&mut self, number: u32) -> io::Result<()> {
        self.sync()?;
        self.disk.remove(&replay::segment_name(number))?;
        self.disk.sync_folder()?;
        self.segments.remove(&number);
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
        self.segments.insert(number, Segment { file, bytes: 0, newest: 0 });
        Ok(())
    }
}
