//! The state shared by writers and the sync thread, which does group commit.
//!
//! An entry whose writer does not wait for a sync is written by the writer itself: a write to the page cache takes
//! microseconds, less than a round trip to another thread, and survives a crash of this process. The thread makes
//! entries durable: one write and one sync for all waiting writers, and a periodic sync for entries without a waiting
//! writer.

use crate::call_index::CallIndex;
use crate::compactor::{CompactionContext, Compactor, CompactorOptions, ContextFn};
use crate::entry::Entry;
use crate::journal::Wait;
use crate::log::{JournalLog, Location, Unsynced};
use crate::options::{JournalError, JournalOptions};
use crate::record::MAX_PAYLOAD;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

pub struct Shared {
    state: Mutex<State>,
    /// Wakes the sync thread.
    wake: Condvar,
    options: JournalOptions,
    clock: Clock,
}

/// Returns the time in milliseconds since 1970.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

pub struct State {
    pub index: CallIndex,
    log: JournalLog,
    pub failure: Option<Arc<io::Error>>,
    waiting: Vec<Waiting>,
    /// Time of the oldest write that is not synced.
    unsynced_since: Option<Instant>,
    sleep: Sleep,
    /// Absent before the first sync.
    last_group: Option<Group>,
    stopping: bool,
    warned_full: bool,
}

/// Statistics of the last group commit.
#[derive(Clone, Copy)]
struct Group {
    waiting: usize,
    time: Duration,
    ended: Instant,
}

impl Group {
    /// How long to wait for more writers before the next sync. Zero for sequential calls; under concurrent load a short
    /// linger lets more writers share the sync, which costs more than their writes.
    fn linger(self) -> Duration {
        let is_concurrent = self.waiting >= CONCURRENT_WRITERS && self.ended.elapsed() < CONCURRENT_FOR;
        if is_concurrent { (self.time * 4).min(MAX_LINGER) } else { Duration::ZERO }
    }
}

/// How the sync thread sleeps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleep {
    /// Awake; it checks for work before it sleeps.
    None,
    /// With the sync interval as timeout, so entries without a waiting writer need not wake it.
    Short,
    /// Until it is woken, or the compaction interval has passed.
    Long,
}

/// A writer that waits for its entry to be durable. The entry is applied to the index then.
struct Waiting {
    entry: Entry,
    location: Location,
    done: oneshot::Sender<SyncOutcome>,
}

/// Resolves when an entry is durable.
pub type Durable = oneshot::Receiver<SyncOutcome>;

/// The outcome of a sync. The sync thread notifies only the first waiting writer, which notifies the others from a
/// runtime thread, where waking them is cheap. This happens on drop, so it is cancellation-safe: the others are
/// notified even if the first writer was cancelled.
pub struct SyncOutcome {
    outcome: Result<(), JournalError>,
    others: Vec<oneshot::Sender<SyncOutcome>>,
}

impl SyncOutcome {
    pub fn outcome(&self) -> Result<(), JournalError> {
        self.outcome.clone()
    }
}

impl Drop for SyncOutcome {
    fn drop(&mut self) {
        for other in self.others.drain(..) {
            other.send(SyncOutcome { outcome: self.outcome.clone(), others: Vec::new() }).ok();
        }
    }
}

/// Maximum weight of an entry, with a margin for the encoding.
const MAX_ENTRY: usize = MAX_PAYLOAD - (1 << 20);
/// Number of writers waiting for one sync from which the load counts as concurrent.
const CONCURRENT_WRITERS: usize = 3;
/// How long after a sync the load still counts as concurrent.
const CONCURRENT_FOR: Duration = Duration::from_millis(5);
/// Maximum linger before a sync.
const MAX_LINGER: Duration = Duration::from_millis(1);
/// Age at which an entry without a waiting writer is synced. The thread may notice up to one interval late.
const SYNC_INTERVAL: Duration = Duration::from_millis(10);
/// Idle time after which the thread sleeps until it is woken.
const IDLE_AFTER: Duration = Duration::from_millis(100);
/// How often an idle journal checks for segments to compact.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(60);

impl Shared {
    pub fn new(index: CallIndex, log: JournalLog, options: JournalOptions, clock: Clock) -> Self {
        let state = State {
            index,
            log,
            failure: None,
            waiting: Vec::new(),
            unsynced_since: None,
            sleep: Sleep::None,
            last_group: None,
            stopping: false,
            warned_full: false,
        };
        Self { state: Mutex::new(state), wake: Condvar::new(), options, clock }
    }

    pub fn options(&self) -> &JournalOptions {
        &self.options
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while holding the lock")
    }

    pub fn stop(&self) {
        self.lock().stopping = true;
        self.wake.notify_one();
    }

