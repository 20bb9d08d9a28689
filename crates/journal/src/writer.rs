//! The journal's thread, which makes entries durable by group commit, and the state that it shares with writers.
//!
//! An entry whose writer does not wait for a sync is written by the writer itself: a write to the page cache takes
//! microseconds, less than a round trip to another thread, and survives a crash of this process. The thread makes
//! entries durable: one write and one sync for all waiting writers, and a periodic sync for entries without a waiting
//! writer.

use crate::call_index::CallIndex;
use crate::deferral::{Deferral, SYNC_INTERVAL};
use crate::entry::Entry;
use crate::options::JournalError;
use crate::state::{Appended, JournalState, Synced, Ticket, Wait};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Returns the time in milliseconds since 1970.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Called after a sync with the appends that waited for it.
pub type Listener = Arc<dyn Fn(Synced) + Send + Sync>;

pub struct Shared {
    locked: Mutex<Locked>,
    /// Wakes the sync thread.
    wake: Condvar,
    /// Whether a writer waits for the next sync. For the thread while it expects one.
    is_awaited: AtomicBool,
    clock: Clock,
}

struct Locked {
    state: JournalState,
    /// Writers that wait for their ticket themselves, in the order of the tickets. The listener gets all others.
    waiters: Vec<(Ticket, oneshot::Sender<SyncOutcome>)>,
    listener: Option<Listener>,
    deferral: Deferral,
    sleep: Sleep,
    /// The thread was woken for an entry that is about to be appended.
    is_expecting: bool,
    /// Absent before the first sync.
    last_group: Option<Group>,
    stopping: bool,
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

/// The outcome of a sync. The sync thread notifies only the first waiting writer, which notifies the others from a
/// runtime thread, where waking them is cheap. This happens on drop, so it is cancellation-safe: the others are
/// notified even if the first writer was cancelled.
struct SyncOutcome {
    outcome: Result<(), JournalError>,
    others: Vec<oneshot::Sender<SyncOutcome>>,
}

impl Drop for SyncOutcome {
    fn drop(&mut self) {
        for other in self.others.drain(..) {
            other.send(SyncOutcome { outcome: self.outcome.clone(), others: Vec::new() }).ok();
        }
    }
}

/// Number of writers waiting for one sync from which the load counts as concurrent.
const CONCURRENT_WRITERS: usize = 3;
/// How long after a sync the load still counts as concurrent.
const CONCURRENT_FOR: Duration = Duration::from_millis(5);
/// Maximum linger before a sync.
const MAX_LINGER: Duration = Duration::from_millis(1);
/// Idle time after which the thread sleeps until it is woken.
const IDLE_AFTER: Duration = Duration::from_millis(100);
/// How long the thread stays awake for an entry that was announced.
const EXPECT_WINDOW: Duration = Duration::from_micros(200);
/// How often an idle journal checks for segments to compact.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(60);

impl Shared {
    pub fn new(state: JournalState, clock: Clock) -> Self {
        let locked = Locked {
            state,
            waiters: Vec::new(),
            listener: None,
            deferral: Deferral::default(),
            sleep: Sleep::None,
            is_expecting: false,
            last_group: None,
            stopping: false,
        };
        Self { locked: Mutex::new(locked), wake: Condvar::new(), is_awaited: AtomicBool::new(false), clock }
    }

    fn lock(&self) -> MutexGuard<'_, Locked> {
        self.locked.lock().expect("no code panics while holding the lock")
    }

    /// Queries the index.
    pub fn query<T>(&self, query: impl FnOnce(&CallIndex) -> T) -> T {
        query(self.lock().state.index())
    }

    pub fn failure(&self) -> Option<Arc<io::Error>> {
        self.lock().state.failure()
    }

    pub fn set_listener(&self, listener: Listener) {
        self.lock().listener = Some(listener);
    }

    pub fn stop(&self) {
        self.lock().stopping = true;
        self.wake.notify_one();
    }

    /// Appends an entry whose ticket is reported to the listener.
    pub fn append(&self, entry: Entry, wait: Wait) -> Result<Appended, JournalError> {
        self.append_then(entry, wait, |_, appended| appended)
    }

    /// Appends an entry and waits until it takes effect.
    pub async fn write(&self, entry: Entry, wait: Wait) -> Result<(), JournalError> {
        let durable = self.append_then(entry, wait, |locked, appended| {
            let Appended::Waits(ticket) = appended else { return None };
            let (done, durable) = oneshot::channel();
            locked.waiters.push((ticket, done));
            Some(durable)
        })?;
        match durable {
            Some(durable) => durable.await.map_or(Err(JournalError::Closed), |synced| synced.outcome.clone()),
            None => Ok(()),
        }
    }

    /// Wakes the thread for an entry that is about to be appended and synced, so that the wake-up, which takes as long as a
    /// good part of a sync, overlaps with the caller's work before the append.
    pub fn expect_sync(&self) {
        let mut locked = self.lock();
        if locked.sleep == Sleep::None {
            return;
        }
        (locked.sleep, locked.is_expecting) = (Sleep::None, true);
        drop(locked);
        self.wake.notify_one();
    }

