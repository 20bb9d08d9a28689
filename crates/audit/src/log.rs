//! The handle on a log that is being written.

use crate::error::AuditError;
use crate::record::{Caller, Record};
use crate::refusals::Refusals;
use crate::writer::{Entry, Shared, Writer};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use tokio::sync::{Semaphore, oneshot};

#[derive(Debug, Clone)]
pub struct AuditOptions {
    /// A file that has become larger than this is followed by another.
    pub max_file_bytes: u64,
    /// Of older files, the first ones are removed; the log says which.
    pub max_files: usize,
    /// Records that may wait to be written; who comes then, waits.
    pub max_queued: usize,
}

impl Default for AuditOptions {
    fn default() -> Self {
        Self { max_file_bytes: 64 << 20, max_files: 100, max_queued: 4096 }
    }
}

/// A cheap handle; the last one to go closes the log, and waits until it is on disk.
#[derive(Debug, Clone)]
pub struct AuditLog(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    queue: Option<mpsc::SyncSender<Entry>>,
    /// One for each place in the queue: a thread's channel can't be waited for by a task.
    places: Arc<Semaphore>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl AuditLog {
    /// Opens the log in that folder or begins one, and starts the thread that writes.
    pub fn open(folder: &Path, options: AuditOptions) -> Result<Self, AuditError> {
        let places = Arc::new(Semaphore::new(options.max_queued));
        let (queue, entries) = mpsc::sync_channel(options.max_queued);
        let shared = Arc::new(Shared { refusals: Refusals::default(), missed: AtomicU64::new(0) });
        let writer = Writer::open(folder, options, Arc::clone(&shared))?;
        let spawned = std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run(&entries));
        let thread = spawned.map_err(AuditError::io("start the thread that writes", folder))?;
        Ok(Self(Arc::new(Handle { queue: Some(queue), places, shared, thread: Mutex::new(Some(thread)) })))
    }

    /// Returns when the line has been handed to the system; within a second it is on disk.
    pub async fn write(&self, record: Record) -> Result<(), AuditError> {
        let (done, written) = oneshot::channel();
        self.enqueue(record, Some(done)).await?;
        written.await.map_err(|_| AuditError::Closed)?
    }

    /// Returns when the record is in the queue. For what has happened already and can't be refused any more.
    pub async fn post(&self, record: Record) -> Result<(), AuditError> {
        self.enqueue(record, None).await
    }

    /// For code that can't wait: where the queue is full, the log says how many are missing.
    pub fn note(&self, record: Record) {
        let Ok(place) = Arc::clone(&self.0.places).try_acquire_owned() else {
            self.0.shared.missed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.0.send(Entry { record: record.bounded(), done: None, _place: place }).ok();
    }

    /// Counts a refused connection; the counts are written once a second.
    pub fn connection_refused(&self, code: &'static str) {
        self.0.shared.refusals.connection(code);
    }

    /// Counts a message that its sender may not send; written once a second for each sender.
    pub fn send_refused(&self, caller: &Caller, to: &str, code: &'static str) {
        self.0.shared.refusals.send(caller, to, code);
    }

    /// False if that agent was refused so often within the second that this time is only counted, and not to be written.
    pub fn is_refusal_worth_a_line(&self, caller: &Caller, code: &str) -> bool {
        self.0.shared.refusals.request(caller, code)
    }

    async fn enqueue(
        &self,
        record: Record,
        done: Option<oneshot::Sender<Result<(), AuditError>>>,
    ) -> Result<(), AuditError> {
        let place = Arc::clone(&self.0.places).acquire_owned().await.map_err(|_| AuditError::Closed)?;
        self.0.send(Entry { record: record.bounded(), done, _place: place })
    }
}

impl Handle {
    fn send(&self, entry: Entry) -> Result<(), AuditError> {
        // Whoever has a place has room in the queue.
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