    /// Writes an entry. With [`Wait::Synced`] it takes effect only once it is durable, which the returned receiver
    /// reports.
    pub fn write(&self, entry: Entry, wait: Wait) -> Result<Option<Durable>, JournalError> {
        let (bytes, most) = (entry.weight(), MAX_ENTRY);
        if bytes > most {
            // Replay would treat a larger record as corruption.
            return Err(JournalError::TooLarge { bytes, most });
        }
        let now = (self.clock)();
        let mut state = self.lock();
        state.check(&entry, self.options.limits.max_tasks, now)?;
        // During a rotation entries are only staged, so every writer has to wait for the next sync.
        let wait = if state.log.is_sealing() { Wait::Synced } else { wait };
        let location = match state.put(&entry, wait, now) {
            Ok(location) => location,
            Err(error) => return Err(state.fail(Arc::new(error))),
        };
        state.unsynced_since.get_or_insert_with(Instant::now);
        let durable = match wait {
            Wait::Synced => {
                state.index.announce(&entry);
                let (done, durable) = oneshot::channel();
                state.waiting.push(Waiting { entry, location, done });
                Some(durable)
            }
            Wait::Written => {
                state.index.enter(&entry, location);
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

    /// The loop of the sync thread: syncs entries, and runs compaction and rotation in between.
    pub fn run_sync_thread(&self) {
        let keep_ms = self.options.limits.keep_ms;
        let mut compactor = Compactor::new(CompactorOptions { keep_ms, max_bytes: self.options.max_bytes });
        let mut more_to_compact = true;
        while self.wait_for_work(more_to_compact) {
            self.sync();
            more_to_compact = self.compact(&mut compactor);
            self.begin_segment_if_full();
        }
    }

    /// Rotates to a new segment. Runs on the sync thread, because creating and syncing files may block for long.
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

    /// Blocks until a writer waits for a sync, a periodic sync is due, or compaction is due. Returns false if the
    /// journal is closing and all entries are synced.
    fn wait_for_work(&self, at_once: bool) -> bool {
        let mut state = self.lock();
        let (mut now, start) = (Instant::now(), Instant::now());
        loop {
            if state.stopping {
                return state.unsynced_since.is_some();
            }
            let is_due = state.unsynced_since.is_some_and(|since| now >= since + SYNC_INTERVAL);
            if at_once || !state.waiting.is_empty() || is_due || now >= start + COMPACTION_INTERVAL {
                return true;
            }
            // Under load the thread polls, so writers that don't wait for a sync need not wake it.
            let is_idle = state.unsynced_since.is_none() && now >= start + IDLE_AFTER;
            let (sleep, time) =
                if is_idle { (Sleep::Long, COMPACTION_INTERVAL) } else { (Sleep::Short, SYNC_INTERVAL) };
            state.sleep = sleep;
            state = self.wake.wait_timeout(state, time).expect("no code panics while holding the lock").0;
            state.sleep = Sleep::None;
            now = Instant::now();
        }
    }

    /// Syncs all entries written so far, concurrently with further writes.
    fn sync(&self) {
        let linger = self.lock().last_group.map_or(Duration::ZERO, Group::linger);
        if !linger.is_zero() {
            std::thread::sleep(linger);
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
        let start = Instant::now();
        // Also after a failure, to make as many earlier writes durable as possible.
        let synced = written.as_ref().map_or(Ok(()), Unsynced::sync).map_err(Arc::new);
        let mut state = self.lock();
        // The kernel reports a write-back error only once, so a sync elsewhere may have received the error of this one.
        let synced = state.failure.clone().map_or(synced, Err);
        state.last_group = Some(Group { waiting: waiting.len(), time: start.elapsed(), ended: Instant::now() });
        let outcome = match synced {
            Ok(()) => {
                written.iter().for_each(|written| state.log.synced(written));
                waiting.iter().for_each(|waiting| state.index.enter(&waiting.entry, waiting.location.clone()));
                Ok(())
            }
            Err(error) => Err(state.fail(error)),
        };
        state.forget((self.clock)());
        drop(state);
        let mut others = waiting.into_iter().map(|waiting| waiting.done);
        if let Some(first) = others.next() {
            first.send(SyncOutcome { outcome, others: others.collect() }).ok();
        }
    }

    /// Runs one compaction step and returns whether there is more to do.
    fn compact(&self, compactor: &mut Compactor) -> bool {
        let now = (self.clock)();
        let mut state = self.lock();
        if state.failure.is_some() {
            return false;
        }
        state.forget(now);
        drop(state);
        let stepped = compactor.step(now, |operation| self.lock().with_context(operation));
        stepped.unwrap_or_else(|error| {
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
            Entry::Task(_) if self.index.count_tasks(None, now) >= max_tasks => {
                Err(JournalError::TooManyTasks { most: max_tasks })
            }
            Entry::Finish(finish) if !self.index.takes_answer(finish) => Err(JournalError::Answered),
            _ => Ok(()),
        }
    }

    /// Stages an entry, and writes it unless its writer waits for a sync: the sync thread writes those together.
    fn put(&mut self, entry: &Entry, wait: Wait, now: u64) -> io::Result<Location> {
        let location = self.log.stage(entry, now)?;
        if wait == Wait::Written {
            self.log.flush()?;
        }
        Ok(location)
    }

    /// Gives compaction access to the log and the index. A failure is recorded under the same lock, before further
    /// writes.
    fn with_context(&mut self, operation: &mut ContextFn<'_>) -> io::Result<()> {
        if let Some(failure) = &self.failure {
            return Err(io::Error::new(failure.kind(), Arc::clone(failure)));
        }
        let unapplied = self.waiting.iter().filter_map(|waiting| waiting.location.segment()).min();
        let (log, index, unapplied_from) = (&mut self.log, &mut self.index, unapplied.unwrap_or(u32::MAX));
        operation(&mut CompactionContext { log, index, unapplied_from }).map_err(|error| {
            let error = Arc::new(error);
            self.fail(Arc::clone(&error));
            io::Error::new(error.kind(), error)
        })
    }

    fn forget(&mut self, now: u64) {
        let early = self.index.forget(now);
        if early > 0 && !self.warned_full {
            self.warned_full = true;
            tracing::warn!(
                "the call journal is full; the oldest answers are forgotten before their retention time has passed"
            );
        }
    }

    /// Records a failure. The state on disk is unknown from now on, so no call may be started.
    fn fail(&mut self, error: Arc<io::Error>) -> JournalError {
        if self.failure.is_none() {
            tracing::error!(%error, "cannot write the call journal, calls are refused until the host is restarted");
        }
        JournalError::Write(Arc::clone(self.failure.get_or_insert(error)))
    }
}
