//! What a journal shares between those who write and the thread that syncs.
//!
//! An entry whose writer does not wait for a sync is written at once, by its writer: a write to the page cache takes
//! microseconds, a way to another thread and back takes longer than that, and what is written outlives this process. The thread
//! makes it outlive the machine too: one write and one sync for all who wait meanwhile, and one now and then for what nobody
//! waits for.

use crate::book::Book;
use crate::entry::Entry;
use crate::journal::Wait;
use crate::log::{JournalLog, Place, Unsynced};
use crate::options::{JournalError, JournalOptions};
use crate::record::MAX_PAYLOAD;
use crate::tidy::{Lent, Look, Tidy, TidyOptions};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

pub struct Shared {
    state: Mutex<State>,
    /// Wakes the thread.
    wake: Condvar,
    options: JournalOptions,
    clock: Clock,
}

/// Milliseconds since 1970.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

pub struct State {
    pub book: Book,
    log: JournalLog,
    pub failure: Option<Arc<io::Error>>,
    waiting: Vec<Waiting>,
    /// Since when there is something that is not synced.
    unsynced_since: Option<Instant>,
    sleep: Sleep,
    /// Absent before the first.
    last_group: Option<Group>,
    stopping: bool,
    told_full: bool,
}

/// Who waited for a sync, and how long it took.
#[derive(Clone, Copy)]
struct Group {
    waiting: usize,
    time: Duration,
    ended: Instant,
}

impl Group {
    /// Where calls come one by one, none is held up. Where many come at once, a moment's patience lets more of them share
    /// the next sync, which costs the machine more than they do.
    fn patience(self) -> Duration {
        let is_crowd = self.waiting >= MANY && self.ended.elapsed() < CROWD_FOR;
        if is_crowd { (self.time * 4).min(LONGEST_PATIENCE) } else { Duration::ZERO }
    }
}

/// What the thread waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleep {
    /// It is at work, and looks again before it sleeps.
    None,
    /// For a while, also if there is something that nobody waits for.
    Short,
    /// Until it is woken.
    Long,
}

/// Whoever goes on once an entry is durable. It counts from then on.
struct Waiting {
    entry: Entry,
    place: Place,
    done: oneshot::Sender<Told>,
}

/// Tells when an entry is durable.
pub type Durable = oneshot::Receiver<Told>;

/// What became of a sync. Only the first who waited for it is told by the thread; it tells the others, on a thread where they
/// are cheap to wake. So they are when it is dropped, whether somebody got it or not.
pub struct Told {
    outcome: Result<(), JournalError>,
    others: Vec<oneshot::Sender<Told>>,
}

impl Told {
    pub fn outcome(&self) -> Result<(), JournalError> {
        self.outcome.clone()
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        for other in self.others.drain(..) {
            other.send(Told { outcome: self.outcome.clone(), others: Vec::new() }).ok();
        }
    }
}

/// What an entry carries, with room for the names around it.
const MAX_ENTRY: usize = MAX_PAYLOAD - (1 << 20);
/// So many who wait for one sync are a crowd.
const MANY: usize = 3;
/// Whoever comes later than that comes alone.
const CROWD_FOR: Duration = Duration::from_millis(5);
const LONGEST_PATIENCE: Duration = Duration::from_millis(1);
/// How long an entry that nobody waits for is at the mercy of the machine, and once more that long at most.
const SYNCED_WITHIN: Duration = Duration::from_millis(10);
/// After that time without anything to do the thread sleeps until it is woken.
const QUIET_AFTER: Duration = Duration::from_millis(100);
/// How often an idle journal looks for what is too old.
const LOOK_EVERY: Duration = Duration::from_secs(60);

impl Shared {
    pub fn new(book: Book, log: JournalLog, options: JournalOptions, clock: Clock) -> Self {
        let state = State {
            book,
            log,
            failure: None,
            waiting: Vec::new(),
            unsynced_since: None,
            sleep: Sleep::None,
            last_group: None,
            stopping: false,
            told_full: false,
        };
        Self { state: Mutex::new(state), wake: Condvar::new(), options, clock }
    }

