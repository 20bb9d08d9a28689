//! A journal without a thread or a clock: index, log and group commit. The journal's thread and simulations drive it.

use crate::call_index::CallIndex;
use crate::entry::Entry;
use crate::lineage::renew_lineage;
use crate::log::{JournalLog, Location, Reader};
use crate::maintenance::Compactor;
use crate::options::{JournalError, JournalOptions};
use crate::planted::PlantedBug;
use std::io;
use std::sync::Arc;
use toolbus_wal::{Disk, GroupCommit, MAX_PAYLOAD, Recovery};

/// When an append takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Once the entry is durable.
    Synced,
    /// Once the entry is in the page cache, so that it survives a crash of this process. It is synced shortly
    /// afterwards.
    Written,
}

/// Identifies an append that waits for a sync. Increasing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// How an append left the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// In the page cache and applied to the index.
    Written,
    /// Takes effect when its ticket is reported as durable. During a rotation every append waits.
    Waits(Ticket),
}

/// The outcome of a sync, for all appends that waited for it.
#[derive(Debug, Clone)]
pub struct Synced {
    /// The appends, in their order.
    pub tickets: Vec<Ticket>,
    /// Whether they are durable. If not, they never will be.
    pub outcome: Result<(), JournalError>,
}

/// Index, log and group commit of a journal, without a thread or a clock.
pub struct JournalState {
    pub(crate) index: CallIndex,
    pub(crate) log: JournalLog,
    pub(crate) compactor: Compactor,
    pub(crate) options: JournalOptions,
    pub(crate) commit: GroupCommit<Waiting>,
    last_ticket: u64,
    warned_full: bool,
    reported_failure: bool,
}

/// An append that waits to be durable. The entry is applied to the index then.
pub struct Waiting {
    ticket: Ticket,
    entry: Entry,
    pub(crate) location: Location,
}

/// The appends that one sync makes durable.
pub type SyncGroup = toolbus_wal::SyncGroup<Waiting>;

/// Maximum weight of an entry, with a margin for the encoding.
const MAX_ENTRY: usize = MAX_PAYLOAD - (1 << 20);

impl JournalState {
    /// Opens or creates the journal on a disk and replays it.
    pub fn open(disk: Arc<dyn Disk>, options: JournalOptions, now: u64) -> Result<(Self, Recovery), JournalError> {
        let mut index = CallIndex::new(options.limits.clone(), now);
        let opened =
            JournalLog::open(Arc::clone(&disk), options.log.clone(), |entry, location| index.restore(&entry, location));
        let (log, recovery) = opened.map_err(|error| JournalError::Read(Arc::new(error)))?;
        // A corrupt or torn journal may have lost the entries of calls that are not forgotten.
        if !recovery.is_damaged() && recovery.torn_bytes == 0 {
            index.forget_orphaned_joins();
        }
        let too_many = index.forget_interrupted();
        if too_many > 0 {
            tracing::error!(
                calls = too_many,
                "too many interrupted calls in the call journal; the oldest are forgotten"
            );
        }
        // Compaction may remove the damaged segments, and the entries of the forgotten calls.
        if recovery.is_damaged() || too_many > 0 {
            renew_lineage(&*disk).map_err(|error| JournalError::Folder(Arc::new(error)))?;
        }
        let state = Self {
            index,
            log,
            compactor: Compactor::new(&options),
            options,
            commit: GroupCommit::default(),
            last_ticket: 0,
            warned_full: false,
            reported_failure: false,
        };
        Ok((state, recovery))
    }

    /// The state of all remembered calls.
    pub fn index(&self) -> &CallIndex {
        &self.index
    }

    /// A reader that works concurrently with appends.
    pub fn reader(&self) -> Reader {
        self.log.reader()
    }

    /// The configuration.
    pub fn options(&self) -> &JournalOptions {
        &self.options
    }

    /// The I/O error after which all appends are rejected, if any.
    pub fn failure(&self) -> Option<Arc<io::Error>> {
        self.commit.failure().cloned()
    }

