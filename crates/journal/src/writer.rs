//! The thread that writes the journal, and what it shares with those who wait for it.

use crate::book::{Book, Limits};
use crate::entry::Entry;
use crate::log::{JournalLog, Place};
use crate::options::{JournalError, JournalOptions};
use crate::record::MAX_PAYLOAD;
use crate::tidy::{Tidy, TidyOptions};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

pub struct Shared {
    state: Mutex<State>,
    /// Wakes the thread.
    wake: Condvar,
    /// In units of [`UNIT`] bytes of entries that wait.
    room: Arc<Semaphore>,
    options: JournalOptions,
    clock: Clock,
}

/// Milliseconds since 1970.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

pub struct State {
    pub book: Book,
    pub failure: Option<Arc<io::Error>>,
    waiting: Vec<Waiting>,
    stopping: bool,
    told_full: bool,
}

pub struct Waiting {
    pub entry: Entry,
    /// Absent where nobody waits.
    pub done: Option<oneshot::Sender<Result<(), JournalError>>>,
    /// Given back once it is written.
    pub _room: OwnedSemaphorePermit,
}

const UNIT: usize = 1024;
/// What an entry carries, with room for the names around it.
const MAX_ENTRY: usize = MAX_PAYLOAD - (1 << 20);
/// How often an idle journal looks for what is too old.
const LOOK_EVERY: Duration = Duration::from_secs(60);

impl Shared {
    pub fn new(book: Book, options: JournalOptions, clock: Clock) -> Self {
        let room = Arc::new(Semaphore::new((options.max_waiting_bytes / UNIT).max(1)));
        let state = State { book, failure: None, waiting: Vec::new(), stopping: false, told_full: false };
        Self { state: Mutex::new(state), wake: Condvar::new(), room, options, clock }
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
        let (bytes, most) = (entry.weight(), MAX_ENTRY);
        if bytes > most {
            // It could be written, and would be taken for damage when it is read.
            return Err(JournalError::TooLarge { bytes, most });
        }
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
        if matches!(waiting.entry, Entry::Task(_)) && state.book.count_tasks(None, (self.clock)()) >= most {
            return Err(JournalError::TooManyTasks { most });
        }
        if let Entry::Finish(finish) = &waiting.entry
            && !state.book.takes_answer(finish)
        {
            return Err(JournalError::Answered);
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

    /// The life of the thread: whatever waits is written; in between, the journal is made smaller.
    pub fn write_all(&self, mut log: JournalLog) {
        let Limits { keep_ms, .. } = self.options.limits;
        let mut tidy = Tidy::new(TidyOptions { keep_ms, max_bytes: self.options.max_bytes });
        let mut more_to_tidy = true;
        while let Some(group) = self.next_group(more_to_tidy) {
            if !group.is_empty() {
                self.write_group(&mut log, group);
            }
            more_to_tidy = self.make_smaller(&mut log, &mut tidy);
        }
    }

    /// Waits for something to write, or for the next look at what is too old. Ends when the journal does.
    fn next_group(&self, at_once: bool) -> Option<Vec<Waiting>> {
        let mut state = self.lock();
        if state.waiting.is_empty() && !state.stopping && !at_once {
            let idle = |state: &mut State| state.waiting.is_empty() && !state.stopping;
            let waited = self.wake.wait_timeout_while(state, LOOK_EVERY, idle);
            state = waited.expect("no code panics while it holds the book").0;
        }
        let group = std::mem::take(&mut state.waiting);
        (!group.is_empty() || !state.stopping).then_some(group)
    }

    /// Everything that came in while the last group was written, with one write and one sync.
    fn write_group(&self, log: &mut JournalLog, group: Vec<Waiting>) {
        let someone_waits = group.iter().any(|waiting| waiting.done.is_some());
        let written = match self.failure() {
            Some(failure) => Err(failure),
            None => write(log, &group, (self.clock)(), someone_waits).map_err(Arc::new),
        };
        let mut state = self.lock();
        let told = match written {
            Ok(places) => {
                group.iter().zip(places).for_each(|(waiting, place)| state.book.enter(&waiting.entry, place));
                Ok(())
            }
            Err(error) => Err(state.fail(error)),
        };
        state.forget((self.clock)());
        drop(state);
        for waiting in group {
            if let Some(done) = waiting.done {
                done.send(told.clone()).ok();
            }
        }
    }

    /// Forgets what is too old, and does a turn of making the log smaller. Says whether there is more to do.
    fn make_smaller(&self, log: &mut JournalLog, tidy: &mut Tidy) -> bool {
        let now = (self.clock)();
        let mut state = self.lock();
        if state.failure.is_some() {
            return false;
        }
        state.forget(now);
        drop(state);
        match tidy.turn(log, now, |look| look(&mut self.lock().book)) {
            Ok(more) => more,
            Err(error) => {
                self.lock().fail(Arc::new(error));
                false
            }
        }
    }

    pub fn failure(&self) -> Option<Arc<io::Error>> {
        self.lock().failure.clone()
    }
}

impl State {
    fn forget(&mut self, now: u64) {
        let early = self.book.forget(now);
        if early > 0 && !self.told_full {
            self.told_full = true;
            tracing::warn!("the call journal is full, from now on the oldest answers are forgotten before their time");
        }
    }

    /// What is on disk is not known any more, so nothing may be begun from now on.
    fn fail(&mut self, error: Arc<io::Error>) -> JournalError {
        if self.failure.is_none() {
            tracing::error!(%error, "the call journal can't be written, calls are refused until the host is started anew");
        }
        JournalError::Write(Arc::clone(self.failure.get_or_insert(error)))
    }
}

fn write(log: &mut JournalLog, group: &[Waiting], now: u64, sync: bool) -> io::Result<Vec<Place>> {
    let places = log.append(group.iter().map(|waiting| &waiting.entry), now)?;
    if sync {
        log.sync()?;
    }
    Ok(places)
}