    /// Appends an entry, calls `then` under the same lock, and wakes the thread if needed.
    fn append_then<T>(
        &self,
        entry: Entry,
        wait: Wait,
        then: impl FnOnce(&mut Locked, Appended) -> T,
    ) -> Result<T, JournalError> {
        let now = (self.clock)();
        let mut locked = self.lock();
        let appended = locked.state.append(entry, wait, now)?;
        let waits = appended != Appended::Written;
        if waits {
            self.is_awaited.store(true, Ordering::Relaxed);
        }
        locked.deferral.appended(waits, Instant::now());
        let then = then(&mut locked, appended);
        let wake = locked.sleep == Sleep::Long || (waits && locked.sleep == Sleep::Short);
        if wake {
            locked.sleep = Sleep::None;
        }
        drop(locked);
        if wake {
            self.wake.notify_one();
        }
        Ok(then)
    }

    /// The loop of the sync thread: syncs entries, and runs steps of compaction and rotation in between.
    pub fn run_sync_thread(&self) {
        let mut has_maintenance = true;
        while self.wait_for_work(has_maintenance) {
            self.sync();
            has_maintenance = self.maintain();
        }
    }

    /// Blocks until a writer waits for a sync, a periodic sync is due, or compaction is due. Returns false if the
    /// journal is closing and all entries are synced.
    fn wait_for_work(&self, at_once: bool) -> bool {
        let mut locked = self.lock();
        let (mut now, start) = (Instant::now(), Instant::now());
        loop {
            if locked.stopping {
                return locked.state.needs_sync();
            }
            let is_due = locked.state.has_waiting() || locked.deferral.is_due(now);
            if at_once || is_due || now >= start + COMPACTION_INTERVAL {
                return true;
            }
            // Under load the thread polls, so writers that don't wait for a sync need not wake it.
            let is_idle = locked.deferral.is_clean() && now >= start + IDLE_AFTER;
            let (sleep, time) =
                if is_idle { (Sleep::Long, COMPACTION_INTERVAL) } else { (Sleep::Short, SYNC_INTERVAL) };
            locked.sleep = sleep;
            locked = self.wake.wait_timeout(locked, time).expect("no code panics while holding the lock").0;
            locked.sleep = Sleep::None;
            if std::mem::take(&mut locked.is_expecting) {
                drop(locked);
                self.await_expected();
                locked = self.lock();
            }
            now = Instant::now();
        }
    }

    /// Stays awake until a writer waits, for a moment at most. Yields, so that the writer can run on a single processor.
    fn await_expected(&self) {
        let start = Instant::now();
        while !self.is_awaited.load(Ordering::Relaxed) && start.elapsed() < EXPECT_WINDOW {
            std::thread::yield_now();
        }
    }

    /// Syncs all entries written so far, concurrently with further writes.
    fn sync(&self) {
        let linger = self.lock().last_group.map_or(Duration::ZERO, Group::linger);
        if !linger.is_zero() {
            std::thread::sleep(linger);
        }
        let mut locked = self.lock();
        self.is_awaited.store(false, Ordering::Relaxed);
        let Some(group) = locked.state.begin_sync() else { return };
        locked.deferral.begins();
        drop(locked);
        let start = Instant::now();
        let synced = group.sync();
        let time = start.elapsed();
        let mut locked = self.lock();
        let done = locked.state.complete_sync(group, synced, (self.clock)());
        locked.last_group = Some(Group { waiting: done.tickets.len(), time, ended: Instant::now() });
        let waiters = locked.take_waiters(&done.tickets);
        let listener = locked.listener.clone();
        drop(locked);
        notify(waiters, listener, done);
    }

    /// Runs one step of rotation or compaction and returns whether there may be more to do. Runs on the sync thread,
    /// because creating, syncing and removing files may block for long.
    fn maintain(&self) -> bool {
        let step = self.lock().state.begin_maintenance((self.clock)());
        let Some(step) = step else { return false };
        let done = step.run();
        self.lock().state.complete_maintenance(done);
        true
    }
}

impl Locked {
    /// The writers that wait for one of these tickets themselves.
    fn take_waiters(&mut self, tickets: &[Ticket]) -> Vec<(Ticket, oneshot::Sender<SyncOutcome>)> {
        let last = tickets.last().copied();
        let behind = self.waiters.partition_point(|(ticket, _)| Some(*ticket) <= last);
        self.waiters.drain(..behind).collect()
    }
}

/// Reports the outcome of a sync to the waiting writers, and to the listener for all other tickets.
fn notify(waiters: Vec<(Ticket, oneshot::Sender<SyncOutcome>)>, listener: Option<Listener>, mut done: Synced) {
    done.tickets.retain(|ticket| waiters.binary_search_by_key(ticket, |(own, _)| *own).is_err());
    let outcome = done.outcome.clone();
    if let Some(listener) = listener.filter(|_| !done.tickets.is_empty()) {
        listener(done);
    }
    let mut others = waiters.into_iter().map(|(_, done)| done);
    if let Some(first) = others.next() {
        first.send(SyncOutcome { outcome, others: others.collect() }).ok();
    }
}
