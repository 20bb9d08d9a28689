//! What the book shows: to a call that may be joined to an earlier one, and to people.

use super::{Book, Call, Known, TaskManifest, by_id, reply_id};
use crate::entry::{CallKey, Dead, End, Start, detached};
use crate::log::Place;
use bytestring::ByteString;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The latest call of an agent with the same tool and arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub key: CallKey,
    /// Of the call that was really run, which may be an earlier one.
    pub start: Option<Arc<Start>>,
    pub state: CandidateState,
    /// All other calls that are answered by the same run: the one that was run and those that were joined to it. Where one of
    /// their callers is there, or has collected the answer, it is not to be given out once more.
    pub sharers: Vec<Sharer>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharer {
    pub key: CallKey,
    /// The message with its answer, if there is one.
    pub reply_id: Option<ByteString>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CandidateState {
    Running,
    Answered {
        reply_id: ByteString,
        end: End,
        reply: Place,
    },
    /// Begun by a process that is gone, and not asked for since: nobody has collected anything, and nobody knows more.
    Interrupted,
}

/// What a call is doing, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Waiting,
    Running,
    Interrupted,
    Ended(End),
    Buried,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSummary {
    pub key: CallKey,
    pub server: ByteString,
    pub tool: ByteString,
    pub stage: Stage,
    pub attempts: u32,
    pub began_at: u64,
    pub ended_at: Option<u64>,
    pub is_task: bool,
    pub joined_to: Option<CallKey>,
}

/// A task and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRow {
    pub manifest: Arc<TaskManifest>,
    pub known: Known,
    pub ended_at: Option<u64>,
}

/// A call that is not tried any more. Its request stays in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterRow {
    pub key: CallKey,
    pub server: ByteString,
    pub tool: ByteString,
    pub role: Option<ByteString>,
    pub attempts: u32,
    pub story: Vec<String>,
    pub at: u64,
    pub request: Place,
}

impl DeadLetterRow {
    pub(super) fn new(dead: &Dead, request: Place) -> Self {
        Self {
            key: dead.key.detached(),
            server: detached(&dead.server),
            tool: detached(&dead.tool),
            role: dead.role.as_ref().map(detached),
            attempts: dead.attempts,
            story: dead.story.clone(),
            at: dead.at,
            request,
        }
    }
}

/// Calls that share an answer and can still be joined: whoever crashes more often than that is helped no more.
pub const MAX_SHARERS: usize = 100;
/// How long calls run, as workers limit them unless they are told otherwise.
const LONGEST_CALL_MS: u64 = 3600 * 1000;
/// Ended calls that are listed at most: the latest.
pub const MAX_LISTED: usize = 1000;

impl Book {
    /// The latest call of that agent with that content, unless it ended before that time. Tasks are none.
    pub fn candidate(&self, agent: &str, content: &[u8; 32], ended_after: u64) -> Option<Candidate> {
        let (_, key) = self.latest.get(&(ByteString::from(agent), *content))?;
        let call = self.calls.get(key)?;
        let (answer, root) = self.resolve(call);
        let state = match answer {
            Some(answer) if answer.at < ended_after => return None,
            Some(answer) => {
                let reply_id = reply_id(key, call, answer);
                CandidateState::Answered { reply_id, end: answer.end, reply: answer.reply.clone() }
            }
            None if root.buried.is_some() || root.start.is_none() => return None,
            None if root.live => CandidateState::Running,
            None if self.latest_end(root) < ended_after => return None,
            None => CandidateState::Interrupted,
        };
        Some(Candidate { key: key.clone(), start: root.start.clone(), state, sharers: self.sharers(key)? })
    }

    /// When an interrupted call can have ended at the latest: with the process that ran it, and it was not run for ever.
    fn latest_end(&self, call: &Call) -> u64 {
        let began = call.start.as_ref().map_or(0, |start| start.at);
        self.opened_at.min(began.saturating_add(LONGEST_CALL_MS)).max(began)
    }

    /// None where there are more than anybody could be asked about.
    fn sharers(&self, of: &CallKey) -> Option<Vec<Sharer>> {
        let mut keys = vec![self.run_for(of)];
        let mut next = 0;
        while let Some(key) = keys.get(next) {
            keys.extend(self.calls.get(*key).iter().flat_map(|call| &call.joiners));
            next += 1;
            if keys.len() > MAX_SHARERS {
                return None;
            }
        }
        keys.sort_unstable();
        let sharer = |key: &CallKey| {
            let call = self.calls.get(key)?;
            let reply_id = self.resolve(call).0.map(|answer| reply_id(key, call, answer));
            Some(Sharer { key: key.clone(), reply_id })
        };
        Some(keys.into_iter().filter(|key| *key != of).filter_map(sharer).collect())
    }

