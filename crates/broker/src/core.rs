//! The embedded mailboxes: an engine behind a mutex, a store, one writer thread and one reader thread.
//!
//! The mutex is a std mutex: it is held for microseconds only, because the engine does no I/O.

mod commands;

use crate::agent_ends;
use crate::claims::Claims;
use crate::clock::Clock;
use crate::directory::HostDirectory;
use crate::dispatch::{Dispatcher, FetchQueue};
use crate::error::{BrokerError, BrokerResult};
use crate::generations::Generations;
use crate::handover;
use crate::state_file::{FolderFile, ReplacedFile, StateFile};
use crate::store_threads;
use crate::stored_directory::StoredDirectory;
use hashbrown::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use toolbus_audit::AuditLog;
use toolbus_engine::{
    AttemptsNote, Command, ConnId, Effects, Engine, EngineOptions, Fence, JournalClaim, Millis, Names, RestoredMessage,
    Seq, Settled,
};
use toolbus_identity::Agents;
use toolbus_store::{Disk, LogStore, Replay, Store, StoreError, StoreOptions};

/// Options of [`BrokerCore`].
#[derive(Debug, Clone)]
pub struct CoreOptions {
    /// Limits of mailboxes, windows and deduplication history.
    pub engine: EngineOptions,
    /// Options of the message log.
    pub store: StoreOptions,
    /// The first sequence number of a new log. The partitions of a cluster have different ones.
    pub first_seq: Seq,
    /// New messages are refused while the disk has less free space than this.
    pub reserve_bytes: u64,
}

impl Default for CoreOptions {
    fn default() -> Self {
        Self {
            engine: EngineOptions::default(),
            store: StoreOptions::default(),
            first_seq: 0,
            reserve_bytes: 128 << 20,
        }
    }
}

/// A partition of a cluster, to be served by this broker.
pub struct PartitionOptions {
    /// Its files, in a replicated log.
    pub disk: Arc<dyn Disk>,
    /// The cluster's id and secret.
    pub identity: toolbus_store::Identity,
    /// The cluster's directory of hosts.
    pub hosts: Arc<dyn HostDirectory>,
    /// Limits and the first sequence number.
    pub core: CoreOptions,
}

/// Durable mailboxes in a folder. Dropping it writes pending records and joins its threads.
pub struct BrokerCore {
    shared: Arc<Shared>,
    identity: String,
    hosts: Arc<dyn HostDirectory>,
    claims: Claims,
    /// The claims of the connections, with their mailboxes.
    claimed: Mutex<HashMap<ConnId, (Arc<str>, JournalClaim)>>,
    generations: Generations,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
    /// The lock of the data folder.
    lock: Option<File>,
    /// The server has ended or was aborted, so that the folder may be handed over.
    abandoned: AtomicBool,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    /// Wakes the writer thread when a batch becomes due before the end of its sleep.
    pub writer_wake: Condvar,
    pub fetches: FetchQueue,
    pub store: Arc<dyn Store>,
    pub clock: Clock,
    pub reserve_bytes: u64,
    /// It is a partition of a cluster.
    is_partition: bool,
    failure: OnceLock<BrokerError>,
    failed: CancellationToken,
    closed: CancellationToken,
}

pub(crate) struct State {
    pub engine: Engine,
    pub effects: Effects,
    pub dispatcher: Dispatcher,
    /// End of the writer thread's sleep; `None` while it works.
    pub writer_sleeps_until: Option<Millis>,
    pub stopping: bool,
}

impl BrokerCore {
    /// Opens the mailboxes in a folder, with default options.
    pub fn new(folder: impl AsRef<Path>) -> BrokerResult<Arc<Self>> {
        Self::open(folder.as_ref(), CoreOptions::default())
    }

    /// Opens the mailboxes in a folder: replays its log and starts the writer and reader threads.
    pub fn open(folder: &Path, options: CoreOptions) -> BrokerResult<Arc<Self>> {
        let (disk, identity) = handover::open_folder(folder).map_err(|error| BrokerError::Folder(Arc::new(error)))?;
        let lock = disk.lock().ok();
        let mut engine = options.engine.clone();
        engine.fingerprint_seed = identity.seed;
        let hosts = Arc::new(StoredDirectory::in_folder(folder, identity.seed)?);
        let store = StoreOptions { checksum_seed: identity.seed, ..options.store };
        let file = |name: &str| Arc::new(FolderFile(folder.join(name))) as Arc<dyn StateFile>;
        let kept = (Claims::open(file("claims.json")), Generations::open(file("generations.json"))?);
        let options = CoreOptions { engine, store, ..options };
        let mut core = Self::start(Arc::new(disk), identity.id, hosts, kept, options)?;
        core.lock = lock;
        let core = Arc::new(core);
        handover::register(folder, &core);
        Ok(core)
    }

