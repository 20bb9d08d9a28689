//! Writes the lines of a log. Callers chain and write their records themselves. The writer thread writes what they only
//! gathered and the records that had to be queued, keeps the head file current, and seals and syncs the log every second.

use crate::error::AuditError;
use crate::files::{self, Head, HeadFile};
use crate::key_file;
use crate::line::ChainPosition;
use crate::log::AuditOptions;
use crate::record::Record;
use crate::recovery;
use crate::refusals::Refusals;
use crate::sealer::{Sealer, Seals};
use crate::time_text::TimeText;
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// How long gathered lines and the head file may wait for the writer thread.
const GATHER_INTERVAL: Duration = Duration::from_millis(5);
/// Gathered lines are written from this size on.
const MAX_GATHERED_BYTES: usize = 64 << 10;
/// Maximum number of records written as one batch.
const MAX_BATCH: usize = 256;

pub enum Entry {
    Record {
        record: Box<Record>,
        done: Option<oneshot::Sender<Result<(), AuditError>>>,
        _permit: OwnedSemaphorePermit,
    },
    /// There are lines or a head that the thread has to write.
    Wake,
}

impl Entry {
    fn record(&self) -> Option<&Record> {
        match self {
            Self::Record { record, .. } => Some(record),
            Self::Wake => None,
        }
    }
}

#[derive(Debug, Default)]
pub struct Shared {
    pub refusals: Refusals,
    pub missed: AtomicU64,
    /// Whether the thread writes at short intervals, or is going to. Changed under the writer's lock.
    pub is_awake: AtomicBool,
}

pub struct Writer {
    folder: PathBuf,
    options: AuditOptions,
    shared: Arc<Shared>,
    head: HeadFile,
    /// `None` if the log is not sealed. Dropped before the lock, because its thread writes the key file.
    sealer: Option<Sealer>,
    /// Holds the lock as long as the log is open.
    _lock: File,
    file: File,
    number: u64,
    bytes: u64,
    position: ChainPosition,
    /// Lines up to `position` that are not written yet.
    gathered: String,
    time: TimeText,
    /// Lines were written since the head file was.
    is_head_behind: bool,
    unsynced: bool,
    synced_at: Instant,
    /// Files whose removal is recorded. Deleted after the next sync: without the record they would count as missing.
    to_remove: Vec<u64>,
    ticked_at: Instant,
    /// Set once a write has failed: the state on disk is then unknown, and no more is written.
    failed: Option<String>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// The loop of the writer thread.
pub fn run(writer: &Mutex<Writer>, entries: &Receiver<Entry>) {
    let mut interval = SYNC_INTERVAL;
    loop {
        let first = match entries.recv_timeout(interval) {
            Ok(entry) => Some(entry),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let batch: Vec<Entry> = first.into_iter().chain(entries.try_iter()).take(MAX_BATCH).collect();
        let mut writer = lock(writer);
        writer.write(batch);
        let was_behind = writer.catch_up();
        writer.tick();
        writer.shared.is_awake.store(was_behind, Ordering::Relaxed);
        interval = if was_behind { GATHER_INTERVAL } else { SYNC_INTERVAL };
    }
    lock(writer).close();
}

fn lock(writer: &Mutex<Writer>) -> MutexGuard<'_, Writer> {
    writer.lock().expect("no code panics while it holds this lock")
}

impl Writer {
    pub fn open(folder: &Path, options: AuditOptions, shared: Arc<Shared>) -> Result<Self, AuditError> {
        let lock = files::lock(folder)?;
        let end = recovery::recover_end(folder)?;
        let number = end.file.unwrap_or(1);
        let file = match end.file {
            Some(number) => files::append(folder, number)?,
            None => files::create(folder, number)?,
        };
        let mut writer = Self {
            folder: folder.to_owned(),
            shared,
            head: HeadFile::open(folder)?,
            _lock: lock,
            file,
            number,
            bytes: end.bytes,
            position: end.position,
            gathered: String::new(),
            time: TimeText::default(),
            is_head_behind: false,
            unsynced: false,
            synced_at: Instant::now(),
            sealer: Sealer::open(folder, &end.seals, &options)?,
            options,
            to_remove: Vec::new(),
            ticked_at: Instant::now(),
            failed: None,
        };
        let opened = Record::Opened { version: env!("CARGO_PKG_VERSION") };
        writer.append(end.recovered.iter().chain([&opened]))?;
        writer.seal()?;
        writer.sync()?;
        Ok(writer)
    }

