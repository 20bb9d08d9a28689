//! The journal as a host uses it: looked up at once, written by one thread, and one sync for all who wait meanwhile.

use crate::book::{Book, Known, Refused};
use crate::entry::{CallKey, Entry, Finish, Start};
use crate::log::{JournalLog, LogOptions, Place};
use crate::replay::Recovery;
use bytes::Bytes;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;
use toolbus_store::{Disk, FolderDisk, StoreError};

#[derive(Debug, Clone)]
pub struct JournalOptions {
    pub log: LogOptions,
    /// How long an answer is kept for a caller that asks again.
    pub keep: Duration,
    /// Answered calls that are remembered at most.
    pub max_answered: usize,
    /// Past this size the oldest part of the journal goes.
    pub max_bytes: u64,
    /// Entries that wait to be written; past it callers wait for their turn.
    pub max_waiting: usize,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            log: LogOptions::default(),
            keep: Duration::from_secs(24 * 3600),
            max_answered: 200_000,
            max_bytes: 1 << 30,
            max_waiting: 8192,
        }
    }
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    #[error("can't open the call journal: {0}")]
    Open(Arc<StoreError>),
    #[error("can't write the call journal: {0}")]
    Io(Arc<io::Error>),
    #[error("can't start the journal's thread: {0}")]
    Thread(Arc<io::Error>),
    #[error("the call journal is closed")]
    Closed,
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// Dropping it writes what is left and ends its thread.
pub struct Journal {
    shared: Arc<Shared>,
    recovery: Recovery,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    log: Mutex<JournalLog>,
    /// Wakes the thread.
    wake: Condvar,
    /// Wakes nobody else: those who wait for room poll with the permits.
    room: Arc<tokio::sync::Semaphore>,
    options: JournalOptions,
}

struct State {
    book: Book,
    waiting: Vec<Waiting>,
    failure: Option<Arc<io::Error>>,
    stopping: bool,
}

struct Waiting {
    entry: Entry,
    now: u64,
    done: Option<oneshot::Sender<Result<(), JournalError>>>,
    _room: tokio::sync::OwnedSemaphorePermit,
}

impl Journal {
    pub fn open(folder: &Path, options: JournalOptions) -> Result<Self, JournalError> {
        let (disk, identity) = FolderDisk::open(folder).map_err(|error| JournalError::Open(Arc::new(error)))?;
        let log = LogOptions { checksum_seed: identity.seed, ..options.log.clone() };
        Self::on_disk(Arc::new(disk), JournalOptions { log, ..options })
    }

    pub fn on_disk(disk: Arc<dyn Disk>, options: JournalOptions) -> Result<Self, JournalError> {
        let mut book = Book::default();
        let opened = JournalLog::open(disk, options.log.clone(), |entry, place| book.restore(&entry, place));
        let (log, recovery) = opened.map_err(|error| JournalError::Io(Arc::new(error)))?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State { book, waiting: Vec::new(), failure: None, stopping: false }),
            log: Mutex::new(log),
            wake: Condvar::new(),
            room: Arc::new(tokio::sync::Semaphore::new(options.max_waiting)),
            options,
        });
        let writer = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("call-journal".into()).spawn(move || writer.write_all());
        let thread = thread.map_err(|error| JournalError::Thread(Arc::new(error)))?;
        Ok(Self { shared, recovery, thread: Some(thread) })
    }

    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// What became of a call that comes, perhaps again.
    pub fn look_up(&self, key: &CallKey, content: &[u8; 32]) -> Result<Known, Refused> {
        self.shared.lock().book.look_up(key, content)
    }

    /// Returns when it is on disk that the call begins. Only then may the tool be told.
    pub async fn start(&self, start: Start) -> Result<(), JournalError> {
        let now = start.at;
        self.write(Entry::Start(Arc::new(start)), now).await
    }

    /// For calls that may be run again: nobody waits for the disk.
    pub async fn note_start(&self, start: Start) -> Result<(), JournalError> {
        let now = start.at;
        self.enqueue(Entry::Start(Arc::new(start)), now, None).await
    }

    /// Returns when the answer is on disk. Only then may the caller be told.
    pub async fn finish(&self, finish: Finish) -> Result<(), JournalError> {
        let now = finish.at;
        self.write(Entry::Finish(finish), now).await
    }

    pub async fn note_collected(&self, key: CallKey, now: u64) -> Result<(), JournalError> {
        self.enqueue(Entry::Collected(key), now, None).await
    }

    /// The answer at that place.
    pub fn reply(&self, place: Place) -> Result<Bytes, JournalError> {
        let entry = self.shared.log().read(place).map_err(|error| JournalError::Io(Arc::new(error)))?;
        match entry {
            Entry::Finish(finish) => Ok(finish.reply),
            _ => Err(JournalError::Io(Arc::new(io::ErrorKind::InvalidData.into()))),
        }
    }

    async fn write(&self, entry: Entry, now: u64) -> Result<(), JournalError> {
        let (done, outcome) = oneshot::channel();
        self.enqueue(entry, now, Some(done)).await?;
        outcome.await.unwrap_or(Err(JournalError::Closed))
    }

    async fn enqueue(
        &self,
        entry: Entry,
        now: u64,
        done: Option<oneshot::Sender<Result<(), JournalError>>>,
    ) -> Result<(), JournalError> {
        let room = Arc::clone(&self.shared.room).acquire_owned().await.map_err(|_| JournalError::Closed)?;
        let mut state = self.shared.lock();
        if let Some(failure) = &state.failure {
            return Err(JournalError::Io(Arc::clone(failure)));
        }
        // An answer counts once it is safe, but that a call runs is known from now on.
        if matches!(entry, Entry::Start(_)) {
            state.book.enter(&entry, Place::default());
        }
        state.waiting.push(Waiting { entry, now, done, _room: room });
        self.shared.wake.notify_one();
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the call journal's thread panicked");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the book")
    }

    fn log(&self) -> MutexGuard<'_, JournalLog> {
        self.log.lock().expect("no code panics while it holds the log")
    }

    fn write_all(&self) {
        loop {
            let mut state = self.lock();
            while state.waiting.is_empty() {
                if state.stopping {
                    return;
                }
                state = self.wake.wait(state).expect("no code panics while it holds the book");
            }
            let group = std::mem::take(&mut state.waiting);
            drop(state);
            self.write_group(group);
        }
    }

    /// Everything that came in while the last group was written, with one sync.
    fn write_group(&self, group: Vec<Waiting>) {
        let outcome = {
            let mut log = self.log();
            let places: io::Result<Vec<Place>> =
                group.iter().map(|waiting| log.append(&waiting.entry, waiting.now)).collect();
            places.and_then(|places| log.sync().map(|()| places))
        };
        let mut state = self.lock();
        let told = match outcome {
            Ok(places) => {
                for (waiting, place) in group.iter().zip(places) {
                    if !matches!(waiting.entry, Entry::Start(_)) {
                        state.book.enter(&waiting.entry, place);
                    }
                }
                Ok(())
            }
            // What is on disk is not known any more, so nothing may be begun.
            Err(error) => Err(JournalError::Io(Arc::clone(state.failure.insert(Arc::new(error))))),
        };
        let now = group.iter().map(|waiting| waiting.now).max().unwrap_or_default();
        let keep = u64::try_from(self.options.keep.as_millis()).unwrap_or(u64::MAX);
        state.book.forget(now.saturating_sub(keep), self.options.max_answered);
        drop(state);
        for waiting in group {
            if let Some(done) = waiting.done {
                done.send(told.clone()).ok();
            }
        }
    }
}