    /// Appends an entry. With [`Wait::Synced`] it is only staged: the next sync writes all staged entries together.
    pub fn append(&mut self, entry: Entry, wait: Wait, now: u64) -> Result<Appended, JournalError> {
        self.check(&entry, now)?;
        // During a rotation entries are only staged, so every append has to wait for the next sync.
        let wait = if self.log.records.is_sealing() { Wait::Synced } else { self.planted_wait(&entry, wait) };
        let location = match self.put(&entry, wait, now) {
            Ok(location) => location,
            Err(error) => return Err(self.fail(error)),
        };
        match wait {
            Wait::Written => {
                self.commit.changed(None);
                self.index.enter(&entry, location);
                Ok(Appended::Written)
            }
            Wait::Synced => {
                self.index.announce(&entry);
                self.last_ticket += 1;
                let ticket = Ticket(self.last_ticket);
                self.commit.changed(Some(Waiting { ticket, entry, location }));
                Ok(Appended::Waits(ticket))
            }
        }
    }

    /// Whether a sync is needed (something is written or staged and not synced).
    pub fn needs_sync(&self) -> bool {
        self.commit.needs_sync()
    }

    /// Whether an append waits for the next sync.
    pub fn has_waiting(&self) -> bool {
        !self.commit.waiting().is_empty()
    }

    /// Whether a rotation has begun. Every append waits until maintenance has ended it.
    pub fn is_rotating(&self) -> bool {
        self.commit.is_rotating(&self.log.records)
    }

    /// Takes all appends so far as one group: see [`GroupCommit::begin_sync`].
    pub fn begin_sync(&mut self) -> Option<SyncGroup> {
        self.commit.begin_sync(&mut self.log.records)
    }

    /// Ends the group with the result of [`SyncGroup::sync`]: applies its entries and returns its tickets.
    pub fn complete_sync(&mut self, group: SyncGroup, synced: io::Result<()>, now: u64) -> Synced {
        let (waiting, outcome) = self.commit.complete_sync(&mut self.log.records, group, synced);
        self.report_failure();
        let tickets = waiting.iter().map(|waiting| waiting.ticket).collect();
        if outcome.is_ok() {
            waiting.into_iter().for_each(|waiting| self.index.enter(&waiting.entry, waiting.location));
        }
        self.forget(now);
        Synced { tickets, outcome: outcome.map_err(JournalError::Write) }
    }

    /// Whether an entry may be appended.
    fn check(&self, entry: &Entry, now: u64) -> Result<(), JournalError> {
        let (bytes, most, max_tasks) = (entry.weight(), MAX_ENTRY, self.options.limits.max_tasks);
        if bytes > most {
            // Replay would treat a larger record as corruption.
            return Err(JournalError::TooLarge { bytes, most });
        }
        if let Some(failure) = self.commit.failure() {
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

    /// Stages an entry, and writes it unless its writer waits for a sync.
    fn put(&mut self, entry: &Entry, wait: Wait, now: u64) -> io::Result<Location> {
        if let (Entry::Finish(finish), Wait::Written) = (entry, wait)
            && self.options.log.has_planted(PlantedBug::ResultNotWritten)
        {
            return Ok(Location::InMemory(finish.reply.clone()));
        }
        let location = self.log.stage(entry, now)?;
        if wait == Wait::Written {
            self.log.records.flush()?;
        }
        Ok(location)
    }

    fn planted_wait(&self, entry: &Entry, wait: Wait) -> Wait {
        let is_early = match entry {
            Entry::Start(_) => self.options.log.has_planted(PlantedBug::StartNotSynced),
            Entry::Task(_) => self.options.log.has_planted(PlantedBug::TaskNotSynced),
            _ => false,
        };
        if is_early { Wait::Written } else { wait }
    }

    /// Forgets calls that are past their retention time or over a limit.
    pub(crate) fn forget(&mut self, now: u64) {
        let early = self.index.forget(now);
        if early > 0 && !self.warned_full {
            self.warned_full = true;
            tracing::warn!(
                "the call journal is full; the oldest answers are forgotten before their retention time has passed"
            );
        }
    }

    /// Records a failure. The state on disk is unknown from now on, so no call may be started.
    fn fail(&mut self, error: io::Error) -> JournalError {
        let failure = self.commit.fail(error);
        self.report_failure();
        JournalError::Write(failure)
    }

    pub(crate) fn report_failure(&mut self) {
        if let Some(error) = self.commit.failure().filter(|_| !self.reported_failure) {
            tracing::error!(%error, "cannot write the call journal, calls are refused until the host is restarted");
            self.reported_failure = true;
        }
    }
}
