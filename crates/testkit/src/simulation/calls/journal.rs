//! A host's journal, driven step by step: the simulation takes the place of the journal's thread. Any other event can
//! happen between two steps.

use super::World;
use super::plan::Plan;
use std::collections::BTreeMap;
use std::sync::Arc;
use toolbus_journal::{
    Appended, CallIndex, CallKey, Entry, JournalError, JournalOptions, JournalState, Limits, Location, Recovery,
    SyncGroup, Ticket, Wait,
};
use toolbus_store::sim_disk::SimDisk;

pub struct HostJournal {
    state: JournalState,
    /// Entries whose calls continue only when the entry is durable.
    waiting: BTreeMap<Ticket, Entry>,
    group: Option<Group>,
    /// Calls whose RESULT is written and not synced: a machine crash can lose it.
    ended: Vec<CallKey>,
}

struct Group {
    sync: SyncGroup,
    ended: Vec<CallKey>,
}

impl HostJournal {
    pub fn open(disk: &SimDisk, plan: &Plan, now: u64) -> Result<(Self, Recovery), JournalError> {
        let options = JournalOptions {
            log: plan.journal.clone(),
            limits: Limits { keep_ms: u64::MAX / 2, ..Limits::default() },
            max_bytes: u64::MAX,
            compact_after_ms: Some(plan.tidy_after),
            ..JournalOptions::default()
        };
        let (state, recovery) = JournalState::open(Arc::new(disk.clone()), options, now)?;
        Ok((Self { state, waiting: BTreeMap::new(), group: None, ended: Vec::new() }, recovery))
    }

    pub fn book(&self) -> &CallIndex {
        self.state.index()
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.group.is_none()
    }

    /// Calls whose RESULT a machine crash could lose now, even if it was reported to the caller.
    pub fn unsynced_ends(&self) -> Vec<CallKey> {
        let in_group = self.group.iter().flat_map(|group| &group.ended);
        self.ended.iter().chain(in_group).cloned().collect()
    }

    pub fn reply(&self, location: &Location) -> std::io::Result<Vec<u8>> {
        self.state.reader().payload(location).map(|bytes| bytes.to_vec())
    }

    /// Returns whether the entry has taken effect.
    fn put(&mut self, entry: Entry, waits: bool, now: u64) -> Result<bool, JournalError> {
        let wait = if waits { Wait::Synced } else { Wait::Written };
        match (self.state.append(entry.clone(), wait, now)?, entry) {
            (Appended::Waits(ticket), entry) => {
                self.waiting.insert(ticket, entry);
                Ok(false)
            }
            (Appended::Written, Entry::Finish(finish)) => {
                self.ended.push(finish.key);
                Ok(true)
            }
            (Appended::Written, _) => Ok(true),
        }
    }

    /// Begins a group, or syncs the begun group and returns its entries, which are durable now.
    fn step(&mut self, now: u64) -> Result<Vec<Entry>, JournalError> {
        let Some(Group { sync, ended }) = self.group.take() else {
            self.group = self.state.begin_sync().map(|sync| Group { sync, ended: std::mem::take(&mut self.ended) });
            return Ok(Vec::new());
        };
        let synced = sync.sync();
        let done = self.state.complete_sync(sync, synced, now);
        if let Err(error) = done.outcome {
            self.ended.extend(ended);
            return Err(error);
        }
        Ok(done.tickets.iter().filter_map(|ticket| self.waiting.remove(ticket)).collect())
    }

    /// Compacts one step, and rotates at once: entries without a waiting call would wait for the rotation.
    fn tidy(&mut self, now: u64) -> Result<(), JournalError> {
        while let Some(step) = self.state.begin_maintenance(now) {
            self.state.complete_maintenance(step.run());
            if !self.state.is_rotating() {
                break;
            }
        }
        self.state.failure().map_or(Ok(()), |failure| Err(JournalError::Write(failure)))
    }
}

impl World {
    /// Writes an entry of a call. With `waits`, the call continues when it is durable. Returns false if the host
    /// crashed.
    pub fn write_entry(&mut self, host: usize, entry: Entry, waits: bool) -> bool {
        let key = entry.key().clone();
        let Ok(has_effect) = self.hosts[host].journal.put(entry.clone(), waits, self.now) else {
            self.host_crashes(host, true);
            return false;
        };
        if has_effect && waits {
            self.entry_is_durable(host, &key, &entry);
        }
        true
    }

    pub fn journal_step(&mut self, host: usize) {
        match self.hosts[host].journal.step(self.now) {
            Ok(durable) => {
                if !durable.is_empty() {
                    self.note("journal synced", &[("host", host as u64), ("entries", durable.len() as u64)]);
                }
                for entry in durable {
                    self.entry_is_durable(host, &entry.key().clone(), &entry);
                }
            }
            Err(_) => self.host_crashes(host, true),
        }
    }

    pub fn tidy_step(&mut self, host: usize) {
        if self.hosts[host].journal.tidy(self.now).is_err() {
            self.host_crashes(host, true);
        }
    }
}