    /// Whether a record can be written to the current file.
    pub fn has_room(&self) -> bool {
        self.bytes < self.options.max_file_bytes
    }

    /// The last work before the log is dropped.
    pub fn close(&mut self) {
        self.ticked_at -= SYNC_INTERVAL.min(self.ticked_at.elapsed());
        self.write_counters();
        self.seal().ok();
        if let Err(error) = self.sync() {
            tracing::error!(%error, "can't sync the audit log on close");
        }
        if let Some(sealer) = self.sealer.as_ref().filter(|_| self.failed.is_none()) {
            sealer.save_last_key();
        }
    }

    fn write(&mut self, batch: Vec<Entry>) {
        if batch.is_empty() {
            return;
        }
        let outcome = self.append(batch.iter().filter_map(Entry::record));
        for entry in batch {
            if let Entry::Record { done: Some(done), .. } = entry {
                done.send(outcome.clone()).ok();
            }
        }
    }

    /// Writes gathered lines and the head file. Returns whether there was anything to write.
    fn catch_up(&mut self) -> bool {
        if self.failed.is_some() || (self.gathered.is_empty() && !self.is_head_behind) {
            return false;
        }
        let outcome = self.flush().and_then(|()| self.write_head());
        self.record_failure(outcome).ok();
        true
    }

    /// Periodic work, once a second.
    fn tick(&mut self) {
        if self.ticked_at.elapsed() >= SYNC_INTERVAL {
            self.ticked_at = Instant::now();
            self.write_counters();
        }
        if self.synced_at.elapsed() >= SYNC_INTERVAL && self.failed.is_none() {
            self.seal_if_due().ok();
            if self.unsynced {
                self.sync().ok();
            } else {
                self.save_key();
            }
        }
    }

    fn seal_if_due(&mut self) -> Result<(), AuditError> {
        match &self.sealer {
            Some(sealer) if sealer.is_due(self.position.seq) => self.seal(),
            None if key_file::exists(&self.folder) => self.start_sealing(),
            _ => Ok(()),
        }
    }

    /// Begins with the first seal, after `toolbus audit init-seal` created the key.
    fn start_sealing(&mut self) -> Result<(), AuditError> {
        let opened = Sealer::open(&self.folder, &Seals::default(), &self.options);
        let opened = opened.map(|sealer| self.sealer = sealer);
        self.record_failure(opened)?;
        self.seal()
    }

    /// Writes the counters of refused and dropped records.
    fn write_counters(&mut self) {
        let missed = self.shared.missed.swap(0, Ordering::Relaxed);
        let missed = (missed > 0).then_some(Record::Missed { count: missed });
        let records: Vec<Record> = self.shared.refusals.take().chain(missed).collect();
        self.append(records.iter()).ok();
    }

    /// Writes records, behind the gathered ones.
    pub fn append<'a>(&mut self, records: impl Iterator<Item = &'a Record>) -> Result<(), AuditError> {
        self.unless_failed(|writer| writer.try_append(records))
    }

