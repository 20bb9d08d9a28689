//! The journal as used by a host: lookups in memory, and writes with group commit.

use crate::call_index::{CallIndex, CallSummary, Candidate, DeadLetterRow, Known, Refused, TaskRow};
use crate::entry::{CallKey, Dead, Entry, Finish, Joined, Start, Task};
use crate::lineage::lineage;
use crate::log::{Location, LogOptions, Reader};
use crate::options::{JournalError, JournalOptions};
use crate::state::{Appended, JournalState, Wait};
use crate::writer::{Clock, Listener, Shared};
use bytes::Bytes;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};
use toolbus_wal::{Disk, FolderDisk, MemoryDisk, Opening, Recovery};

/// Distinguishes a journal from others and from older copies of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalIdentity {
    /// The id of the folder, or the lineage of a journal that may have lost entries, or a random id of a journal in
    /// memory.
    pub journal: String,
    /// How often the journal was opened.
    pub epoch: u64,
    /// A random id, new each time the journal is opened.
    pub instance: String,
    /// The ids of the last openings before, latest first.
    pub ancestors: Vec<String>,
}

impl JournalIdentity {
    fn unique() -> Self {
        let random = || uuid::Uuid::new_v4().to_string();
        Self { journal: random(), epoch: 1, instance: random(), ancestors: Vec::new() }
    }
}

/// The call journal of a host. A remembered call takes about 240 bytes of memory; answers and requests are read from the
/// log.
///
/// Dropping the journal syncs all entries and joins its thread.
pub struct Journal {
    identity: JournalIdentity,
    shared: Arc<Shared>,
    reader: Reader,
    recovery: Recovery,
    sync_results: bool,
    thread: Option<JoinHandle<()>>,
}

impl Journal {
    /// Opens or creates the journal in a folder for its owner only: it contains arguments and results of calls.
    pub fn open(folder: &Path, options: JournalOptions) -> Result<Self, JournalError> {
        let (disk, identity) = FolderDisk::open(folder).map_err(|error| JournalError::Open(Arc::new(error)))?;
        sync_parent(folder).map_err(|error| JournalError::Folder(Arc::new(error)))?;
        let opening = disk.next_opening(&identity).map_err(|error| JournalError::Folder(Arc::new(error)))?;
        let log = LogOptions { checksum_seed: identity.seed, ..options.log };
        let disk = Arc::new(disk);
        let options = JournalOptions { log, ..options };
        let mut journal = Self::on_disk(Arc::clone(&disk) as Arc<dyn Disk>, options, Arc::new(now_ms))?;
        // A journal that may have lost calls of an earlier process must not claim to be the same journal.
        let lineage = lineage(&*disk).map_err(|error| JournalError::Folder(Arc::new(error)))?;
        let Opening { epoch, instance, ancestors } = opening;
        journal.identity = JournalIdentity { journal: lineage.unwrap_or(identity.id), epoch, instance, ancestors };
        Ok(journal)
    }

    /// Opens a journal in memory, which does not survive its process.
    pub fn in_memory() -> Result<Self, JournalError> {
        Self::on_disk(Arc::new(MemoryDisk::default()), JournalOptions::default(), Arc::new(now_ms))
    }

    /// Opens a journal on any disk, with a clock for the retention times.
    pub fn on_disk(disk: Arc<dyn Disk>, options: JournalOptions, clock: Clock) -> Result<Self, JournalError> {
        let sync_results = options.sync_results;
        let (state, recovery) = JournalState::open(disk, options, clock())?;
        let reader = state.reader();
        let shared = Arc::new(Shared::new(state, clock));
        let kept = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("call-journal".into()).spawn(move || kept.run_sync_thread());
        let thread = thread.map_err(|error| JournalError::Thread(Arc::new(error)))?;
        let identity = JournalIdentity::unique();
        Ok(Self { identity, shared, reader, recovery, sync_results, thread: Some(thread) })
    }

    /// Identifies this journal. The broker stores it for the host's mailbox.
    pub fn identity(&self) -> &JournalIdentity {
        &self.identity
    }

    /// The result of replaying the journal.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// The I/O error after which the journal rejects all writes, if any.
    pub fn failure(&self) -> Option<Arc<io::Error>> {
        self.shared.failure()
    }

    /// Whether the answer to a call that is not replay-safe must be durable before it is sent.
    pub fn syncs_results(&self) -> bool {
        self.sync_results
    }

    /// Looks up the state of a call. Rejects an id that is known with other content.
    pub fn look_up(&self, key: &CallKey, content: &[u8; 32]) -> Result<Known, Refused> {
        self.shared.query(|index| index.look_up(key, content))
    }

