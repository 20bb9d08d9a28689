//! Queries: join candidates, and lists of calls, tasks and dead letters for the admin API.

use super::arena::Slot;
use super::{Call, CallIndex, Known, TaskManifest, by_id};
use crate::entry::{CallKey, Dead, End, Start, detached};
use crate::log::Location;
use bytestring::ByteString;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The latest call of an agent with the same tool and arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The latest call.
    pub key: CallKey,
    /// The START of the call that was actually run, which may be an earlier one.
    pub start: Option<Arc<Start>>,
    /// The state of the run.
    pub state: CandidateState,
    /// All other calls that share the run: the one that was run and those joined to it. If one of their callers is
    /// connected or has received the answer, the answer must not be given to another call.
    pub sharers: Vec<Sharer>,
}

/// A call that is answered by the same run as a [`Candidate`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharer {
    /// The call.
    pub key: CallKey,
    /// The id of the message that carries its answer, if it was answered.
    pub reply_id: Option<ByteString>,
}

/// The state of the run that a call may be joined to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CandidateState {
    /// Run by this process.
    Running,
    /// Answered.
    Answered {
        /// The id of the message that carries the answer.
        reply_id: ByteString,
        /// How the call ended.
        end: End,
        /// The location of the answer.
        reply: Location,
    },
    /// Started by an earlier process and not answered: the outcome is unknown, and no caller has received an answer.
    Interrupted,
}

/// The state of a call as listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A task that was accepted and not started.
    Waiting,
    /// Run by this process.
    Running,
    /// Started by an earlier process and not answered.
    Interrupted,
    /// Answered.
    Ended(End),
    /// Dead-lettered and not answered.
    DeadLettered,
}

/// A call as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSummary {
    /// The call.
    pub key: CallKey,
    /// The MCP server.
    pub server: ByteString,
    /// The tool.
    pub tool: ByteString,
    /// The state of the call.
    pub stage: Stage,
    /// How often the call was started.
    pub attempts: u32,
    /// When the call was started, accepted as a task or joined, in milliseconds since 1970.
    pub began_at: u64,
    /// When the call was answered, in milliseconds since 1970.
    pub ended_at: Option<u64>,
    /// Whether the call is a task.
    pub is_task: bool,
    /// The call that this one was joined to.
    pub joined_to: Option<CallKey>,
}

/// A task and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRow {
    /// The task.
    pub manifest: Arc<TaskManifest>,
    /// The state of its call.
    pub known: Known,
    /// When the task was answered, in milliseconds since 1970.
    pub ended_at: Option<u64>,
}

/// A dead letter without the body of its request, which stays in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterRow {
    /// The call.
    pub key: CallKey,
    /// The MCP server.
    pub server: ByteString,
    /// The tool.
    pub tool: ByteString,
    /// The caller's role.
    pub role: Option<ByteString>,
    /// How often the call was started.
    pub attempts: u32,
    /// The history of the attempts, one line each.
    pub story: Vec<String>,
    /// When the call was dead-lettered, in milliseconds since 1970.
    pub at: u64,
    /// The location of the request.
    pub request: Location,
}

