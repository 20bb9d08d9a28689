//! An append-only log of records in segment files: stages and writes records, rotates to new segments, and removes the
//! oldest ones. All operations that block on the disk (a sync, creating, reading or removing a segment) can run without
//! access to the log, through handles.

use crate::frame::{ChecksumKey, Frame, Location, PROOF};
use crate::reader::Reader;
use crate::recovery::{self, Recovery};
use crate::scan::{Piece, scan};
use crate::{Disk, DiskFile, PlantedBug, Segments};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Configuration of a [`Log`].
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// How the segments are named.
    pub segments: Segments,
    /// Segment size in bytes past which the log rotates to a new segment.
    pub segment_bytes: u64,
    /// Key of the checksums: the folder's secret ([`crate::Identity::seed`]).
    pub key: ChecksumKey,
    /// Whether intact records after a torn one are kept, at the price of a gap in the order.
    pub keep_after_torn: bool,
    /// Number of removed segments that stay readable, for readers that looked a location up just before the removal.
    /// They occupy the disk meanwhile.
    pub readable_after_removal: u32,
    /// A defect for tests to detect. Has no effect without the feature `planted`.
    pub planted: Option<PlantedBug>,
}

/// A segment of a log.
pub struct Segment {
    pub(crate) file: Arc<dyn DiskFile>,
    /// Its length.
    pub bytes: u64,
    /// Bytes that could not be read when the log was opened.
    pub(crate) unreadable: u64,
}

/// An append-only log of records.
pub struct Log {
    disk: Arc<dyn Disk>,
    options: LogOptions,
    segments: BTreeMap<u32, Segment>,
    /// Number of bytes of the active segment that are durable.
    synced_bytes: u64,
    /// Encoded records that have a location and are not written yet.
    staged: Vec<u8>,
    /// The full segment before the active one, while it is not synced. Nothing is written to the active one meanwhile,
    /// because a crash may tear only the end of the log.
    sealing: Option<Unsynced>,
    reader: Reader,
}

