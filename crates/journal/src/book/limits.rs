//! What the book forgets, so that it stays as large as it may be, and what of the log it still needs.

use super::{Book, Call, MAX_CHAIN, by_content, by_id};
use crate::entry::{CallKey, Entry};
use crate::log::Place;
use std::collections::BTreeSet;

#[derive(Debug, Clone)]
pub struct Limits {
    /// How long an ended call is remembered, in milliseconds.
    pub keep_ms: u64,
    /// Ended calls that are remembered at most. A task is among them once its own time is over.
    pub max_ended: usize,
    /// Calls of earlier processes that nobody has asked for since.
    pub max_interrupted: usize,
    pub max_letters: usize,
    /// Whose time is not over.
    pub max_tasks: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            keep_ms: 24 * 3600 * 1000,
            max_ended: 200_000,
            max_interrupted: 100_000,
            max_letters: 1000,
            max_tasks: 8192,
        }
    }
}

/// What has ended.
#[derive(Debug, Default)]
pub struct Ended {
    /// By the time from which they are kept.
    pub(super) calls: BTreeSet<(u64, CallKey)>,
    /// By the time from which nobody is shown them.
    pub(super) tasks: BTreeSet<(u64, CallKey)>,
}

/// The first, if its time has come.
fn due(list: &BTreeSet<(u64, CallKey)>, time: u64) -> Option<CallKey> {
    list.first().filter(|(at, _)| *at <= time).map(|(_, key)| key.clone())
}

impl Book {
    /// Forgets what is kept long enough, and the oldest of what there is too much of. Returns how many calls were dropped
    /// before their time.
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
        early + self.forget_letters()
    }

    /// What is left of it is a call that was answered, and must not run again if it comes again.
    fn forget_task(&mut self, key: &CallKey) {
        self.tasks.remove(&by_id(key));
        if let Some(call) = self.calls.get_mut(key) {
            call.task = None;
        }
        self.list_ended(key);
    }

    fn forget_letters(&mut self) -> usize {
        let excess = self.letters.len().saturating_sub(self.limits.max_letters);
        if excess > 0 {
            for letter in self.letters().into_iter().take(excess) {
                self.drop_letter(&letter.key);
            }
        }
        excess
    }

    /// After everything was read: forgets the oldest interrupted calls past their limit. Returns how many.
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

    /// Puts a call that has an answer where it is found when its time is over.
    pub(super) fn list_ended(&mut self, key: &CallKey) {
        self.unlist(key);
        let Some(call) = self.calls.get_mut(key) else { return };
        // What was joined goes with the call that it was joined to.
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

    /// The call that another was joined to is remembered as long as that one.
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

    /// Where there is too much: forgets the call if this is its answer. Its beginning needs not be kept either if both go
    /// together. Tasks stay, their owners were told for how long.
    pub fn give_up(&mut self, entry: &Entry, place: &Place) -> bool {
        let Some(call) = self.calls.get(entry.key()).filter(|call| call.task.is_none()) else { return false };
        let Some(answer) = &call.answer else { return false };
        match (entry, place, &answer.reply) {
            (Entry::Finish(finish), place, kept) if place == kept => {
                self.remove(&finish.key);
                true
            }
            (Entry::Start(_), Place::Log { segment, .. }, Place::Log { segment: of_answer, .. }) => {
                segment == of_answer
            }
            _ => false,
        }
    }

    /// Whether the book would miss this entry if it were removed from its place.
    pub fn needs(&self, entry: &Entry, place: &Place) -> bool {
        if let Entry::Dead(dead) = entry {
            return self.letter_at(&dead.key).is_some_and(|letter| letter.request == *place);
        }
        let Some(call) = self.calls.get(entry.key()) else { return false };
        match entry {
            Entry::Start(start) => call.start.as_ref().is_some_and(|known| known.attempt == start.attempt),
            Entry::Finish(_) => call.answer.as_ref().is_some_and(|answer| answer.reply == *place),
            Entry::Joined(_) => call.joined.is_some(),
            Entry::Task(_) => call.task.as_ref().is_some_and(|task| task.request == *place),
            Entry::Dead(_) | Entry::Dropped(_) => false,
        }
    }
}