impl DeadLetterRow {
    pub(super) fn new(dead: &Dead, request: Location) -> Self {
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

/// Maximum number of calls that share an answer; a run with more is no join candidate.
pub const MAX_SHARERS: usize = 100;
/// The longest duration of a call: the default limit of workers.
const LONGEST_CALL_MS: u64 = 3600 * 1000;
/// Maximum number of listed ended calls.
pub const MAX_LISTED: usize = 1000;

impl CallIndex {
    /// The latest call of an agent with this content, unless it ended before `ended_after`. Tasks are not candidates.
    pub fn candidate(&self, agent: &str, content: &[u8; 32], ended_after: u64) -> Option<Candidate> {
        let call = self.calls.at(self.find_latest(agent, content)?)?;
        let (answered, root) = self.resolve(call);
        let state = match answered.and_then(|call| Some((call, call.answer?, call.reply()?))) {
            Some((_, answer, _)) if answer.at < ended_after => return None,
            Some((answered, answer, reply)) => {
                CandidateState::Answered { reply_id: self.reply_id(call, answered), end: answer.end, reply }
            }
            None if root.dead_lettered().is_some() || root.start.is_none() => return None,
            None if root.live => CandidateState::Running,
            None if self.latest_end(root) < ended_after => return None,
            None => CandidateState::Interrupted,
        };
        let key = self.calls.key(call);
        Some(Candidate { start: self.calls.start(root), state, sharers: self.sharers(&key)?, key })
    }

    /// The latest time at which an interrupted call can have ended: not after this process opened the journal, and not
    /// after the longest duration of a call.
    fn latest_end(&self, call: &Call) -> u64 {
        let began = call.start.as_ref().map_or(0, |start| start.at);
        self.opened_at.min(began.saturating_add(LONGEST_CALL_MS)).max(began)
    }

    /// The other calls that share the run of `of`, or `None` if there are more than [`MAX_SHARERS`].
    fn sharers(&self, of: &CallKey) -> Option<Vec<Sharer>> {
        let mut keys = vec![self.run_for(of)];
        let mut next = 0;
        while let Some(key) = keys.get(next) {
            let joiners = self.calls.get(key).map_or(&[][..], Call::joiners);
            keys.extend_from_slice(joiners);
            next += 1;
            if keys.len() > MAX_SHARERS {
                return None;
            }
        }
        keys.sort_unstable();
        let sharer = |key: CallKey| {
            let call = self.calls.get(&key)?;
            let reply_id = self.resolve(call).0.map(|answered| self.reply_id(call, answered));
            Some(Sharer { key, reply_id })
        };
        Some(keys.into_iter().filter(|key| key != of).filter_map(sharer).collect())
    }

    /// All calls that have not ended, then the latest ended ones; latest first.
    pub fn calls(&self) -> Vec<CallSummary> {
        let latest = |list: &BTreeSet<(u64, Slot)>| -> Vec<Slot> {
            list.iter().rev().take(MAX_LISTED).map(|(_, slot)| *slot).collect()
        };
        let ended = [latest(&self.ended.calls), latest(&self.ended.tasks)].concat();
        let named = self.open.iter().chain(&ended).filter_map(|slot| self.calls.at(*slot));
        let mut all: Vec<CallSummary> = named.filter_map(|call| self.summary(call)).collect();
        all.sort_by_cached_key(|call| {
            (call.ended_at.is_some(), Reverse(call.ended_at), Reverse(call.began_at), call.key.clone())
        });
        let open = all.partition_point(|call| call.ended_at.is_none());
        all.truncate(open + MAX_LISTED);
        all
    }

    fn summary(&self, call: &Call) -> Option<CallSummary> {
        let (answered, root) = self.resolve(call);
        let stage = match self.known(call) {
            Known::New => return None,
            Known::Waiting(_) => Stage::Waiting,
            Known::Running(_) => Stage::Running,
            Known::Interrupted(_) => Stage::Interrupted,
            Known::Answered { end, .. } => Stage::Ended(end),
            Known::DeadLettered(_) => Stage::DeadLettered,
        };
        let start = self.calls.start(root).or_else(|| root.dead_lettered().cloned());
        let named = start.as_ref().map(|start| (&start.server, &start.tool, start.at));
        let named = named.or_else(|| root.task().map(|task| (&task.server, &task.tool, task.at)));
        let (server, tool, began_at) = named.map_or_else(Default::default, |(a, b, at)| (a.clone(), b.clone(), at));
        Some(CallSummary {
            key: self.calls.key(call),
            server,
            tool,
            stage,
            attempts: start.as_ref().map_or(0, |start| start.attempt),
            began_at: call.joined().map_or(began_at, |joined| joined.at),
            ended_at: answered.and_then(|answered| answered.answer).map(|answer| answer.at),
            is_task: call.task().is_some(),
            joined_to: call.joined().map(|joined| joined.to.clone()),
        })
    }

    /// All tasks that are remembered, oldest first. Tasks of the same millisecond are in the order of the log.
    pub fn tasks(&self) -> Vec<TaskRow> {
        let mut rows: Vec<TaskRow> = self.tasks.values().filter_map(|manifest| self.row(manifest)).collect();
        rows.sort_by_key(|row| (row.manifest.at, row.manifest.request.position()));
        rows
    }

    /// The task with this id, optionally of one agent only.
    pub fn task(&self, id: &str, agent: Option<&str>) -> Option<TaskRow> {
        let from = (ByteString::from(id), ByteString::new());
        let same_id = self.tasks.range(from..).take_while(|((other, _), _)| *other == *id);
        let own = |manifest: &TaskManifest| agent.is_none_or(|agent| manifest.key.agent() == agent);
        same_id.map(|(_, manifest)| manifest).find(|manifest| own(manifest)).and_then(|manifest| self.row(manifest))
    }

    /// Tasks without an answer, in the order of their acceptance.
    pub fn unfinished_tasks(&self) -> Vec<TaskRow> {
        self.tasks().into_iter().filter(|row| row.ended_at.is_none()).collect()
    }

    /// Number of tasks that have not expired, optionally of one agent only.
    pub fn count_tasks(&self, agent: Option<&str>, now: u64) -> usize {
        let counts = |manifest: &&Arc<TaskManifest>| {
            manifest.expires_at() > now && agent.is_none_or(|agent| manifest.key.agent() == agent)
        };
        self.tasks.values().filter(counts).count()
    }

    fn row(&self, manifest: &Arc<TaskManifest>) -> Option<TaskRow> {
        let call = self.calls.get(&manifest.key)?;
        let ended_at = self.resolve(call).0.and_then(|answered| answered.answer).map(|answer| answer.at);
        Some(TaskRow { manifest: Arc::clone(manifest), known: self.known(call), ended_at })
    }

    /// All dead letters, oldest first.
    pub fn dead_letters(&self) -> Vec<Arc<DeadLetterRow>> {
        let mut dead_letters: Vec<Arc<DeadLetterRow>> = self.dead_letters.values().cloned().collect();
        dead_letters.sort_by(|a, b| (a.at, &a.key).cmp(&(b.at, &b.key)));
        dead_letters
    }

    /// The dead letter with this id.
    pub fn dead_letter_by_id(&self, id: &str) -> Option<Arc<DeadLetterRow>> {
        let from = (ByteString::from(id), ByteString::new());
        let (_, dead_letter) = self.dead_letters.range(from..).next().filter(|((other, _), _)| *other == *id)?;
        Some(Arc::clone(dead_letter))
    }

    pub(super) fn dead_letter_at(&self, key: &CallKey) -> Option<&Arc<DeadLetterRow>> {
        self.dead_letters.get(&by_id(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Entry;
    use bytes::Bytes;

    #[test]
    fn a_call_is_a_candidate_for_its_latest_content_only() {
        let key = CallKey { caller: "w#1".into(), id: "a".into() };
        let mut index = CallIndex::default();
        for attempt in 1..3 {
            let (server, tool, content) = ("files".into(), "write".into(), [attempt; 32]);
            let start = Start { key: key.clone(), server, tool, content, attempt: attempt.into(), at: 1, safe: true };
            index.enter(&Entry::Start(start.into()), Location::InMemory(Bytes::new()));
        }
        assert!(index.candidate("w", &[1; 32], 0).is_none() && index.candidate("w", &[2; 32], 0).is_some());
        assert_eq!(index.latest.len(), 1);
        index.calls.find(&key).into_iter().for_each(|slot| index.remove(slot));
        assert!(index.is_empty() && index.latest.is_empty() && index.open.is_empty());
    }
}