    pub fn options(&self) -> &JournalOptions {
        &self.options
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the book")
    }

    pub fn stop(&self) {
        self.lock().stopping = true;
        self.wake.notify_one();
    }

    /// Writes an entry. With [`Wait::Synced`] it counts, and may be relied upon, only once it is durable.
    pub fn write(&self, entry: Entry, wait: Wait) -> Result<Option<Durable>, JournalError> {
        let (bytes, most) = (entry.weight(), MAX_ENTRY);
        if bytes > most {
            // It could be written, and would be taken for damage when it is read.
            return Err(JournalError::TooLarge { bytes, most });
        }
        let now = (self.clock)();
        let mut state = self.lock();
        state.check(&entry, self.options.limits.max_tasks, now)?;
        // While a new segment begins nothing is written, so its writer waits like those who wait for a sync.
        let wait = if state.log.is_held() { Wait::Synced } else { wait };
        let place = match state.put(&entry, wait, now) {
            Ok(place) => place,
            Err(error) => return Err(state.fail(Arc::new(error))),
        };
        state.unsynced_since.get_or_insert_with(Instant::now);
        let durable = match wait {
            Wait::Synced => {
                state.book.announce(&entry);
                let (done, durable) = oneshot::channel();
                state.waiting.push(Waiting { entry, place, done });
                Some(durable)
            }
            Wait::Written => {
                state.book.enter(&entry, place);
                None
            }
        };
        let wake = state.sleep == Sleep::Long || (durable.is_some() && state.sleep == Sleep::Short);
        if wake {
            state.sleep = Sleep::None;
        }
        drop(state);
        if wake {
            self.wake.notify_one();
        }
        Ok(durable)
    }

    /// The life of the thread: what is written is synced; in between, the journal is made smaller.
    pub fn keep_safe(&self) {
        let keep_ms = self.options.limits.keep_ms;
        let mut tidy = Tidy::new(TidyOptions { keep_ms, max_bytes: self.options.max_bytes });
        let mut more_to_tidy = true;
        while self.wait_for_work(more_to_tidy) {
            self.sync();
            more_to_tidy = self.make_smaller(&mut tidy);
            self.begin_segment_if_full();
        }
    }

    /// Here and not where entries are written: creating a file and syncing the full one takes as long as the disk likes.
    fn begin_segment_if_full(&self) {
        let next = self.lock().log.next_segment();
        let Some(next) = next else { return };
        let created = next.create();
        let mut state = self.lock();
        let sealed = created.and_then(|created| state.log.seal(created));
        drop(state);
        let synced = sealed.and_then(|full| full.sync());
        let mut state = self.lock();
        match synced {
            Ok(()) => state.log.sealed(),
            Err(error) => drop(state.fail(Arc::new(error))),
        }
    }

    /// Returns when somebody waits for a sync, or it is time for one, or for a look at what is too old. False at the end of the
    /// journal, when nothing is left to do.
    fn wait_for_work(&self, at_once: bool) -> bool {
        let mut state = self.lock();
        let (mut now, begun) = (Instant::now(), Instant::now());
        loop {
            if state.stopping {
                return state.unsynced_since.is_some();
            }
            let is_due = state.unsynced_since.is_some_and(|since| now >= since + SYNCED_WITHIN);
            if at_once || !state.waiting.is_empty() || is_due || now >= begun + LOOK_EVERY {
                return true;
            }
            // While calls come, nobody has to wake the thread for what can wait.
            let is_quiet = state.unsynced_since.is_none() && now >= begun + QUIET_AFTER;
            let (sleep, time) = if is_quiet { (Sleep::Long, LOOK_EVERY) } else { (Sleep::Short, SYNCED_WITHIN) };
            state.sleep = sleep;
            state = self.wake.wait_timeout(state, time).expect("no code panics while it holds the book").0;
            state.sleep = Sleep::None;
            now = Instant::now();
        }
    }

