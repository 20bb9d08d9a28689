//! A host's journal, driven step by step. Entries that no call waits for are written immediately. The others are
//! written by group commit: write, sync, then resume the waiting calls. The order is that of the journal's writer
//! thread; any other event can happen between two steps.

use super::World;
use super::plan::Plan;
use crate::planted::Planted;
use std::io;
use std::sync::Arc;
use toolbus_journal::{
    CallIndex, CallKey, CompactionContext, Compactor, CompactorOptions, Entry, Finish, JournalLog, Limits, Location,
    Recovery, Unsynced,
};
use toolbus_store::sim_disk::SimDisk;

pub struct HostJournal {
    pub book: CallIndex,
    log: JournalLog,
    tidy: Compactor,
    waiting: Vec<Waiting>,
    group: Option<Group>,
    /// Calls whose RESULT is written and not synced: a machine crash can lose it.
    ended: Vec<CallKey>,
}

/// An entry whose call continues only when the entry is durable.
struct Waiting {
    entry: Entry,
    location: Location,
}

struct Group {
    entries: Vec<Waiting>,
    ended: Vec<CallKey>,
    written: Option<Unsynced>,
}

impl HostJournal {
    pub fn open(disk: &SimDisk, plan: &Plan, now: u64) -> io::Result<(Self, Recovery)> {
        let mut book = CallIndex::new(Limits { keep_ms: u64::MAX / 2, ..Limits::default() }, now);
        let (log, recovery) = JournalLog::open(Arc::new(disk.clone()), plan.journal.clone(), |entry, location| {
            book.restore(&entry, location)
        })?;
        let tidy = Compactor::new(CompactorOptions { keep_ms: plan.tidy_after, max_bytes: u64::MAX });
        Ok((Self { book, log, tidy, waiting: Vec::new(), group: None, ended: Vec::new() }, recovery))
    }

    /// Stages an entry. If no call waits for it, it is flushed and entered in the book immediately.
    fn put(&mut self, entry: Entry, waits: bool, now: u64) -> io::Result<()> {
        let location = self.log.stage(&entry, now)?;
        if waits {
            self.book.announce(&entry);
            self.waiting.push(Waiting { entry, location });
            return Ok(());
        }
        self.log.flush()?;
        self.book.enter(&entry, location);
        if let Entry::Finish(finish) = entry {
            self.ended.push(finish.key);
        }
        Ok(())
    }

    /// Enters an answer in the book without writing it to the log (planted bug).
    pub fn enter_in_memory(&mut self, finish: &Finish) {
        self.book.enter(&Entry::Finish(finish.clone()), Location::InMemory(finish.reply.clone()));
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.group.is_none()
    }

    /// Calls whose RESULT a machine crash could lose now, even if it was reported to the caller.
    pub fn unsynced_ends(&self) -> Vec<CallKey> {
        let in_group = self.group.iter().flat_map(|group| &group.ended);
        self.ended.iter().chain(in_group).cloned().collect()
    }

    pub fn reply(&self, location: &Location) -> io::Result<Vec<u8>> {
        self.log.reader().payload(location).map(|bytes| bytes.to_vec())
    }

    /// Writes a group, or syncs the written group and returns its entries, which are durable now.
    fn step(&mut self) -> io::Result<Vec<Waiting>> {
        let Some(group) = &self.group else {
            if !self.waiting.is_empty() || !self.ended.is_empty() {
                self.log.flush()?;
                let (entries, ended) = (std::mem::take(&mut self.waiting), std::mem::take(&mut self.ended));
                self.group = Some(Group { entries, ended, written: self.log.unsynced() });
            }
            return Ok(Vec::new());
        };
        if let Some(written) = &group.written {
            written.sync()?;
            self.log.synced(written);
        }
        let entries = self.group.take().map(|group| group.entries).unwrap_or_default();
        entries.iter().for_each(|waiting| self.book.enter(&waiting.entry, waiting.location.clone()));
        Ok(entries)
    }

    fn tidy(&mut self, now: u64) -> io::Result<()> {
        // The writer thread both syncs and tidies, so tidying never happens within a group.
        if self.group.is_none() {
            self.book.forget(now);
            let segments = self.waiting.iter().filter_map(|waiting| waiting.location.segment());
            let unapplied_from = segments.min().unwrap_or(u32::MAX);
            self.tidy.step(now, |inspect| {
                inspect(&mut CompactionContext { log: &mut self.log, index: &mut self.book, unapplied_from })
            })?;
        }
        Ok(())
    }
}

impl World {
    /// Writes an entry of a call. With `waits`, the call continues when it is durable. Returns false if the host
    /// crashed.
    pub fn write_entry(&mut self, host: usize, entry: Entry, waits: bool) -> bool {
        let early = match &entry {
            Entry::Start(_) => self.plan.is_planted(Planted::StartNotSynced),
            Entry::Task(_) => self.plan.is_planted(Planted::TaskNotSynced),
            _ => false,
        };
        let key = entry.key().clone();
        if self.hosts[host].journal.put(entry.clone(), waits && !early, self.now).is_err() {
            self.host_crashes(host, true);
            return false;
        }
        if early && waits {
            self.entry_is_durable(host, &key, &entry);
        }
        true
    }

    pub fn journal_step(&mut self, host: usize) {
        match self.hosts[host].journal.step() {
            Ok(durable) => {
                if !durable.is_empty() {
                    self.note("journal synced", &[("host", host as u64), ("entries", durable.len() as u64)]);
                }
                for waiting in durable {
                    let key: CallKey = waiting.entry.key().clone();
                    self.entry_is_durable(host, &key, &waiting.entry);
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