impl Log {
    /// Opens the log and calls `each` for all intact records in log order, which are durable then. A torn write at the
    /// end is removed after `before_repair` was called.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: LogOptions,
        before_repair: &mut dyn FnMut() -> io::Result<()>,
        each: &mut dyn FnMut(Frame),
    ) -> io::Result<(Self, Recovery)> {
        let (segments, recovery) = recovery::replay(&*disk, &options, before_repair, each)?;
        let reader = Reader::new(options.key, options.readable_after_removal);
        segments.iter().for_each(|(number, segment)| reader.add(*number, Arc::clone(&segment.file)));
        let mut log = Self { disk, options, segments, synced_bytes: 0, staged: Vec::new(), sealing: None, reader };
        if log.segments.is_empty() {
            log.add_segment(log.following(0).create()?);
        }
        log.synced_bytes = log.end().1;
        Ok((log, recovery))
    }

    /// Encodes a record and assigns its location; the next [`Log::flush`] writes it. `write` appends the payload and
    /// returns its kind.
    pub fn stage(&mut self, write: impl FnOnce(&mut Vec<u8>) -> u8) -> io::Result<Location> {
        let ((segment, offset), from) = (self.end(), self.staged.len());
        self.options.key.encode(segment, offset, self.synced_bytes, &mut self.staged, write);
        let end = offset + (self.staged.len() - from) as u64;
        if end > u64::from(u32::MAX) {
            // Locations have 32 bits.
            self.staged.truncate(from);
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(Location { segment, offset: offset as u32, length: (end - offset) as u32 })
    }

    /// Writes the staged records with one `append`, unless the previous segment is not synced yet. They survive a crash
    /// of this process, and are durable only after a sync. After an error none of them is in the log.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.staged.is_empty() || self.is_sealing() {
            return Ok(());
        }
        let mut active = self.segments.last_entry().ok_or(io::ErrorKind::NotFound)?;
        let segment = active.get_mut();
        let written = segment.file.append(&self.staged);
        if written.is_ok() {
            segment.bytes += self.staged.len() as u64;
        }
        self.discard_staged();
        let Err(error) = written else { return Ok(()) };
        // A partial write would be replayed. If it can't be removed, the state of the disk is unknown, whatever the
        // first error was.
        self.truncate_active().map_or_else(|source| Err(io::Error::other(source)), |()| Err(error))
    }

    /// Forgets the staged records.
    pub fn discard_staged(&mut self) {
        self.staged.clear();
        self.staged.shrink_to(4 << 20);
    }

    /// The segment to create, if the active one is full.
    pub fn next_segment(&self) -> Option<NextSegment> {
        let (segment, bytes) = self.end();
        (bytes >= self.options.segment_bytes && !self.is_sealing()).then(|| self.following(segment))
    }

    /// Rotates to the new segment. Records are only staged until the caller has synced the full segment and called
    /// [`Log::sealed`].
    pub fn seal(&mut self, created: CreatedSegment) -> io::Result<()> {
        self.flush()?;
        self.sealing = Some(Unsynced { is_full: true, ..self.unsynced() });
        self.add_segment(created);
        Ok(())
    }

    /// The full segment of an unfinished rotation, to be synced.
    pub fn unsynced_sealed(&self) -> Option<Unsynced> {
        self.sealing.clone()
    }

    /// The full segment is durable, so that staged records may be written.
    pub fn sealed(&mut self) {
        self.sealing = None;
    }

    /// Whether records are only staged, because the previous segment is not synced yet.
    pub fn is_sealing(&self) -> bool {
        self.sealing.is_some()
    }

    /// Rotates to a new segment at once. Blocks on the disk. If the disk is full, the log stays as it was.
    pub fn rotate(&mut self) -> io::Result<()> {
        self.seal(self.following(self.active_segment()).create()?)?;
        // A sync that finds no room is a failure like any other.
        self.unsynced_sealed().map_or(Ok(()), |full| full.sync()).map_err(io::Error::other)?;
        self.sealed();
        Ok(())
    }

    /// A handle to sync the records written so far, concurrently with further writes.
    pub fn unsynced(&self) -> Unsynced {
        let active = self.segments.last_key_value();
        let file = active.map(|(_, segment)| Arc::clone(&segment.file));
        let file = file.filter(|_| !self.options.has_planted(PlantedBug::NoSync));
        let bytes = active.map_or(0, |(_, segment)| segment.bytes);
        Unsynced { file, segment: self.active_segment(), bytes, is_full: false }
    }

    /// Records that the handle was synced.
    pub fn synced(&mut self, what: &Unsynced) {
        // An earlier segment was synced before the active one was written to.
        if self.active_segment() == what.segment {
            self.synced_bytes = self.synced_bytes.max(what.bytes);
        }
    }

    /// A reader that works concurrently with writes.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The oldest segment, unless it is the active one.
    pub fn oldest(&self) -> Option<(u32, &Segment)> {
        (self.segments.len() > 1).then(|| self.segments.first_key_value()).flatten().map(|(number, it)| (*number, it))
    }

    /// A handle to read a segment without access to the log.
    pub fn contents(&self, number: u32) -> io::Result<Contents> {
        let segment = self.segments.get(&number).ok_or(io::ErrorKind::NotFound)?;
        let (file, unreadable) = (Arc::clone(&segment.file), segment.unreadable);
        Ok(Contents { options: self.options.clone(), file, number, unreadable })
    }

    /// Size of all segments in bytes.
    pub fn bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.bytes).sum()
    }

    /// Size of the active segment in bytes.
    pub fn active_bytes(&self) -> u64 {
        self.segments.last_key_value().map_or(0, |(_, segment)| segment.bytes)
    }

    /// The number of the active segment.
    pub fn active_segment(&self) -> u32 {
        self.end().0
    }

    /// Segment size in bytes past which the log rotates.
    pub fn segment_bytes(&self) -> u64 {
        self.options.segment_bytes
    }

    /// A handle to remove the file of a segment without access to the log.
    pub fn file_of(&self, number: u32) -> SegmentFile {
        SegmentFile { disk: Arc::clone(&self.disk), segments: self.options.segments, number }
    }

    /// Records that the file of a segment was removed, and returns its size. Records that are still needed must have been
    /// copied before.
    pub fn removed(&mut self, number: u32) -> u64 {
        self.reader.retire(number);
        self.segments.remove(&number).map_or(0, |segment| segment.bytes)
    }

    fn truncate_active(&self) -> io::Result<()> {
        self.segments.last_key_value().map_or(Ok(()), |(_, segment)| segment.file.truncate(segment.bytes))
    }

    /// The number of the active segment, and its size including staged records.
    fn end(&self) -> (u32, u64) {
        let staged = self.staged.len() as u64;
        self.segments.last_key_value().map_or((1, 0), |(number, segment)| (*number, segment.bytes + staged))
    }

    fn following(&self, number: u32) -> NextSegment {
        NextSegment(SegmentFile { number: number + 1, ..self.file_of(number) })
    }

    fn add_segment(&mut self, CreatedSegment { number, file }: CreatedSegment) {
        self.reader.add(number, Arc::clone(&file));
        self.segments.insert(number, Segment { file, bytes: 0, unreadable: 0 });
        self.synced_bytes = 0;
    }
}