    /// Opens a partition of a cluster. Blocks on its replicated log.
    pub fn open_partition(options: PartitionOptions) -> BrokerResult<Arc<Self>> {
        let PartitionOptions { disk, identity, hosts, mut core } = options;
        core.engine.fingerprint_seed = identity.seed;
        core.store.checksum_seed = identity.seed;
        let file = |name| Arc::new(ReplacedFile::new(Arc::clone(&disk), name, identity.seed)) as Arc<dyn StateFile>;
        let kept = (Claims::open(file("claims")), Generations::open_shared(file("generations"))?);
        Self::start(disk, identity.id, hosts, kept, core).map(Arc::new)
    }

    fn start(
        disk: Arc<dyn Disk>,
        identity: String,
        hosts: Arc<dyn HostDirectory>,
        (claims, generations): (Claims, Generations),
        options: CoreOptions,
    ) -> BrokerResult<Self> {
        let store_options = StoreOptions {
            history_ids: options.engine.history_ids,
            history_age: options.engine.history_age,
            ..options.store
        };
        let started = Instant::now();
        let mut replay = EngineReplay(Engine::new(options.engine));
        let ended = generations.ended();
        ended.iter().for_each(|(name, generation, _)| replay.0.restore_generation(name, *generation));
        let (store, recovery) =
            LogStore::open(disk, store_options, &mut replay).map_err(|error| BrokerError::Open(Arc::new(error)))?;
        let mut engine = replay.0;
        engine.finish_restore(recovery.next_seq.max(options.first_seq), 1, recovery.damaged);
        match store.free_bytes() {
            Ok(free) => engine.set_capacity(free.saturating_sub(options.reserve_bytes)),
            Err(error) => tracing::warn!(%error, "can't determine the free disk space"),
        }
        let clock = Clock::start();
        for (mailbox, fence) in claims.fences() {
            // A clock that was set back must not put messages that are yet to come before the fence.
            engine.restore_fence(&mailbox, Fence { at: fence.at.min(clock.now()), ..fence });
        }
        // A crash may have come before the removal was durable. No peer is connected, so there is nothing to send.
        let ended: Vec<(&str, Seq)> = ended.iter().map(|(name, _, before)| (name.as_str(), *before)).collect();
        engine.remove_earlier(clock.now(), &ended, &mut Effects::default());
        let took = started.elapsed();
        match (recovery.records, recovery.torn_bytes) {
            (0, 0) => tracing::debug!(?took, "opened empty mailboxes"),
            (records, torn_bytes) => tracing::info!(records, torn_bytes, ?took, "opened the mailboxes"),
        }

        let state = State {
            engine,
            effects: Effects::default(),
            dispatcher: Dispatcher::default(),
            writer_sleeps_until: None,
            stopping: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            writer_wake: Condvar::new(),
            fetches: FetchQueue::default(),
            store: Arc::new(store),
            clock,
            reserve_bytes: options.reserve_bytes,
            is_partition: generations.are_shared(),
            failure: OnceLock::new(),
            failed: CancellationToken::new(),
            closed: CancellationToken::new(),
        });
        let threads = store_threads::spawn(&shared).map_err(|error| BrokerError::Thread(Arc::new(error)))?;
        let (threads, lock, abandoned) = (Mutex::new(threads), None, AtomicBool::new(false));
        let claimed = Mutex::default();
        Ok(Self { shared, identity, hosts, claims, claimed, generations, threads, lock, abandoned })
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Refuses new messages, writes pending records, joins the threads and gives up the lock of the folder.
    pub fn close(&self) {
        {
            let mut state = self.shared.lock();
            state.stopping = true;
            state.engine.stop_accepting();
        }
        self.shared.closed.cancel();
        self.shared.writer_wake.notify_all();
        self.shared.fetches.close();
        for thread in self.threads.lock().unwrap_or_else(|_| abort_after_panic()).drain(..) {
            if thread.join().is_err() {
                tracing::error!("a storage thread panicked");
            }
        }
        if let Some(Err(error)) = self.lock.as_ref().map(File::unlock) {
            tracing::warn!(%error, "can't give up the lock of the data folder");
        }
    }

    /// Id of the data folder's namespace; stable across restarts.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Carries out the changes of the registered agents. Returns false if they could not be recorded. Blocks on the disk.
    pub(crate) fn update_agents(
        &self,
        agents: &Agents,
        is_excepted: &dyn Fn(&str) -> bool,
        audit: Option<&AuditLog>,
    ) -> bool {
        let is_recorded =
            self.generations.update(agents, is_excepted, |name, change| agent_ends::apply(self, audit, name, change));
        if !is_recorded {
            self.shared.fail_if_partition("generations");
        }
        is_recorded
    }

