//! A host's journal, driven by hand: what nobody waits for is written at once; the rest waits, is written as a group, synced, and
//! then those who wait are told. It is the order in which the journal and its thread do it, with everything else able to happen
//! in between.

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

pub struct Paper {
    pub book: CallIndex,
    log: JournalLog,
    tidy: Compactor,
    waiting: Vec<Waiting>,
    group: Option<Group>,
    /// Calls whose ends were written, and that only a sync protects from the end of the machine.
    ended: Vec<CallKey>,
}

/// An entry whose call goes on only when it is safe.
struct Waiting {
    entry: Entry,
    location: Location,
}

struct Group {
    entries: Vec<Waiting>,
    ended: Vec<CallKey>,
    written: Option<Unsynced>,
}

impl Paper {
    pub fn open(disk: &SimDisk, plan: &Plan, now: u64) -> io::Result<(Self, Recovery)> {
        let mut book = CallIndex::new(Limits { keep_ms: u64::MAX / 2, ..Limits::default() }, now);
        let (log, recovery) = JournalLog::open(Arc::new(disk.clone()), plan.journal.clone(), |entry, location| {
            book.restore(&entry, location)
        })?;
        let tidy = Compactor::new(CompactorOptions { keep_ms: plan.tidy_after, max_bytes: u64::MAX });
        Ok((Self { book, log, tidy, waiting: Vec::new(), group: None, ended: Vec::new() }, recovery))
    }

    /// Takes an entry. If nobody waits for it, it is written and counts at once.
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

    /// An answer counts that is nowhere but in memory.
    pub fn keep_in_mind(&mut self, finish: &Finish) {
        self.book.enter(&Entry::Finish(finish.clone()), Location::InMemory(finish.reply.clone()));
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.group.is_none()
    }

    /// Calls that are in doubt if the machine stops now, whatever their callers were told.
    pub fn unsynced_ends(&self) -> Vec<CallKey> {
        let in_group = self.group.iter().flat_map(|group| &group.ended);
        self.ended.iter().chain(in_group).cloned().collect()
    }

    pub fn reply(&self, location: &Location) -> io::Result<Vec<u8>> {
        self.log.reader().payload(location).map(|bytes| bytes.to_vec())
    }

    /// Writes a group, or syncs the one that was written and returns what is safe now.
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
        // The thread that syncs does both, so never in the middle of a group.
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
    /// Writes an entry of a call down. `waits`: the call goes on when it is safe. False if the host ended over it.
    pub fn write_down(&mut self, host: usize, entry: Entry, waits: bool) -> bool {
        let early = match &entry {
            Entry::Start(_) => self.plan.is_planted(Planted::StartNotSynced),
            Entry::Task(_) => self.plan.is_planted(Planted::TaskNotSynced),
            _ => false,
        };
        let key = entry.key().clone();
        if self.hosts[host].paper.put(entry.clone(), waits && !early, self.now).is_err() {
            self.host_crashes(host, true);
            return false;
        }
        if early && waits {
            self.is_safe(host, &key, &entry);
        }
        true
    }

    pub fn paper_step(&mut self, host: usize) {
        match self.hosts[host].paper.step() {
            Ok(safe) => {
                if !safe.is_empty() {
                    self.note("journal synced", &[("host", host as u64), ("entries", safe.len() as u64)]);
                }
                for waiting in safe {
                    let key: CallKey = waiting.entry.key().clone();
                    self.is_safe(host, &key, &waiting.entry);
                }
            }
            Err(_) => self.host_crashes(host, true),
        }
    }

    pub fn tidy_step(&mut self, host: usize) {
        if self.hosts[host].paper.tidy(self.now).is_err() {
            self.host_crashes(host, true);
        }
    }
}