    /// Gives access to the state of all remembered calls. Writers wait meanwhile, so it must be short.
    pub fn with_index<T>(&self, operation: impl FnOnce(&CallIndex) -> T) -> T {
        self.shared.query(operation)
    }

    /// Appends an entry without waiting. The listener reports the ticket when it is durable, or that it never will be;
    /// possibly before this returns.
    pub fn append(&self, entry: Entry, wait: Wait) -> Result<Appended, JournalError> {
        self.shared.append(entry, wait)
    }

    /// Announces an entry that is about to be appended with [`Wait::Synced`]. Only saves time.
    pub fn expect_sync(&self) {
        self.shared.expect_sync();
    }

    /// Sets the listener, which replaces the previous one. It is called on the journal's thread after each sync, with all
    /// tickets of [`Journal::append`] that the sync served, and must not block.
    pub fn set_listener(&self, listener: Listener) {
        self.shared.set_listener(listener);
    }

    /// Writes a START. The call must not be sent to its server before this returns.
    pub async fn start(&self, start: Start, wait: Wait) -> Result<(), JournalError> {
        self.shared.write(Entry::Start(Arc::new(start)), wait).await
    }

    /// Writes a RESULT. The answer must not be sent to the caller before this returns.
    pub async fn finish(&self, finish: Finish, wait: Wait) -> Result<(), JournalError> {
        self.shared.write(Entry::Finish(finish), wait).await
    }

    /// Joins a call to an earlier one. Returns after the entry is durable.
    pub async fn join(&self, joined: Joined) -> Result<(), JournalError> {
        self.shared.write(Entry::Joined(joined), Wait::Synced).await
    }

    /// Accepts a task. Once this returns, the task is durable and will be run or reported as failed, even after a
    /// crash.
    pub async fn accept(&self, task: Task) -> Result<(), JournalError> {
        self.shared.write(Entry::Task(task), Wait::Synced).await
    }

    /// Dead-letters a call. Returns after the entry is durable.
    pub async fn dead_letter(&self, dead: Dead) -> Result<(), JournalError> {
        self.shared.write(Entry::Dead(dead), Wait::Synced).await
    }

    /// Drops a dead letter. Returns after the entry is durable.
    pub async fn drop_dead_letter(&self, key: &CallKey) -> Result<(), JournalError> {
        self.shared.write(Entry::Dropped(key.clone()), Wait::Synced).await
    }

    /// Reads the answer at a location.
    pub fn reply(&self, location: &Location) -> Result<Bytes, JournalError> {
        self.reader.payload(location).map_err(|error| JournalError::Read(Arc::new(error)))
    }

    /// Reads the request of a task or a dead letter at a location.
    pub fn request(&self, location: &Location) -> Result<Bytes, JournalError> {
        self.reply(location)
    }

    /// The latest call of an agent with this content, unless it ended before `ended_after`.
    pub fn candidate(&self, agent: &str, content: &[u8; 32], ended_after: u64) -> Option<Candidate> {
        self.shared.query(|index| index.candidate(agent, content, ended_after))
    }

    /// All calls that have not ended, then the latest ended ones; latest first.
    pub fn calls(&self) -> Vec<CallSummary> {
        self.shared.query(|index| index.calls())
    }

    /// All tasks, oldest first, including expired ones: see [`crate::TaskManifest::expires_at`].
    pub fn tasks(&self) -> Vec<TaskRow> {
        self.shared.query(|index| index.tasks())
    }

    /// The task with this id, optionally of one agent only.
    pub fn task(&self, id: &str, agent: Option<&str>) -> Option<TaskRow> {
        self.shared.query(|index| index.task(id, agent))
    }

    /// Tasks without an answer, in the order of their acceptance.
    pub fn unfinished_tasks(&self) -> Vec<TaskRow> {
        self.shared.query(|index| index.unfinished_tasks())
    }

    /// Number of tasks that have not expired, optionally of one agent only.
    pub fn count_tasks(&self, agent: Option<&str>, now: u64) -> usize {
        self.shared.query(|index| index.count_tasks(agent, now))
    }

    /// All dead letters, oldest first.
    pub fn dead_letters(&self) -> Vec<Arc<DeadLetterRow>> {
        self.shared.query(|index| index.dead_letters())
    }

    /// The dead letter with this id.
    pub fn dead_letter_by_id(&self, id: &str) -> Option<Arc<DeadLetterRow>> {
        self.shared.query(|index| index.dead_letter_by_id(id))
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the call journal's thread panicked");
        }
    }
}

/// Without it, a power failure could remove the folder and all synced entries in it.
fn sync_parent(folder: &Path) -> io::Result<()> {
    folder.canonicalize()?.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
