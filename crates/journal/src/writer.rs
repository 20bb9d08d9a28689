//! The thread that writes the journal, and what it shares with those who wait for it.

use crate::book::Book;
use crate::entry::Entry;
use crate::log::{JournalLog, Place};
use crate::options::{JournalError, JournalOptions};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

pub struct Shared {
    state: Mutex<State>,
    /// Wakes the thread.
    wake: Condvar,
    /// In units of [`UNIT`] bytes of entries that wait.
    room: Arc<Semaphore>,
    options: JournalOptions,
}

pub struct State {
    pub book: Book,
    pub failure: Option<Arc<io::Error>>,
    waiting: Vec<Waiting>,
    stopping: bool,
}

pub struct Waiting {
    pub entry: Entry,
    /// Absent where nobody waits.
    pub done: Option<oneshot::Sender<Result<(), JournalError>>>,
    /// Given back once it is written.
    pub _room: OwnedSemaphorePermit,
}

const UNIT: usize = 1024;

impl Shared {
    pub fn new(book: Book, options: JournalOptions) -> Self {
        let room = Arc::new(Semaphore::new((options.max_waiting_bytes / UNIT).max(1)));
        let state = State { book, failure: None, waiting: Vec::new(), stopping: false };
        Self { state: Mutex::new(state), wake: Condvar::new(), room, options }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the book")
    }

    pub fn stop(&self) {
        self.lock().stopping = true;
        self.wake.notify_one();
    }

    /// Waits until an entry may wait. One that is larger than all the room takes all of it.
    pub async fn room_for(&self, entry: &Entry) -> Result<OwnedSemaphorePermit, JournalError> {
        let all = (self.options.max_waiting_bytes / UNIT).max(1);
        let units = entry.weight().div_ceil(UNIT).min(all);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        Arc::clone(&self.room).acquire_many_owned(units).await.map_err(|_| JournalError::Closed)
    }

    pub fn enqueue(&self, waiting: Waiting) -> Result<(), JournalError> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(JournalError::Write(Arc::clone(failure)));
        }
        let most = self.options.limits.max_tasks;
        if matches!(waiting.entry, Entry::Task(_)) && state.book.has_tasks(most) {
            return Err(JournalError::TooManyTasks { most });
        }
        state.book.announce(&waiting.entry);
        if let (Entry::Finish(finish), None) = (&waiting.entry, &waiting.done) {
            // Its caller is told right away, so it counts right away.
            state.book.enter(&waiting.entry, Place::Held(finish.reply.clone()));
        }
        state.waiting.push(waiting);
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    pub fn write_all(&self, mut log: JournalLog) {
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
            self.write_group(&mut log, group);
        }
    }

    /// Everything that came in while the last group was written, with one sync.
    fn write_group(&self, log: &mut JournalLog, group: Vec<Waiting>) {
        let now = group.iter().map(|waiting| waiting.entry.at()).max().unwrap_or_default();
        let someone_waits = group.iter().any(|waiting| waiting.done.is_some());
        let written = log.append(group.iter().map(|waiting| &waiting.entry), now);
        let outcome = written.and_then(|places| if someone_waits { log.sync().map(|()| places) } else { Ok(places) });
        let mut state = self.lock();
        let told = match outcome {
            Ok(places) => {
                group.iter().zip(places).for_each(|(waiting, place)| state.book.enter(&waiting.entry, place));
                Ok(())
            }
            // What is on disk is not known any more, so nothing may be begun.
            Err(error) => Err(JournalError::Write(Arc::clone(state.failure.insert(Arc::new(error))))),
        };
        state.book.forget(now);
        drop(state);
        for waiting in group {
            if let Some(done) = waiting.done {
                done.send(told.clone()).ok();
            }
        }
    }
}
