//! Retention: which calls the index forgets to stay within its limits, and which log entries it still needs.

use super::arena::Slot;
use super::{Call, CallIndex, MAX_CHAIN, by_id};
use crate::entry::Entry;
use crate::log::Location;
use std::collections::BTreeSet;

/// Retention limits of the journal.
#[derive(Debug, Clone)]
pub struct Limits {
    /// How long an ended call is remembered, in milliseconds.
    pub keep_ms: u64,
    /// Maximum number of remembered ended calls. An ended task counts once it has expired.
    pub max_ended: usize,
    /// Maximum number of interrupted calls of earlier processes.
    pub max_interrupted: usize,
    /// Maximum number of dead letters.
    pub max_dead_letters: usize,
    /// Maximum number of tasks that have not expired.
    pub max_tasks: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            keep_ms: 24 * 3600 * 1000,
            max_ended: 200_000,
            max_interrupted: 100_000,
            max_dead_letters: 1000,
            max_tasks: 8192,
        }
    }
}

/// Ended calls and tasks, by retention timestamp.
#[derive(Debug, Default)]
pub struct Ended {
    /// By the time of the answer or of the latest join.
    pub(super) calls: BTreeSet<(u64, Slot)>,
    /// By expiry time.
    pub(super) tasks: BTreeSet<(u64, Slot)>,
}

/// The first call of the list, if its timestamp is not after `time`.
fn due(list: &BTreeSet<(u64, Slot)>, time: u64) -> Option<Slot> {
    list.first().filter(|(at, _)| *at <= time).map(|(_, slot)| *slot)
}

impl CallIndex {
    /// Forgets calls whose retention time has passed, and the oldest ones over a limit. Returns how many calls and dead
    /// letters were forgotten early because of a limit.
    pub fn forget(&mut self, now: u64) -> usize {
        while let Some(slot) = due(&self.ended.tasks, now) {
            self.forget_task(slot);
        }
        let kept_from = now.saturating_sub(self.limits.keep_ms);
        // The retention time of earlier answers counts from the restart.
        while let Some(slot) = due(&self.ended.calls, kept_from).filter(|_| kept_from >= self.opened_at) {
            self.remove(slot);
        }
        let mut early = 0;
        while self.ended.calls.len() > self.limits.max_ended {
            let Some((_, slot)) = self.ended.calls.first().copied() else { break };
            self.remove(slot);
            early += 1;
        }
        early + self.forget_dead_letters()
    }

    /// Turns an expired task into an answered call, which must not run again if it is repeated.
    fn forget_task(&mut self, slot: Slot) {
        let task = self.calls.at_mut(slot).and_then(|call| call.rare_mut().task.take());
        task.iter().for_each(|task| drop(self.tasks.remove(&by_id(&task.key))));
        self.list_ended(slot);
    }

    fn forget_dead_letters(&mut self) -> usize {
        let excess = self.dead_letters.len().saturating_sub(self.limits.max_dead_letters);
        if excess > 0 {
            for dead_letter in self.dead_letters().into_iter().take(excess) {
                self.drop_dead_letter(&dead_letter.key);
            }
        }
        excess
    }

    /// Forgets the oldest interrupted calls over their limit and returns how many. Must be called after the replay.
    pub fn forget_interrupted(&mut self) -> usize {
        let is_interrupted = |call: &Call| !call.live && call.answer.is_none() && call.task().is_none();
        let began_at = |slot: &Slot| {
            let call = self.calls.at(*slot).filter(|call| is_interrupted(call))?;
            Some((call.start.as_ref()?.at, *slot))
        };
        let mut interrupted: Vec<(u64, Slot)> = self.open.iter().filter_map(began_at).collect();
        let excess = interrupted.len().saturating_sub(self.limits.max_interrupted);
        interrupted.sort_unstable();
        interrupted.iter().take(excess).for_each(|(_, slot)| self.remove(*slot));
        excess
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        self.unlist(slot);
        self.open.remove(&slot);
        self.drop_latest(slot);
        let Some(call) = self.calls.remove(slot) else { return };
        call.task().into_iter().for_each(|task| drop(self.tasks.remove(&by_id(&task.key))));
        for joiner in call.joiners() {
            self.calls.find(joiner).into_iter().for_each(|joiner| self.remove(joiner));
        }
    }

