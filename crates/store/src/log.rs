//! The append-only log: writes and syncs batches.

use crate::index::{Index, Location, RememberedId, Segment};
use crate::reclaim::Urgency;
use crate::record::{self, ChecksumKey, PutRange};
use crate::replay::{self, Recovery, Replay, restored};
use crate::{Disk, DiskFile};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use toolbus_engine::{Batch, Message, Millis, Page, Seq};
use toolbus_wal::{Segments, is_full};

/// Durable storage for the engine's batches.
pub trait Store: Send + Sync {
    /// Appends a batch. It is durable only after the next [`Store::sync`].
    fn write(&self, batch: &Batch) -> Result<(), StoreError>;
    /// Makes all written batches durable.
    fn sync(&self) -> Result<(), StoreError>;
    /// Reads pending messages of a mailbox in order, at least one if any is pending.
    fn read(&self, mailbox: &str, from: Seq, max_messages: usize, max_bytes: u64) -> Result<Page, StoreError>;
    /// Removes segments of settled messages and returns the freed bytes. Must not run concurrently with a write.
    fn reclaim(&self) -> Result<u64, StoreError>;
    /// Like [`Store::reclaim`], for a disk that is almost full: also reclaims the active segment, and copies pending
    /// messages for less gain. Must not run concurrently with a write.
    fn reclaim_urgently(&self) -> Result<u64, StoreError>;
    /// Free space of the disk in bytes.
    fn free_bytes(&self) -> Result<u64, StoreError>;
}

/// Why an operation of the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No part of the batch was kept; the store remains usable.
    #[error("the disk is full")]
    Full,
    /// The state on disk is unknown; the process must stop.
    #[error("can't {what} {file}: {source}")]
    Io {
        /// The failed operation, as a verb phrase.
        what: &'static str,
        /// The file that the operation was about.
        file: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl StoreError {
    /// True if the failed operation was only the query of the free space.
    pub fn is_about_space(&self) -> bool {
        matches!(self, Self::Io { what: MEASURE_SPACE, .. })
    }
}

const MEASURE_SPACE: &str = "determine the free space of";

/// Configuration of a [`LogStore`].
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Segment size in bytes past which the log rotates to a new segment.
    pub segment_bytes: u64,
    /// Maximum number of settled ids that are kept for deduplication when their segment is removed.
    pub history_ids: usize,
    /// How long settled ids are kept for deduplication.
    pub history_age: Millis,
    /// Key of the checksums: the folder's secret ([`crate::Identity::seed`]), so that no body can contain a valid
    /// record.
    pub checksum_seed: u64,
    /// Turns fsync into a no-op, to check that the tests detect it. Ignored without the feature `testing`.
    pub planted_no_sync: bool,
}

impl StoreOptions {
    pub(crate) fn checksum_key(&self) -> ChecksumKey {
        ChecksumKey(self.checksum_seed)
    }
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            history_ids: 100_000,
            history_age: 3_600_000,
            checksum_seed: 0,
            planted_no_sync: false,
        }
    }
}

/// A [`Store`] on append-only segment files.
pub struct LogStore {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) options: StoreOptions,
    pub(crate) index: Mutex<Index>,
    writer: Mutex<Writer>,
}

/// The append position of the log.
struct Writer {
    segment: u32,
    file: Arc<dyn DiskFile>,
    bytes: u64,
    next_number: u64,
    next_seq: Seq,
    /// True if there are writes since the last sync.
    dirty: bool,
    buffer: Vec<u8>,
}

/// Where a batch was appended.
pub(crate) struct Appended {
    pub segment: u32,
    start: u64,
    put_ranges: Vec<PutRange>,
}