    /// One sync for everything that has been written by now. Others write meanwhile.
    fn sync(&self) {
        let patience = self.lock().last_group.map_or(Duration::ZERO, Group::patience);
        if !patience.is_zero() {
            std::thread::sleep(patience);
        }
        let mut state = self.lock();
        if state.unsynced_since.take().is_none() {
            return;
        }
        let waiting = std::mem::take(&mut state.waiting);
        if state.failure.is_none()
            && let Err(error) = state.log.flush()
        {
            state.fail(Arc::new(error));
        }
        let written = state.log.unsynced();
        drop(state);
        let begun = Instant::now();
        // Also after a failure: what was written before it may still be saved.
        let synced = written.as_ref().map_or(Ok(()), Unsynced::sync).map_err(Arc::new);
        let mut state = self.lock();
        // An error of the disk is told once. Whoever began a segment meanwhile may have got the one that was ours.
        let synced = state.failure.clone().map_or(synced, Err);
        state.last_group = Some(Group { waiting: waiting.len(), time: begun.elapsed(), ended: Instant::now() });
        let outcome = match synced {
            Ok(()) => {
                written.iter().for_each(|written| state.log.synced(written));
                waiting.iter().for_each(|waiting| state.book.enter(&waiting.entry, waiting.place.clone()));
                Ok(())
            }
            Err(error) => Err(state.fail(error)),
        };
        state.forget((self.clock)());
        drop(state);
        let mut others = waiting.into_iter().map(|waiting| waiting.done);
        if let Some(first) = others.next() {
            first.send(Told { outcome, others: others.collect() }).ok();
        }
    }

    /// Does a turn of making the log smaller. Says whether there is more to do.
    fn make_smaller(&self, tidy: &mut Tidy) -> bool {
        let now = (self.clock)();
        let mut state = self.lock();
        if state.failure.is_some() {
            return false;
        }
        state.forget(now);
        drop(state);
        let turned = tidy.turn(now, |look| self.lock().lend(look));
        turned.unwrap_or_else(|error| {
            self.lock().fail(Arc::new(error));
            false
        })
    }

    pub fn failure(&self) -> Option<Arc<io::Error>> {
        self.lock().failure.clone()
    }
}

impl State {
    /// Whether an entry may be written.
    fn check(&self, entry: &Entry, max_tasks: usize, now: u64) -> Result<(), JournalError> {
        if let Some(failure) = &self.failure {
            return Err(JournalError::Write(Arc::clone(failure)));
        }
        match entry {
            Entry::Task(_) if self.book.count_tasks(None, now) >= max_tasks => {
                Err(JournalError::TooManyTasks { most: max_tasks })
            }
            Entry::Finish(finish) if !self.book.takes_answer(finish) => Err(JournalError::Answered),
            _ => Ok(()),
        }
    }

    /// Writes an entry, unless its writer waits for the thread anyway: then the thread writes it, with all the others.
    fn put(&mut self, entry: &Entry, wait: Wait, now: u64) -> io::Result<Place> {
        let place = self.log.stage(entry, now)?;
        if wait == Wait::Written {
            self.log.flush()?;
        }
        Ok(place)
    }

    /// A failure counts before anybody else can write.
    fn lend(&mut self, look: &mut Look<'_>) -> io::Result<()> {
        if let Some(failure) = &self.failure {
            return Err(io::Error::new(failure.kind(), Arc::clone(failure)));
        }
        let unentered = self.waiting.iter().filter_map(|waiting| waiting.place.segment()).min();
        let (log, book, unentered_from) = (&mut self.log, &mut self.book, unentered.unwrap_or(u32::MAX));
        look(&mut Lent { log, book, unentered_from }).map_err(|error| {
            let error = Arc::new(error);
            self.fail(Arc::clone(&error));
            io::Error::new(error.kind(), error)
        })
    }

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