    /// Moves an answered call to `ended` under its retention timestamp, and any other call to `open`.
    pub(super) fn list_ended(&mut self, slot: Slot) {
        self.unlist(slot);
        let Some(call) = self.calls.at_mut(slot) else { return };
        // A joined call is forgotten together with the call that it was joined to.
        let Some(answer) = call.answer.filter(|_| call.joined().is_none()) else {
            self.open.insert(slot);
            return;
        };
        let (at, list) = match call.task() {
            Some(task) => (task.expires_at(), &mut self.ended.tasks),
            None => (answer.at.max(call.latest_join()), &mut self.ended.calls),
        };
        (call.listed_at, call.is_listed) = (at, true);
        list.insert((at, slot));
        self.open.remove(&slot);
    }

    fn unlist(&mut self, slot: Slot) {
        if let Some(call) = self.calls.at_mut(slot).filter(|call| call.is_listed) {
            call.is_listed = false;
            let listed = (call.listed_at, slot);
            self.ended.calls.remove(&listed);
            self.ended.tasks.remove(&listed);
        }
    }

    /// Extends the retention of the calls that this one was joined to, to at least its own.
    pub(super) fn note_join(&mut self, slot: Slot, at: u64) {
        self.list_ended(slot);
        let mut next = slot;
        for _ in 0..MAX_CHAIN {
            let joined = self.calls.at(next).and_then(|call| call.joined());
            let Some(to) = joined.and_then(|joined| self.calls.find(&joined.to)) else { break };
            next = to;
            if let Some(call) = self.calls.at_mut(next) {
                call.rare_mut().latest_join = call.latest_join().max(at);
            }
        }
        self.list_ended(next);
    }

    /// For a journal over its size limit: forgets the call if the entry is its answer. A START is given up if the
    /// answer is in the same segment. Tasks are kept, because their retention time was promised to their owners.
    /// Returns whether the entry was given up.
    pub fn give_up(&mut self, entry: &Entry, location: &Location) -> bool {
        let Some(slot) = self.calls.find(entry.key()) else { return false };
        let Some(reply) = self.calls.at(slot).filter(|call| call.task().is_none()).and_then(Call::reply) else {
            return false;
        };
        match entry {
            Entry::Finish(_) if *location == reply => {
                self.remove(slot);
                true
            }
            Entry::Start(_) => location.segment() == reply.segment(),
            _ => false,
        }
    }

    /// The location of the answer without which a START or a task would look like an open call.
    pub fn answer_to(&self, entry: &Entry) -> Option<Location> {
        let is_opening = matches!(entry, Entry::Start(_) | Entry::Task(_));
        self.calls.get(entry.key()).filter(|_| is_opening).and_then(Call::reply)
    }

    /// Forgets joined calls of whose run there is no entry, and returns how many. In an intact journal, such a run was
    /// forgotten. Must be called after the replay.
    pub fn forget_orphaned_joins(&mut self) -> usize {
        let is_open = |call: &Call| {
            call.start.is_some() || call.answer.is_some() || call.task().is_some() || call.dead_lettered().is_some()
        };
        let is_orphan = |slot: &Slot| {
            let call = self.calls.at(*slot).filter(|call| call.joined().is_some());
            call.is_some_and(|call| !is_open(self.resolve(call).1))
        };
        let orphans: Vec<Slot> = self.open.iter().copied().filter(is_orphan).collect();
        for slot in &orphans {
            let joined = self.calls.at(*slot).and_then(|call| call.joined());
            let root = joined.and_then(|joined| self.calls.find(&joined.to));
            self.remove(*slot);
            root.into_iter().for_each(|root| self.remove(root));
        }
        orphans.len()
    }

    /// Whether the entry at this location is still needed.
    pub fn needs(&self, entry: &Entry, location: &Location) -> bool {
        if let Entry::Dead(dead) = entry {
            return self.dead_letter_at(&dead.key).is_some_and(|dead_letter| dead_letter.request == *location);
        }
        let Some(call) = self.calls.get(entry.key()) else { return false };
        match entry {
            Entry::Start(start) => call.start.as_ref().is_some_and(|known| known.attempt == start.attempt),
            Entry::Finish(_) => call.reply().is_some_and(|reply| reply == *location),
            Entry::Joined(_) => call.joined().is_some(),
            Entry::Task(_) => call.task().is_some_and(|task| task.request == *location),
            Entry::Dead(_) | Entry::Dropped(_) => false,
        }
    }
}