impl LogStore {
    /// Opens the log, truncates a torn write at its end, and replays all records.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: StoreOptions,
        replay: &mut dyn Replay,
    ) -> Result<(Self, Recovery), StoreError> {
        let mut replayed = replay::replay(&*disk, &options, replay)?;
        let segment = replayed.index.segments.keys().next_back().copied();
        let (segment, file) = match segment {
            Some(last) => (last, Arc::clone(&replayed.index.segments[&last].file)),
            None => (1, begin_segment(&*disk, &mut replayed.index, 1)?),
        };
        let bytes = file.size().map_err(io_error("get the size of", segment))?;
        let writer = Writer {
            segment,
            file,
            bytes,
            next_number: replayed.next_number,
            next_seq: replayed.recovery.next_seq,
            dirty: false,
            buffer: Vec::new(),
        };
        let store = Self { disk, options, index: Mutex::new(replayed.index), writer: Mutex::new(writer) };
        store.rewrite_salvaged(replayed.salvaged, &replayed.recovery, replay)?;
        Ok((store, replayed.recovery))
    }

    /// Rewrites the intact messages of a torn batch. They are replayed only once they are durable.
    fn rewrite_salvaged(
        &self,
        salvaged: Vec<Message>,
        recovery: &Recovery,
        replay: &mut dyn Replay,
    ) -> Result<(), StoreError> {
        // With the torn write truncated, corruption before it may be the end of the log. Only a batch after it, even an
        // empty one, keeps the next replay from truncating it as a torn write.
        let needs_end = recovery.torn_bytes > 0 && recovery.damaged > 0;
        if salvaged.is_empty() && !needs_end {
            return Ok(());
        }
        let batch = Batch { puts: salvaged.into_iter().map(Arc::new).collect(), ..Batch::default() };
        match self.write(&batch).and_then(|()| self.sync()) {
            Ok(()) => batch.puts.iter().for_each(|message| replay.message(restored(message))),
            // These messages were never receipted, so a full disk must not prevent the broker from starting.
            Err(StoreError::Full) => {
                tracing::warn!(messages = batch.puts.len(), "disk full: dropped the messages of a torn batch")
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(crate) fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().expect("no code panics while holding the index lock")
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().expect("no code panics while holding the writer lock")
    }

    /// The segment that batches are appended to.
    pub(crate) fn active_segment(&self) -> u32 {
        self.writer().segment
    }

    fn sync_writer(&self, writer: &mut Writer) -> Result<(), StoreError> {
        let skip = cfg!(feature = "testing") && self.options.planted_no_sync;
        if writer.dirty && !skip {
            writer.file.sync().map_err(io_error("sync", writer.segment))?;
        }
        writer.dirty = false;
        Ok(())
    }

    /// Settlements that failed on a full disk are retried, but the space of the settled messages can be reclaimed
    /// already, which may make room for the retry. A batch with messages is exempt: rejecting a reply also undoes the
    /// acknowledgement that it taken.
    fn free_settled(&self, batch: &Batch) {
        if batch.puts.is_empty() {
            let mut index = self.index();
            for (mailbox, seq) in batch.settled.iter().filter_map(|settled| settled.stored.as_ref()) {
                index.remove(mailbox, *seq);
            }
        }
    }

    fn rotate_if_full(&self, writer: &mut Writer) -> Result<(), StoreError> {
        if writer.bytes < self.options.segment_bytes { Ok(()) } else { self.rotate(writer) }
    }

    /// Rotates to a new segment if most of the active one is settled: the active segment can't be removed.
    fn seal_wasteful_segment(&self) -> Result<(), StoreError> {
        let mut writer = self.writer();
        let live = self.index().segments.get(&writer.segment).map_or(0, |segment| segment.live_bytes);
        if writer.bytes < SMALLEST_SEALED || live > writer.bytes / 2 {
            return Ok(());
        }
        self.sync_writer(&mut writer)?;
        self.rotate(&mut writer)
    }

    fn rotate(&self, writer: &mut Writer) -> Result<(), StoreError> {
        let next = writer.segment + 1;
        writer.file = match begin_segment(&*self.disk, &mut self.index(), next) {
            Ok(file) => file,
            // Without space for a new file the active segment keeps growing.
            Err(StoreError::Io { source, .. }) if is_full(&source) => return Ok(()),
            Err(error) => return Err(error),
        };
        writer.segment = next;
        writer.bytes = 0;
        Ok(())
    }

    /// Appends a batch to the log. The caller updates the index.
    pub(crate) fn append(&self, batch: &Batch) -> Result<Appended, StoreError> {
        let mut guard = self.writer();
        let writer = &mut *guard;
        // Invariant: a batch is durable before the next one is appended. Replay relies on it to tell a torn write (the
        // last batch) from corruption (an unreadable batch before a readable one).
        self.sync_writer(writer)?;
        self.rotate_if_full(writer)?;
        writer.next_seq = writer.next_seq.max(batch.next_seq);
        let mut buffer = std::mem::take(&mut writer.buffer);
        buffer.clear();
        let put_ranges =
            record::encode_batch(self.options.checksum_key(), batch, writer.next_number, writer.next_seq, &mut buffer);
        let appended = match writer.bytes + buffer.len() as u64 {
            // Offsets in the index have 32 bits.
            0..=0xffff_ffff => writer.file.append(&buffer),
            _ => Err(io::ErrorKind::StorageFull.into()),
        };
        let written = buffer.len() as u64;
        buffer.shrink_to(4 << 20);
        writer.buffer = buffer;
        if let Err(source) = appended {
            // Remove a partially written batch, or replay would find it.
            writer.file.truncate(writer.bytes).map_err(io_error("truncate", writer.segment))?;
            writer.dirty = true;
            if !is_full(&source) {
                return Err(io_error("write", writer.segment)(source));
            }
            drop(guard);
            self.free_settled(batch);
            return Err(StoreError::Full);
        }
        let start = writer.bytes;
        let segment = writer.segment;
        writer.bytes += written;
        writer.dirty = true;
        writer.next_number += 1;
        let bytes = writer.bytes;
        drop(guard);
        if let Some(segment) = self.index().segments.get_mut(&segment) {
            segment.bytes = bytes;
        }
        Ok(Appended { segment, start, put_ranges })
    }
}

impl Store for LogStore {
    fn write(&self, batch: &Batch) -> Result<(), StoreError> {
        let Appended { segment, start, put_ranges } = self.append(batch)?;
        let mut index = self.index();
        for (message, range) in batch.puts.iter().zip(put_ranges) {
            let location = Location { segment, offset: (start + range.offset as u64) as u32, length: range.length };
            index.add(&message.mailbox, message.seq, location);
        }
        for settled in &batch.settled {
            if let Some((mailbox, seq)) = &settled.stored {
                index.remove(mailbox, *seq);
            }
            let id =
                RememberedId { fingerprint: settled.fingerprint, content: settled.content, at: settled.at, segment };
            index.remember(id, self.options.history_ids, self.options.history_age);
        }
        batch.attempts.iter().for_each(|note| index.note_attempts(note));
        Ok(())
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.sync_writer(&mut self.writer())
    }

    fn read(&self, mailbox: &str, from: Seq, max_messages: usize, max_bytes: u64) -> Result<Page, StoreError> {
        self.read_page(mailbox, from, max_messages, max_bytes)
    }

    fn reclaim(&self) -> Result<u64, StoreError> {
        self.reclaim_segments(Urgency::Routine)
    }

    fn reclaim_urgently(&self) -> Result<u64, StoreError> {
        self.seal_wasteful_segment()?;
        self.reclaim_segments(Urgency::DiskLow)
    }

    fn free_bytes(&self) -> Result<u64, StoreError> {
        self.disk.free_bytes().map_err(|source| StoreError::Io { what: MEASURE_SPACE, file: "the disk".into(), source })
    }
}

/// Smaller segments are not sealed early, even on a full disk: the gain is not worth a new file.
const SMALLEST_SEALED: u64 = 64 << 10;

pub(crate) const SEGMENTS: Segments = Segments { prefix: "segment-" };

fn begin_segment(disk: &dyn Disk, index: &mut Index, number: u32) -> Result<Arc<dyn DiskFile>, StoreError> {
    let file = SEGMENTS.create(disk, number).map_err(io_error("create", number))?;
    let segment = Segment { file: Arc::clone(&file), bytes: 0, live: 0, live_bytes: 0 };
    index.segments.insert(number, segment);
    Ok(file)
}

pub(crate) fn io_error(what: &'static str, segment: u32) -> impl Fn(io::Error) -> StoreError {
    move |source| StoreError::Io { what, file: SEGMENTS.name(segment), source }
}