    /// All that have not ended and the latest that have, the latest first.
    pub fn calls(&self) -> Vec<CallSummary> {
        let latest = |list: &BTreeSet<(u64, CallKey)>| -> Vec<CallKey> {
            list.iter().rev().take(MAX_LISTED).map(|(_, key)| key.clone()).collect()
        };
        let ended = [latest(&self.ended.calls), latest(&self.ended.tasks)].concat();
        let named = self.open.iter().chain(&ended).filter_map(|key| self.calls.get_key_value(key));
        let mut all: Vec<CallSummary> = named.filter_map(|(key, call)| self.summary(key, call)).collect();
        all.sort_by_cached_key(|call| {
            (call.ended_at.is_some(), Reverse(call.ended_at), Reverse(call.began_at), call.key.clone())
        });
        let open = all.partition_point(|call| call.ended_at.is_none());
        all.truncate(open + MAX_LISTED);
        all
    }

    fn summary(&self, key: &CallKey, call: &Call) -> Option<CallSummary> {
        let (answer, root) = self.resolve(call);
        let stage = match self.known(key, call) {
            Known::New => return None,
            Known::Waiting(_) => Stage::Waiting,
            Known::Running(_) => Stage::Running,
            Known::Interrupted(_) => Stage::Interrupted,
            Known::Answered { end, .. } => Stage::Ended(end),
            Known::Buried(_) => Stage::Buried,
        };
        let start = root.start.as_ref().or(root.buried.as_ref());
        let named = start.map(|start| (&start.server, &start.tool, start.at));
        let named = named.or_else(|| root.task.as_ref().map(|task| (&task.server, &task.tool, task.at)));
        let (server, tool, began_at) = named.map_or_else(Default::default, |(a, b, at)| (a.clone(), b.clone(), at));
        Some(CallSummary {
            key: key.clone(),
            server,
            tool,
            stage,
            attempts: start.map_or(0, |start| start.attempt),
            began_at: call.joined.as_ref().map_or(began_at, |joined| joined.at),
            ended_at: answer.map(|answer| answer.at),
            is_task: call.task.is_some(),
            joined_to: call.joined.as_ref().map(|joined| joined.to.clone()),
        })
    }

    /// All tasks that are remembered, oldest first.
    pub fn tasks(&self) -> Vec<TaskRow> {
        let mut rows: Vec<TaskRow> = self.tasks.values().filter_map(|manifest| self.row(manifest)).collect();
        rows.sort_by(|a, b| (a.manifest.at, &a.manifest.key).cmp(&(b.manifest.at, &b.manifest.key)));
        rows
    }

    /// The task with that id: of that agent, or of anybody.
    pub fn task(&self, id: &str, agent: Option<&str>) -> Option<TaskRow> {
        let from = (ByteString::from(id), ByteString::new());
        let same_id = self.tasks.range(from..).take_while(|((other, _), _)| *other == *id);
        let own = |manifest: &TaskManifest| agent.is_none_or(|agent| manifest.key.agent() == agent);
        same_id.map(|(_, manifest)| manifest).find(|manifest| own(manifest)).and_then(|manifest| self.row(manifest))
    }

    /// Tasks without an answer, in the order in which they were taken.
    pub fn unfinished_tasks(&self) -> Vec<TaskRow> {
        self.tasks().into_iter().filter(|row| row.ended_at.is_none()).collect()
    }

    /// How many tasks there are, of that agent or of all, that have not expired.
    pub fn count_tasks(&self, agent: Option<&str>, now: u64) -> usize {
        let counts = |manifest: &&Arc<TaskManifest>| {
            manifest.expires_at() > now && agent.is_none_or(|agent| manifest.key.agent() == agent)
        };
        self.tasks.values().filter(counts).count()
    }

    fn row(&self, manifest: &Arc<TaskManifest>) -> Option<TaskRow> {
        let call = self.calls.get(&manifest.key)?;
        let ended_at = self.resolve(call).0.map(|answer| answer.at);
        Some(TaskRow { manifest: Arc::clone(manifest), known: self.known(&manifest.key, call), ended_at })
    }

    /// All dead letters, oldest first.
    pub fn letters(&self) -> Vec<Arc<DeadLetterRow>> {
        let mut letters: Vec<Arc<DeadLetterRow>> = self.letters.values().cloned().collect();
        letters.sort_by(|a, b| (a.at, &a.key).cmp(&(b.at, &b.key)));
        letters
    }

    pub fn letter(&self, id: &str) -> Option<Arc<DeadLetterRow>> {
        let from = (ByteString::from(id), ByteString::new());
        let (_, letter) = self.letters.range(from..).next().filter(|((other, _), _)| *other == *id)?;
        Some(Arc::clone(letter))
    }

    pub(super) fn letter_at(&self, key: &CallKey) -> Option<&Arc<DeadLetterRow>> {
        self.letters.get(&by_id(key))
    }
}