    fn try_append<'a>(&mut self, records: impl Iterator<Item = &'a Record>) -> Result<(), AuditError> {
        if !self.has_room() {
            self.rotate()?;
        }
        let time = self.time.now();
        for record in records {
            self.position.append(record, time, &mut self.gathered);
        }
        self.flush()
    }

    /// Chains a record whose line is written with the next one, or soon by the writer thread.
    pub fn gather(&mut self, record: &Record) -> Result<(), AuditError> {
        self.unless_failed(|writer| {
            writer.position.append(record, writer.time.now(), &mut writer.gathered);
            if writer.gathered.len() < MAX_GATHERED_BYTES { Ok(()) } else { writer.flush() }
        })
    }

    fn flush(&mut self) -> Result<(), AuditError> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let written = self.file.write_all(self.gathered.as_bytes());
        written.map_err(|error| AuditError::io("write", files::path_of(&self.folder, self.number))(error))?;
        self.bytes += self.gathered.len() as u64;
        self.gathered.clear();
        (self.unsynced, self.is_head_behind) = (true, true);
        Ok(())
    }

    fn write_head(&mut self) -> Result<(), AuditError> {
        self.is_head_behind = false;
        self.head.write(&Head { position: self.position.clone(), file: self.number })
    }

    /// Seals all lines so far.
    pub fn seal(&mut self) -> Result<(), AuditError> {
        self.unless_failed(Self::try_seal)
    }

    fn try_seal(&mut self) -> Result<(), AuditError> {
        let Some(sealer) = &mut self.sealer else { return Ok(()) };
        sealer.seal(&mut self.position, self.time.now(), &mut self.gathered);
        self.flush()
    }

    /// Starts a new file, and records the removal of the oldest ones.
    fn rotate(&mut self) -> Result<(), AuditError> {
        self.try_seal()?;
        self.try_sync()?;
        let from = files::file_name(self.number);
        self.number += 1;
        self.file = files::create(&self.folder, self.number)?;
        self.bytes = 0;
        let time = self.time.now().to_owned();
        let seals = self.sealer.as_ref().map(Sealer::next_index);
        self.position.append(&Record::Continued { from, seals }, &time, &mut self.gathered);
        let numbers = files::numbers(&self.folder)?;
        let surplus = &numbers[..numbers.len().saturating_sub(self.options.max_files.max(1))];
        for number in surplus {
            let last = last_position(&self.folder, *number)?;
            let file = files::file_name(*number);
            let removed = Record::Removed { file, last_seq: last.seq, last_hash: last.hash };
            self.position.append(&removed, &time, &mut self.gathered);
        }
        self.to_remove = surplus.to_vec();
        self.flush()
    }

    pub fn sync(&mut self) -> Result<(), AuditError> {
        let outcome = self.try_sync();
        self.record_failure(outcome)
    }

    fn try_sync(&mut self) -> Result<(), AuditError> {
        self.flush()?;
        self.write_head()?;
        let path = files::path_of(&self.folder, self.number);
        self.file.sync_data().map_err(AuditError::io("sync", path))?;
        self.head.sync()?;
        (self.unsynced, self.synced_at) = (false, Instant::now());
        self.save_key();
        for number in std::mem::take(&mut self.to_remove) {
            let path = files::path_of(&self.folder, number);
            fs::remove_file(&path).map_err(AuditError::io("remove", path))?;
        }
        Ok(())
    }

    /// After a failed write, the last seal may be incomplete; the key of its successor must not be stored then.
    fn save_key(&self) {
        if let Some(sealer) = self.sealer.as_ref().filter(|_| self.failed.is_none()) {
            sealer.save_key();
        }
    }

    fn unless_failed(&mut self, write: impl FnOnce(&mut Self) -> Result<(), AuditError>) -> Result<(), AuditError> {
        if let Some(reason) = &self.failed {
            return Err(AuditError::Failed(reason.clone()));
        }
        let outcome = write(self);
        self.record_failure(outcome)
    }

    fn record_failure(&mut self, outcome: Result<(), AuditError>) -> Result<(), AuditError> {
        if let Err(error) = &outcome
            && self.failed.is_none()
        {
            tracing::error!(%error, "the audit log has failed; requests that must be audited are refused from now on");
            self.failed = Some(error.to_string());
            self.unsynced = false;
        }
        outcome
    }
}

/// The position of the last line of a completed file.
fn last_position(folder: &Path, number: u64) -> Result<ChainPosition, AuditError> {
    let path = files::path_of(folder, number);
    let bytes = files::read(&path).map_err(AuditError::io("read", &path))?;
    let text = String::from_utf8_lossy(&bytes);
    let last = text.lines().last().unwrap_or_default();
    let line = crate::line::Line::read(last);
    let place = files::file_name(number);
    Ok(line.map_err(|what| AuditError::Damaged { place, what })?.position())
}

#[cfg(test)]
impl Writer {
    /// Does the periodic work as if that time had passed.
    pub fn elapse(&mut self, time: Duration) {
        self.synced_at -= time;
        self.sealer.iter_mut().for_each(|sealer| sealer.elapse(time));
        self.tick();
    }

    pub fn saved(&self) {
        self.sealer.as_ref().expect("a sealed log").wait_until_saved();
    }

    /// From now on, lines can't be written, but the file can be synced.
    pub fn break_file(&mut self) {
        self.file = File::open(files::path_of(&self.folder, self.number)).expect("a file");
    }

    pub fn break_key_file(&mut self, folder: &Path) {
        self.sealer.as_mut().expect("a sealed log").break_key_file(folder);
    }
}

#[cfg(test)]
mod tests;
