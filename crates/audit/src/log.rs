//! The handle to a log that is being written.

use crate::error::AuditError;
use crate::key_file::{self, KeyFile};
use crate::record::{Caller, Record};
use crate::seal::{VerificationKey, random_log_id};
use crate::writer::{Entry, Shared, Writer, run};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// Limits of an audit log.
#[derive(Debug, Clone)]
pub struct AuditOptions {
    /// Size at which a new file is started.
    pub max_file_bytes: u64,
    /// Maximum number of files. The oldest are removed, and the removal is recorded in the log.
    pub max_files: usize,
    /// Maximum number of queued records; further writers wait (backpressure).
    pub max_queued: usize,
    /// A sealed log gets a seal after that many lines.
    pub seal_lines: u64,
    /// It gets a seal after that time, if there are lines behind the last one. Checked once a second.
    pub seal_interval: Duration,
}

impl Default for AuditOptions {
    fn default() -> Self {
        Self {
            max_file_bytes: 64 << 20,
            max_files: 100,
            max_queued: 4096,
            seal_lines: 1000,
            seal_interval: Duration::from_secs(10),
        }
    }
}

/// A cheap handle. Dropping the last one closes the log and blocks until it is synced.
#[derive(Debug, Clone)]
pub struct AuditLog(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    queue: Option<mpsc::SyncSender<Entry>>,
    max_queued: usize,
    /// One permit per queue slot, because tasks can't await a `std::sync::mpsc` channel.
    permits: Arc<Semaphore>,
    shared: Arc<Shared>,
    writer: Arc<Mutex<Writer>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl AuditLog {
    /// Opens or creates the log in that folder, and starts the writer thread.
    pub fn open(folder: &Path, options: AuditOptions) -> Result<Self, AuditError> {
        let permits = Arc::new(Semaphore::new(options.max_queued));
        // One more, to wake the thread.
        let (queue, entries) = mpsc::sync_channel(options.max_queued + 1);
        let shared = Arc::new(Shared::default());
        let max_queued = options.max_queued;
        let writer = Arc::new(Mutex::new(Writer::open(folder, options, Arc::clone(&shared))?));
        let of_thread = Arc::clone(&writer);
        let spawned = std::thread::Builder::new().name("audit".to_owned()).spawn(move || run(&of_thread, &entries));
        let thread = Mutex::new(Some(spawned.map_err(AuditError::io("start the writer thread for", folder))?));
        Ok(Self(Arc::new(Handle { queue: Some(queue), max_queued, permits, shared, writer, thread })))
    }

    /// Starts sealing the log in that folder, which may be open; a running writer begins within a second. The caller
    /// must have stored the key elsewhere: it is not kept on this machine.
    pub fn start_sealing(folder: &Path, key: &VerificationKey) -> Result<(), AuditError> {
        KeyFile::create(folder, &key.first_key(&random_log_id()?))
    }

    /// Whether the log in that folder has a sealing key.
    pub fn is_sealed(folder: &Path) -> bool {
        key_file::exists(folder)
    }

    /// Writes a record. Returns when the line is written to the file; it is synced within about a second.
    pub async fn write(&self, record: Record) -> Result<(), AuditError> {
        let record = record.bounded();
        if let Some(outcome) = self.0.with_writer(|writer| writer.append([&record].into_iter())) {
            return outcome;
        }
        let (done, written) = oneshot::channel();
        self.enqueue(record, Some(done)).await?;
        written.await.map_err(|_| AuditError::Closed)?
    }

    /// Returns when the record is chained or queued; it is written within a few milliseconds. For events that have already
    /// happened and can't be refused any more.
    pub async fn post(&self, record: Record) -> Result<(), AuditError> {
        let record = record.bounded();
        match self.0.with_writer(|writer| writer.gather(&record)) {
            Some(outcome) => outcome,
            None => self.enqueue(record, None).await,
        }
    }

    /// Never waits: if the queue is full, the record is dropped and counted, and the count is written to the log.
    pub fn note(&self, record: Record) {
        let Ok(permit) = Arc::clone(&self.0.permits).try_acquire_owned() else {
            self.0.shared.missed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.0.send(Entry::Record { record: Box::new(record.bounded()), done: None, _permit: permit }).ok();
    }

    /// Counts a refused connection; counts are written once a second.
    pub fn connection_refused(&self, code: &'static str) {
        self.0.shared.refusals.connection(code);
    }

    /// Counts a refused message; counts are written once a second for each sender.
    pub fn send_refused(&self, caller: &Caller, to: &str, code: &'static str) {
        self.0.shared.refusals.send(caller, to, code);
    }

    /// Rate-limits lines about refused requests: returns `false` if the agent has had too many within the second. The
    /// refusal is then counted and must not be written.
    pub fn is_refusal_worth_a_line(&self, caller: &Caller, code: &str) -> bool {
        self.0.shared.refusals.request(caller, code)
    }

    async fn enqueue(
        &self,
        record: Record,
        done: Option<oneshot::Sender<Result<(), AuditError>>>,
    ) -> Result<(), AuditError> {
        let permit = Arc::clone(&self.0.permits).acquire_owned().await.map_err(|_| AuditError::Closed)?;
        self.0.send(Entry::Record { record: Box::new(record), done, _permit: permit })
    }
}

impl Handle {
    /// Writes on the caller's thread: that takes less time than waking the writer thread. `None` if the record has to be
    /// queued: behind others, or because the thread syncs the log or has to start a new file.
    fn with_writer(&self, write: impl FnOnce(&mut Writer) -> Result<(), AuditError>) -> Option<Result<(), AuditError>> {
        let is_queue_empty = || self.permits.available_permits() == self.max_queued;
        let mut writer = self.writer.try_lock().ok().filter(|_| is_queue_empty())?;
        let outcome = writer.has_room().then(|| write(&mut writer))?;
        // Under the lock: the thread decides under it that it has nothing left to do.
        if !self.shared.is_awake.swap(true, Ordering::Relaxed) {
            self.send(Entry::Wake).ok();
        }
        Some(outcome)
    }

    fn send(&self, entry: Entry) -> Result<(), AuditError> {
        // A permit guarantees room in the queue; at most one entry has none.
        let queue = self.queue.as_ref().ok_or(AuditError::Closed)?;
        queue.try_send(entry).map_err(|_| AuditError::Closed)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        drop(self.queue.take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            thread.join().ok();
        }
    }
}
