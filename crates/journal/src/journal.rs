//! The journal as a host uses it: looked up and written at once, and one sync for all who wait meanwhile.

use crate::book::{Book, CallSummary, Candidate, DeadLetterRow, Known, Refused, TaskRow};
use crate::entry::{CallKey, Dead, Entry, Finish, Joined, Start, Task};
use crate::log::{JournalLog, LogOptions, Place, Reader};
use crate::options::{JournalError, JournalOptions};
use crate::replay::Recovery;
use crate::writer::{Clock, Shared};
use bytes::Bytes;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};
use toolbus_wal::{Disk, FolderDisk, MemoryDisk};

/// When an entry's writer goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Once it is durable.
    Synced,
    /// Once it outlives this process. It outlives the machine a moment later.
    Written,
}

/// Tells a journal from others, and from older copies of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// The name of the folder, or a new one for a journal that is in memory or damaged.
    pub journal: String,
    /// How often it was opened.
    pub epoch: u64,
    /// A random name of this opening.
    pub instance: String,
}

impl Generation {
    fn unique() -> Self {
        let random = || uuid::Uuid::new_v4().to_string();
        Self { journal: random(), epoch: 1, instance: random() }
    }
}

/// Entries stay in memory as long as their calls are remembered: their texts must not be parts of larger messages.
///
/// Dropping it syncs what is left and ends its thread.
pub struct Journal {
    generation: Generation,
    shared: Arc<Shared>,
    reader: Reader,
    recovery: Recovery,
    thread: Option<JoinHandle<()>>,
}

impl Journal {
    /// Opens or makes the journal in a folder that only its owner may look into: it holds arguments and results.
    pub fn open(folder: &Path, options: JournalOptions) -> Result<Self, JournalError> {
        make_private(folder).map_err(|error| JournalError::Folder(Arc::new(error)))?;
        let (disk, identity) = FolderDisk::open(folder).map_err(|error| JournalError::Open(Arc::new(error)))?;
        let epoch = disk.next_epoch(&identity).map_err(|error| JournalError::Folder(Arc::new(error)))?;
        let log = LogOptions { checksum_seed: identity.seed, ..options.log };
        let mut journal = Self::on_disk(Arc::new(disk), JournalOptions { log, ..options }, Arc::new(now_ms))?;
        // A journal that was damaged or cut may have lost calls, so it can't vouch for what an earlier process started. A
        // cut end counts too: a crash leaves one, and so does corruption of its last records.
        let is_whole = !journal.recovery.is_damaged() && journal.recovery.torn_bytes == 0;
        if is_whole {
            (journal.generation.journal, journal.generation.epoch) = (identity.id, epoch);
        }
        Ok(journal)
    }

    /// A journal that is gone with its process.
    pub fn in_memory() -> Result<Self, JournalError> {
        Self::on_disk(Arc::new(MemoryDisk::default()), JournalOptions::default(), Arc::new(now_ms))
    }

    pub fn on_disk(disk: Arc<dyn Disk>, options: JournalOptions, clock: Clock) -> Result<Self, JournalError> {
        let mut book = Book::new(options.limits.clone(), clock());
        let opened = JournalLog::open(disk, options.log.clone(), |entry, place| book.restore(&entry, place));
        let (log, recovery) = opened.map_err(|error| JournalError::Read(Arc::new(error)))?;
        let too_many = book.forget_interrupted();
        if too_many > 0 {
            tracing::error!(
                calls = too_many,
                "too many interrupted calls in the call journal, the oldest are forgotten"
            );
        }
        let reader = log.reader();
        let shared = Arc::new(Shared::new(book, log, options, clock));
        let kept = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("call-journal".into()).spawn(move || kept.keep_safe());
        let thread = thread.map_err(|error| JournalError::Thread(Arc::new(error)))?;
        Ok(Self { generation: Generation::unique(), shared, reader, recovery, thread: Some(thread) })
    }