    /// Runs one engine step.
    pub(crate) fn step<T>(&self, step: impl FnOnce(&mut Engine, Millis, &mut Effects) -> T) -> T {
        self.shared.step(step)
    }

    /// The directory of announced hosts.
    pub fn hosts(&self) -> Arc<dyn HostDirectory> {
        Arc::clone(&self.hosts)
    }

    /// Sets the lookup of hosts and send rules. The engine consults it for peers with restricted rights.
    pub fn set_names(&self, names: Arc<dyn Names>) {
        self.shared.lock().engine.set_names(names);
    }

    /// Resolves with the error when storage has failed.
    pub async fn failed(&self) -> BrokerError {
        self.shared.failed.cancelled().await;
        self.shared.failure.get().cloned().expect("the failure is set before the token is cancelled")
    }

    /// Like [`failed`](Self::failed), but without keeping the core. Resolves with `None` when the core is closed.
    pub fn failure(&self) -> impl Future<Output = Option<BrokerError>> + use<> {
        let (failed, closed) = (self.shared.failed.clone(), self.shared.closed.clone());
        let shared = Arc::downgrade(&self.shared);
        async move {
            tokio::select! {
                () = failed.cancelled() => shared.upgrade()?.failure.get().cloned(),
                () = closed.cancelled() => None,
            }
        }
    }

    /// Whether storage has failed.
    pub fn has_failed(&self) -> bool {
        self.shared.failed.is_cancelled()
    }

    /// Refuses new messages and waits until all accepted ones are durable, for at most `limit`.
    pub async fn drain(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        self.shared.lock().engine.stop_accepting();
        while Instant::now() < deadline && !self.has_failed() {
            {
                let now = self.shared.clock.now();
                let mut state = self.shared.lock();
                state.engine.hurry(now);
                if !state.engine.anything_to_write() {
                    return;
                }
                self.shared.wake_writer_if_due(&state);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for BrokerCore {
    fn drop(&mut self) {
        self.close();
    }
}

/// A panic inside the engine leaves its state unknown. Every accepted message is on disk or has no receipt yet, so the
/// process stops as if it was killed instead of going on without an engine.
pub fn abort_after_panic() -> ! {
    tracing::error!("the engine panicked; the process stops, and a restart recovers from the log");
    std::process::abort()
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|_| abort_after_panic())
    }

    /// Stops the broker, or gives up the partition: after a failed write or fsync, the state on disk is unknown.
    pub fn fail(&self, error: StoreError) {
        let failure = BrokerError::Storage(Arc::new(error));
        tracing::error!(error = %failure, "nothing more is accepted");
        if self.failure.set(failure).is_ok() {
            self.failed.cancel();
        }
    }

    pub fn has_failed(&self) -> bool {
        self.failed.is_cancelled()
    }

    /// Gives up a partition whose state file could not be written: its log is closed to this broker. A folder may take the
    /// next write, so its broker goes on.
    pub fn fail_if_partition(&self, file: &str) {
        if self.is_partition {
            let source = std::io::Error::other("a write of its state failed");
            self.fail(StoreError::Io { what: "write", file: file.to_owned(), source });
        }
    }

    pub fn wake_writer_if_due(&self, state: &State) {
        if let Some(until) = state.writer_sleeps_until
            && state.engine.next_wakeup().is_some_and(|due| due < until)
        {
            self.writer_wake.notify_one();
        }
    }

    /// Has the engine carry out commands of a connection.
    pub fn submit(&self, conn: ConnId, commands: impl IntoIterator<Item = Command>) {
        self.step(|engine, now, effects| {
            commands.into_iter().for_each(|command| engine.handle(now, conn, command, effects));
        });
    }

    /// Runs one engine step under the lock and dispatches its effects.
    pub fn step<T>(&self, step: impl FnOnce(&mut Engine, Millis, &mut Effects) -> T) -> T {
        let mut guard = self.lock();
        let state = &mut *guard;
        let result = step(&mut state.engine, self.clock.now(), &mut state.effects);
        state.dispatcher.dispatch(&mut state.effects, &self.fetches);
        self.wake_writer_if_due(state);
        result
    }
}

struct EngineReplay(Engine);

impl Replay for EngineReplay {
    fn message(&mut self, message: RestoredMessage<'_>) {
        self.0.restore_message(message);
    }

    fn settled(&mut self, settled: &Settled) {
        self.0.restore_settled(settled);
    }

    fn attempts(&mut self, note: &AttemptsNote) {
        self.0.restore_attempts(note);
    }
}