/// A segment to be created, without access to the log.
pub struct NextSegment(SegmentFile);

/// An empty segment whose directory entry is durable.
pub struct CreatedSegment {
    number: u32,
    file: Arc<dyn DiskFile>,
}

impl NextSegment {
    /// Creates the file. Blocks on the disk.
    pub fn create(&self) -> io::Result<CreatedSegment> {
        let SegmentFile { disk, segments, number } = &self.0;
        Ok(CreatedSegment { number: *number, file: segments.create(&**disk, *number)? })
    }
}

/// The records that had been written at some moment, to be synced.
#[derive(Clone)]
pub struct Unsynced {
    /// Absent if syncs are no-ops.
    file: Option<Arc<dyn DiskFile>>,
    segment: u32,
    bytes: u64,
    /// The segment gets no more records.
    is_full: bool,
}

impl Unsynced {
    /// Makes the records durable. Blocks. The caller reports it with [`Log::synced`].
    pub fn sync(&self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        // Whatever was prepared for further records takes space, and would count as corruption if it were damaged.
        if self.is_full {
            file.truncate(self.bytes)?;
        }
        file.sync()
    }
}

/// A segment that is no longer written to.
pub struct Contents {
    options: LogOptions,
    file: Arc<dyn DiskFile>,
    number: u32,
    unreadable: u64,
}

impl Contents {
    /// Reads all intact records. Fails if more bytes are unreadable than when the log was opened: a record that was lost
    /// meanwhile must not vanish with its segment. Blocks.
    pub fn read(&self, each: &mut dyn FnMut(Frame)) -> io::Result<()> {
        let mut unreadable = 0;
        scan(self.options.key, self.number, &*self.file, 0, &mut |piece| {
            match piece {
                Piece::Record(frame) if frame.kind == PROOF => {}
                Piece::Record(frame) => each(frame),
                Piece::Unreadable(range) => unreadable += range.end - range.start,
            }
            Ok(())
        })?;
        if unreadable > self.unreadable {
            let text = format!("{} was corrupted since it was opened", self.options.segments.name(self.number));
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(())
    }
}

/// The file of a segment.
pub struct SegmentFile {
    disk: Arc<dyn Disk>,
    segments: Segments,
    number: u32,
}

impl SegmentFile {
    /// Removes the file durably. Blocks on the disk.
    pub fn remove(&self) -> io::Result<()> {
        self.segments.remove(&*self.disk, self.number)
    }
}
