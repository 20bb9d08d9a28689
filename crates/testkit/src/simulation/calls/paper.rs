//! A host's journal, driven by hand: entries wait, are written as a group, synced, and then those who wait are told. It is
//! the order in which the journal's own thread does it, with everything else able to happen in between.

use super::World;
use super::plan::Plan;
use crate::planted::Planted;
use std::io;
use std::sync::Arc;
use toolbus_journal::{Book, CallKey, Entry, JournalLog, Limits, Place, Recovery, Tidy, TidyOptions};
use toolbus_store::sim_disk::SimDisk;

pub struct Paper {
    pub book: Book,
    log: JournalLog,
    tidy: Tidy,
    waiting: Vec<Waiting>,
    group: Option<Group>,
}

/// An entry, and whether the call goes on only when it is safe.
struct Waiting {
    entry: Entry,
    waits: bool,
}

struct Group {
    entries: Vec<Waiting>,
    places: Vec<Place>,
}

impl Paper {
    pub fn open(disk: &SimDisk, plan: &Plan, now: u64) -> io::Result<(Self, Recovery)> {
        let mut book = Book::new(Limits { keep_ms: u64::MAX / 2, ..Limits::default() }, now);
        let (log, recovery) =
            JournalLog::open(Arc::new(disk.clone()), plan.journal.clone(), |entry, place| book.restore(&entry, place))?;
        let tidy = Tidy::new(TidyOptions { keep_ms: plan.tidy_after, max_bytes: u64::MAX });
        Ok((Self { book, log, tidy, waiting: Vec::new(), group: None }, recovery))
    }

    /// Takes an entry. If nobody waits for it, it counts at once.
    fn enqueue(&mut self, entry: Entry, waits: bool) {
        self.book.announce(&entry);
        if let (Entry::Finish(finish), false) = (&entry, waits) {
            self.book.enter(&entry, Place::Held(finish.reply.clone()));
        }
        self.waiting.push(Waiting { entry, waits });
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.group.is_none()
    }

    pub fn reply(&self, place: &Place) -> io::Result<Vec<u8>> {
        self.log.reader().carried(place).map(|bytes| bytes.to_vec())
    }

    /// Writes a group, or syncs the one that was written and returns what is safe now.
    fn step(&mut self, now: u64) -> io::Result<Vec<Waiting>> {
        let Some(group) = self.group.take() else {
            let entries = std::mem::take(&mut self.waiting);
            if !entries.is_empty() {
                let places = self.log.append(entries.iter().map(|waiting| &waiting.entry), now)?;
                self.group = Some(Group { entries, places });
            }
            return Ok(Vec::new());
        };
        if group.entries.iter().any(|waiting| waiting.waits) {
            self.log.sync()?;
        }
        let entered = group.entries.iter().zip(group.places);
        entered.for_each(|(waiting, place)| self.book.enter(&waiting.entry, place));
        Ok(group.entries)
    }

    fn tidy(&mut self, now: u64) -> io::Result<()> {
        // The thread that writes does both, so never in the middle of a group.
        if self.group.is_none() {
            self.book.forget(now);
            self.tidy.turn(&mut self.log, now, |look| look(&mut self.book))?;
        }
        Ok(())
    }
}

impl World {
    /// Writes an entry of a call down. `waits`: the call goes on when it is safe.
    pub fn write_down(&mut self, host: usize, entry: Entry, waits: bool) {
        let early = match &entry {
            Entry::Start(_) => self.plan.is_planted(Planted::StartNotSynced),
            Entry::Task(_) => self.plan.is_planted(Planted::TaskNotSynced),
            _ => false,
        };
        let key = entry.key().clone();
        self.hosts[host].paper.enqueue(entry.clone(), waits && !early);
        if early && waits {
            self.is_safe(host, &key, &entry);
        }
    }

    pub fn paper_step(&mut self, host: usize) {
        match self.hosts[host].paper.step(self.now) {
            Ok(safe) => {
                if !safe.is_empty() {
                    self.note("journal synced", &[("host", host as u64), ("entries", safe.len() as u64)]);
                }
                for waiting in safe.into_iter().filter(|waiting| waiting.waits) {
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
