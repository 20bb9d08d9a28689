//! The append-only log: writes and syncs batches.

use crate::Disk;
use crate::index::{Index, RememberedId};
use crate::reclaim::Urgency;
use crate::record;
use crate::replay::{Recovery, Replay, Replaying};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use toolbus_engine::{Batch, Millis, Page, Seq};
use toolbus_wal::{ChecksumKey, GroupCommit, Location, Log, LogOptions, PlantedBug, Reader, Segments, is_full};

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
    pub(crate) fn of_log(&self) -> LogOptions {
        LogOptions {
            segments: SEGMENTS,
            segment_bytes: self.segment_bytes,
            key: ChecksumKey(self.checksum_seed),
            // A sender repeats the messages of a torn write, so later ones would overtake them.
            keep_after_torn: false,
            readable_after_removal: 0,
            planted: self.planted_no_sync.then_some(PlantedBug::NoSync),
        }
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
    pub(crate) reader: Reader,
    writer: Mutex<Writer>,
}

/// The end of the log.
struct Writer {
    log: Log,
    commit: GroupCommit<()>,
    next_seq: Seq,
}

/// Where the messages of a batch were appended, and the segment of all its records.
pub(crate) struct Appended {
    pub segment: u32,
    puts: Vec<Location>,
}

impl LogStore {
    /// Opens the log, truncates a torn write at its end, and replays all records.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: StoreOptions,
        replay: &mut dyn Replay,
    ) -> Result<(Self, Recovery), StoreError> {
        let mut replaying = Replaying::new(&options, replay);
        let opened =
            Log::open(Arc::clone(&disk), options.of_log(), &mut || Ok(()), &mut |frame| replaying.record(frame));
        let (log, log_recovery) =
            opened.map_err(|source| StoreError::Io { what: "open", file: "the message log".into(), source })?;
        let (index, recovery) = replaying.finish(log_recovery);
        let reader = log.reader().clone();
        let writer = Writer { log, commit: GroupCommit::default(), next_seq: recovery.next_seq };
        Ok((Self { disk, options, index: Mutex::new(index), reader, writer: Mutex::new(writer) }, recovery))
    }

    pub(crate) fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().expect("no code panics while holding the index lock")
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().expect("no code panics while holding the writer lock")
    }

    /// Gives access to the log. Writers wait meanwhile.
    pub(crate) fn with_log<T>(&self, operation: impl FnOnce(&mut Log) -> T) -> T {
        operation(&mut self.writer().log)
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

    /// Rotates to a new segment if most of the active one is settled: the active segment can't be removed.
    fn seal_wasteful_segment(&self) -> Result<(), StoreError> {
        let mut writer = self.writer();
        let (segment, bytes) = (writer.log.active_segment(), writer.log.active_bytes());
        if bytes < SMALLEST_SEALED || self.index().live(segment).bytes > bytes / 2 {
            return Ok(());
        }
        writer.sync()?;
        writer.rotate()
    }

    /// Appends a batch to the log. The caller updates the index.
    pub(crate) fn append(&self, batch: &Batch) -> Result<Appended, StoreError> {
        let appended = self.writer().append(batch);
        if let Err(StoreError::Full) = appended {
            self.free_settled(batch);
        }
        appended
    }
}

impl Writer {
    fn append(&mut self, batch: &Batch) -> Result<Appended, StoreError> {
        // Batches before it need not be durable: replay removes everything from the first torn record on, and no batch
        // counts as durable before all earlier ones are.
        if let Some(error) = self.commit.failure() {
            return Err(io_error("sync", self.log.active_segment())(repeated(error)));
        }
        if self.log.next_segment().is_some() {
            self.rotate()?;
        }
        self.next_seq = self.next_seq.max(batch.next_seq);
        let segment = self.log.active_segment();
        let staged = record::stage_batch(&mut self.log, batch, self.next_seq);
        let written = staged.and_then(|puts| self.log.flush().map(|()| puts));
        self.commit.changed(Some(()));
        match written {
            Ok(puts) => Ok(Appended { segment, puts }),
            Err(error) if is_full(&error) => {
                self.log.discard_staged();
                Err(StoreError::Full)
            }
            Err(error) => Err(self.fail("write", error)),
        }
    }

    /// Makes all batches durable. A failure is final: a second sync could succeed although the data is lost.
    fn sync(&mut self) -> Result<(), StoreError> {
        if let Some(group) = self.commit.begin_sync(&mut self.log) {
            let synced = group.sync();
            self.commit.complete_sync(&mut self.log, group, synced).1.ok();
        }
        let failure = self.commit.failure();
        failure.map_or(Ok(()), |error| Err(io_error("sync", self.log.active_segment())(repeated(error))))
    }

    fn rotate(&mut self) -> Result<(), StoreError> {
        match self.log.rotate() {
            // Without space for a new file the active segment keeps growing.
            Err(error) if is_full(&error) => Ok(()),
            rotated => rotated.map_err(|error| self.fail("create", error)),
        }
    }

    fn fail(&mut self, what: &'static str, error: io::Error) -> StoreError {
        io_error(what, self.log.active_segment())(repeated(&self.commit.fail(error)))
    }
}

/// A copy of an error, which can't be cloned.
fn repeated(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

impl Store for LogStore {
    fn write(&self, batch: &Batch) -> Result<(), StoreError> {
        let Appended { segment, puts } = self.append(batch)?;
        let mut index = self.index();
        for (message, location) in batch.puts.iter().zip(puts) {
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
        self.writer().sync()
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

pub(crate) fn io_error(what: &'static str, segment: u32) -> impl Fn(io::Error) -> StoreError {
    move |source| StoreError::Io { what, file: SEGMENTS.name(segment), source }
}