    /// Which journal this is, as the broker remembers it for the host's mailbox.
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// Why nothing is taken any more.
    pub fn failure(&self) -> Option<Arc<io::Error>> {
        self.shared.failure()
    }

    /// Whether the answer to a call that may not run twice is to be durable before the caller is told.
    pub fn syncs_results(&self) -> bool {
        self.shared.options().sync_results
    }

    /// What became of a call that comes, perhaps again.
    pub fn look_up(&self, key: &CallKey, content: &[u8; 32]) -> Result<Known, Refused> {
        self.shared.lock().book.look_up(key, content)
    }

    /// Writes down that a call begins. Only then may the tool be told.
    pub async fn start(&self, start: Start, wait: Wait) -> Result<(), JournalError> {
        self.write(Entry::Start(Arc::new(start)), wait).await
    }

    /// Writes the answer down. Only then may the caller be told.
    pub async fn finish(&self, finish: Finish, wait: Wait) -> Result<(), JournalError> {
        self.write(Entry::Finish(finish), wait).await
    }

    pub async fn join(&self, joined: Joined) -> Result<(), JournalError> {
        self.write(Entry::Joined(joined), Wait::Synced).await
    }

    /// Takes a task. Once this returns, it will be run or said to have failed, whatever happens.
    pub async fn accept(&self, task: Task) -> Result<(), JournalError> {
        self.write(Entry::Task(task), Wait::Synced).await
    }

    pub async fn bury(&self, dead: Dead) -> Result<(), JournalError> {
        self.write(Entry::Dead(dead), Wait::Synced).await
    }

    pub async fn drop_letter(&self, key: &CallKey) -> Result<(), JournalError> {
        self.write(Entry::Dropped(key.clone()), Wait::Synced).await
    }

    /// The answer at that place.
    pub fn reply(&self, place: &Place) -> Result<Bytes, JournalError> {
        self.reader.carried(place).map_err(|error| JournalError::Read(Arc::new(error)))
    }

    /// The request of a task or a dead letter.
    pub fn request(&self, place: &Place) -> Result<Bytes, JournalError> {
        self.reply(place)
    }

    /// The latest call of that agent with that content, unless it was answered before that time.
    pub fn candidate(&self, agent: &str, content: &[u8; 32], ended_after: u64) -> Option<Candidate> {
        self.shared.lock().book.candidate(agent, content, ended_after)
    }

    /// All calls that have not ended and the latest that have, the latest first.
    pub fn calls(&self) -> Vec<CallSummary> {
        self.shared.lock().book.calls()
    }

    /// All tasks, oldest first, also those whose time is over: see [`crate::TaskManifest::expires_at`].
    pub fn tasks(&self) -> Vec<TaskRow> {
        self.shared.lock().book.tasks()
    }

    /// The task with that id: of that agent, or of anybody.
    pub fn task(&self, id: &str, agent: Option<&str>) -> Option<TaskRow> {
        self.shared.lock().book.task(id, agent)
    }

    /// In the order in which they were taken.
    pub fn unfinished_tasks(&self) -> Vec<TaskRow> {
        self.shared.lock().book.unfinished_tasks()
    }

    /// Tasks that have not expired, of that agent or of all.
    pub fn count_tasks(&self, agent: Option<&str>, now: u64) -> usize {
        self.shared.lock().book.count_tasks(agent, now)
    }

    pub fn letters(&self) -> Vec<Arc<DeadLetterRow>> {
        self.shared.lock().book.letters()
    }

    pub fn letter(&self, id: &str) -> Option<Arc<DeadLetterRow>> {
        self.shared.lock().book.letter(id)
    }

    async fn write(&self, entry: Entry, wait: Wait) -> Result<(), JournalError> {
        match self.shared.write(entry, wait)? {
            Some(durable) => durable.await.map_or(Err(JournalError::Closed), |told| told.outcome()),
            None => Ok(()),
        }
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

fn make_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    // Else a power cut could take the folder with all that was synced in it.
    folder.canonicalize()?.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
