//! Retention: which calls the index forgets to stay within its limits, and which log entries it still needs.

use super::{Call, CallIndex, MAX_CHAIN, by_content, by_id};
use crate::entry::{CallKey, Entry};
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
    /// By the time from which the retention time counts.
    pub(super) calls: BTreeSet<(u64, CallKey)>,
    /// By expiry time.
    pub(super) tasks: BTreeSet<(u64, CallKey)>,
}

/// The first call of the list, if its timestamp is not after `time`.
fn due(list: &BTreeSet<(u64, CallKey)>, time: u64) -> Option<CallKey> {
    list.first().filter(|(at, _)| *at <= time).map(|(_, key)| key.clone())
}

impl CallIndex {
    /// Forgets calls whose retention time has passed, and the oldest ones over a limit. Returns how many calls and dead
    /// letters were forgotten early because of a limit.
    pub fn forget(&mut self, now: u64) -> usize {
        while let Some(key) = due(&self.ended.tasks, now) {
            self.forget_task(&key);
        }
        let kept_from = now.saturating_sub(self.limits.keep_ms);
        while let Some(key) = due(&self.ended.calls, kept_from) {
            self.remove(&key);
        }
        let mut early = 0;
        while self.ended.calls.len() > self.limits.max_ended {
            let Some((_, key)) = self.ended.calls.first().cloned() else { break };
            self.remove(&key);
            early += 1;
        }
        early + self.forget_dead_letters()
    }

    /// Turns an expired task into an answered call, which must not run again if it is repeated.
    fn forget_task(&mut self, key: &CallKey) {
        self.tasks.remove(&by_id(key));
        if let Some(call) = self.calls.get_mut(key) {
            call.task = None;
        }
        self.list_ended(key);
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
        let open = |call: &&Call| call.start.is_some() && !call.live && call.answer.is_none() && call.task.is_none();
        let mut interrupted: Vec<(u64, CallKey)> =
            (self.open.iter().filter_map(|key| self.calls.get(key)).map(|call| &**call).filter(open))
                .filter_map(|call| call.start.as_ref().map(|start| (start.at, start.key.clone())))
                .collect();
        let excess = interrupted.len().saturating_sub(self.limits.max_interrupted);
        interrupted.sort_unstable();
        interrupted.iter().take(excess).for_each(|(_, key)| self.remove(key));
        excess
    }

    pub(super) fn remove(&mut self, key: &CallKey) {
        self.unlist(key);
        self.open.remove(key);
        let Some(call) = self.calls.remove(key) else { return };
        if let Some(content) = call.content {
            let index = by_content(key, content);
            if self.latest.get(&index).is_some_and(|(_, latest)| latest == key) {
                self.latest.remove(&index);
            }
        }
        if call.task.is_some() {
            self.tasks.remove(&by_id(key));
        }
        call.joiners.iter().for_each(|joiner| self.remove(joiner));
    }

    /// Moves an answered call to `ended` under its retention timestamp, and any other call to `open`.
    pub(super) fn list_ended(&mut self, key: &CallKey) {
        self.unlist(key);
        let Some(call) = self.calls.get_mut(key) else { return };
        // A joined call is forgotten together with the call that it was joined to.
        let Some(answer) = call.answer.as_ref().filter(|_| call.joined.is_none()) else {
            self.open.insert(key.clone());
            return;
        };
        let ended = answer.at.max(self.opened_at).max(call.latest_join);
        let (at, list) = match &call.task {
            Some(task) => (task.expires_at(), &mut self.ended.tasks),
            None => (ended, &mut self.ended.calls),
        };
        call.listed = Some(at);
        list.insert((at, key.clone()));
        self.open.remove(key);
    }

    fn unlist(&mut self, key: &CallKey) {
        if let Some(at) = self.calls.get_mut(key).and_then(|call| call.listed.take()) {
            let listed = (at, key.clone());
            self.ended.calls.remove(&listed);
            self.ended.tasks.remove(&listed);
        }
    }

    /// Extends the retention of the calls that this one was joined to, to at least its own.
    pub(super) fn note_join(&mut self, key: &CallKey, at: u64) {
        self.list_ended(key);
        let mut next = key.clone();
        for _ in 0..MAX_CHAIN {
            let Some(to) = self.calls.get(&next).and_then(|call| call.joined.as_ref()).map(|joined| joined.to.clone())
            else {
                break;
            };
            next = to;
            if let Some(call) = self.calls.get_mut(&next) {
                call.latest_join = call.latest_join.max(at);
            }
        }
        self.list_ended(&next);
    }

    /// For a journal over its size limit: forgets the call if the entry is its answer. A START is given up if the
    /// answer is in the same segment. Tasks are kept, because their retention time was promised to their owners.
    /// Returns whether the entry was given up.
    pub fn give_up(&mut self, entry: &Entry, location: &Location) -> bool {
        let Some(call) = self.calls.get(entry.key()).filter(|call| call.task.is_none()) else { return false };
        let Some(answer) = &call.answer else { return false };
        match (entry, location, &answer.reply) {
            (Entry::Finish(finish), location, kept) if location == kept => {
                self.remove(&finish.key);
                true
            }
            (Entry::Start(_), Location::Log { segment, .. }, Location::Log { segment: of_answer, .. }) => {
                segment == of_answer
            }
            _ => false,
        }
    }

    /// Whether the entry at this location is still needed.
    pub fn needs(&self, entry: &Entry, location: &Location) -> bool {
        if let Entry::Dead(dead) = entry {
            return self.dead_letter_at(&dead.key).is_some_and(|dead_letter| dead_letter.request == *location);
        }
        let Some(call) = self.calls.get(entry.key()) else { return false };
        match entry {
            Entry::Start(start) => call.start.as_ref().is_some_and(|known| known.attempt == start.attempt),
            Entry::Finish(_) => call.answer.as_ref().is_some_and(|answer| answer.reply == *location),
            Entry::Joined(_) => call.joined.is_some(),
            Entry::Task(_) => call.task.as_ref().is_some_and(|task| task.request == *location),
            Entry::Dead(_) | Entry::Dropped(_) => false,
        }
    }
}
