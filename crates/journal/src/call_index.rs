//! The in-memory index of all calls. It does no I/O; locations in the log are only numbers here.
//!
//! A call is kept as the set of entries written for it, and its state is derived from the set. Compaction moves
//! entries, so the order in which they are replayed must not matter. An answer is final: no later entry revokes it.

mod arena;
mod call;
mod limits;
mod lists;
mod names;

pub use limits::Limits;
pub use lists::{CallSummary, Candidate, CandidateState, DeadLetterRow, Sharer, Stage, TaskRow};

use crate::entry::{CallKey, Dead, End, Entry, Finish, Joined, Start, Task, detached};
use crate::log::Location;
use arena::Slot;
use bytestring::ByteString;
use call::{Call, Calls, JoinedTo};
use hashbrown::{DefaultHashBuilder, HashTable};
use limits::Ended;
use names::Id;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::sync::Arc;

/// The state of a call, by its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// Never started here.
    New,
    /// A task that was accepted and not started.
    Waiting(Arc<TaskManifest>),
    /// Started by this process and not answered yet.
    Running(Arc<Start>),
    /// Answered, possibly without having been started.
    Answered {
        /// The latest START of the call that was run.
        start: Option<Arc<Start>>,
        /// How the call ended.
        end: End,
        /// The id of the message that carries the answer.
        reply_id: ByteString,
        /// The location of the answer.
        reply: Location,
    },
    /// Started by an earlier process and not answered: the outcome is unknown.
    Interrupted(Arc<Start>),
    /// Dead-lettered and not answered yet. It is not run again.
    DeadLettered(Arc<Start>),
}

/// Why a lookup was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The id belongs to a call of another tool or with other arguments.
    #[error("this id was already used for a call of {tool} with other arguments")]
    OtherContent {
        /// The tool of the known call.
        tool: String,
    },
}

/// A task without the body of its request, which stays in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskManifest {
    /// The call of the task.
    pub key: CallKey,
    /// The MCP server that runs the task.
    pub server: ByteString,
    /// The tool that the task calls.
    pub tool: ByteString,
    /// Hash of tool and arguments.
    pub content: [u8; 32],
    /// The caller's role when the task was accepted.
    pub role: Option<ByteString>,
    /// Lifetime in milliseconds from acceptance.
    pub ttl_ms: u64,
    /// When the task was accepted, in milliseconds since 1970.
    pub at: u64,
    /// The location of the request.
    pub request: Location,
}

impl TaskManifest {
    /// When the task expires, in milliseconds since 1970. It is not listed from then on.
    pub fn expires_at(&self) -> u64 {
        self.at.saturating_add(self.ttl_ms)
    }
}

/// The index of all remembered calls of a host.
#[derive(Debug, Default)]
pub struct CallIndex {
    limits: Limits,
    /// When this process opened the journal.
    opened_at: u64,
    calls: Calls,
    /// The latest call per agent and content.
    latest: HashTable<Slot>,
    hasher: DefaultHashBuilder,
    /// By id, then caller.
    tasks: BTreeMap<(ByteString, ByteString), Arc<TaskManifest>>,
    /// By id, then caller.
    dead_letters: BTreeMap<(ByteString, ByteString), Arc<DeadLetterRow>>,
    ended: Ended,
    /// All calls that are not in `ended`.
    open: BTreeSet<Slot>,
}

impl CallIndex {
    /// Creates an empty index. The retention time of calls that ended in an earlier process counts from `now`, because
    /// their callers could not ask for the answer meanwhile.
    pub fn new(limits: Limits, now: u64) -> Self {
        Self { limits, opened_at: now, ..Self::default() }
    }

    /// Looks a call up by its id. Rejects an id that is known with other content.
    pub fn look_up(&self, key: &CallKey, content: &[u8; 32]) -> Result<Known, Refused> {
        let Some(call) = self.calls.get(key) else { return Ok(Known::New) };
        if call.content.is_some_and(|kept| kept != *content) {
            return Err(Refused::OtherContent { tool: self.tool_of(call).to_string() });
        }
        Ok(self.known(call))
    }

    fn known(&self, call: &Call) -> Known {
        let (answered, root) = self.resolve(call);
        let start = self.calls.start(root);
        if let Some((answered, answer, reply)) = answered.and_then(|call| Some((call, call.answer?, call.reply()?))) {
            return Known::Answered { start, end: answer.end, reply_id: self.reply_id(call, answered), reply };
        }
        if let Some(dead_lettered) = root.dead_lettered() {
            return Known::DeadLettered(start.unwrap_or_else(|| Arc::clone(dead_lettered)));
        }
        match (start, root.task(), call.joined()) {
            (Some(start), ..) if root.live => Known::Running(start),
            (Some(start), ..) => Known::Interrupted(start),
            (None, Some(task), _) => Known::Waiting(Arc::clone(task)),
            // The entries of the call that this one was joined to are lost.
            (None, None, Some(joined)) => {
                let content = call.content.unwrap_or_default();
                Known::Interrupted(Arc::new(placeholder_start(self.calls.key(call), content, joined.at)))
            }
            (None, None, None) => Known::New,
        }
    }

    /// The call with the answer to a call, itself or one that it was joined to, and the call that was actually run.
    fn resolve<'a>(&'a self, mut call: &'a Call) -> (Option<&'a Call>, &'a Call) {
        let with_answer = |call: &'a Call| Some(call).filter(|call| call.answer.is_some());
        let mut answered = with_answer(call);
        // Each crash of an agent may add a join to the chain. The limit ends a cycle, which only corruption can cause.
        for _ in 0..MAX_CHAIN {
            let Some(next) = call.joined().and_then(|joined| self.calls.get(&joined.to)) else { break };
            call = next;
            answered = answered.or_else(|| with_answer(call));
        }
        (answered, call)
    }

    /// The call that was actually run for this one, as far as it is known.
    fn run_for(&self, key: &CallKey) -> CallKey {
        self.calls.get(key).map_or_else(
            || key.detached(),
            |call| {
                let root = self.resolve(call).1;
                // The call that it was joined to may be unknown.
                root.joined().map_or_else(|| self.calls.key(root), |joined| joined.to.clone())
            },
        )
    }

    fn tool_of(&self, call: &Call) -> ByteString {
        let root = self.resolve(call).1;
        let of_task = || root.task().map(|task| task.tool.clone());
        self.calls.start(root).map(|start| start.tool.clone()).or_else(of_task).unwrap_or_default()
    }

    /// The id of the message that carries the answer. Calls joined to the same call can come from one mailbox, where
    /// message ids must be unique, so a joined call gets an id of its own.
    fn reply_id(&self, call: &Call, answered: &Call) -> ByteString {
        match call.answer {
            Some(_) => call.reply_id(),
            None => ByteString::from(format!("{}.{}", answered.reply_id(), self.calls.key(call).id)),
        }
    }

    /// Applies the effects of an entry that hold before it is durable: a call is running, a task is accepted, no other
    /// answer is accepted, a dead letter is dropped.
    pub fn announce(&mut self, entry: &Entry) {
        match entry {
            Entry::Start(start) => self.enter_start(start, true),
            Entry::Task(task) => self.enter_task(task, Location::InMemory(task.request.clone())),
            // Prevents a second call from joining the same call before this entry is durable.
            Entry::Joined(joined) => {
                let (slot, call) = self.calls.entry(&joined.key);
                call.rare_mut().joining_at = Some(joined.at);
                self.set_content(slot, joined.content);
                self.note_latest(slot);
            }
            Entry::Finish(finish) => {
                let (_, call) = self.calls.entry(&finish.key);
                if call.answer.is_none() {
                    call.reply_id = Some(Id::new(&finish.reply_id));
                }
            }
            Entry::Dropped(key) => self.drop_dead_letter(key),
            Entry::Dead(_) => {}
        }
    }

    /// Applies an entry that this process has written to the log.
    pub fn enter(&mut self, entry: &Entry, location: Location) {
        self.apply(entry, location, true);
    }

    /// Applies an entry of an earlier process, or one that compaction has copied.
    pub fn restore(&mut self, entry: &Entry, location: Location) {
        self.apply(entry, location, false);
    }

    fn apply(&mut self, entry: &Entry, location: Location, live: bool) {
        match entry {
            Entry::Start(start) => self.enter_start(start, live),
            Entry::Finish(finish) => self.enter_finish(finish, location, live),
            Entry::Joined(joined) => self.enter_joined(joined),
            Entry::Task(task) => {
                self.enter_task(task, location);
                let manifest = self.calls.get(&task.key).and_then(|call| call.task().cloned());
                self.tasks.extend(manifest.map(|manifest| (by_id(&manifest.key), manifest)));
            }
            Entry::Dead(dead) => self.enter_dead(dead, location),
            Entry::Dropped(key) => self.drop_dead_letter(key),
        }
    }

    fn enter_start(&mut self, start: &Start, live: bool) {
        let (slot, call) = self.calls.entry(&start.key);
        call.live |= live;
        if call.start.as_ref().is_some_and(|known| known.attempt >= start.attempt) {
            return;
        }
        let is_task = call.task().is_some();
        self.calls.set_start(slot, start);
        self.set_content(slot, start.content);
        if !is_task {
            self.note_latest(slot);
        }
        self.list_ended(slot);
    }

    fn enter_finish(&mut self, finish: &Finish, reply: Location, live: bool) {
        let (slot, call) = self.calls.entry(&finish.key);
        let (end, at, reply_id) = (finish.end, finish.at, Id::new(&finish.reply_id));
        // The first answer wins, because it may have been sent. Compaction moves entries, so it may be read last.
        let is_other = call.reply_id.as_ref().is_some_and(|first| *first != reply_id);
        if is_other && call.answer.is_some_and(|first| live || first.at <= at) {
            return;
        }
        call.reply_id = Some(reply_id);
        call.set_answer(end, at, reply);
        self.list_ended(slot);
    }

    /// Whether this answer may be written. A call has one answer; the same message may be written again, with other
    /// content if the first was never sent.
    pub fn takes_answer(&self, finish: &Finish) -> bool {
        let given = self.calls.get(&finish.key).and_then(|call| call.reply_id.as_ref());
        given.is_none_or(|reply_id| *reply_id == Id::new(&finish.reply_id))
    }

    /// Whether the call itself (not one that it was joined to) has an answer.
    pub fn is_answered(&self, key: &CallKey) -> bool {
        self.calls.get(key).is_some_and(|call| call.answer.is_some())
    }

    fn enter_joined(&mut self, joined: &Joined) {
        let (key, to) = (joined.key.detached(), self.run_for(&joined.to));
        let (slot, call) = self.calls.entry(&key);
        let rare = call.rare_mut();
        rare.joining_at = None;
        if rare.joined.replace(JoinedTo { to: to.clone(), at: joined.at }).is_none() {
            self.calls.entry(&to).1.rare_mut().joiners.push(key);
        }
        self.set_content(slot, joined.content);
        self.note_join(slot, joined.at);
        self.note_latest(slot);
    }

    fn enter_task(&mut self, task: &Task, request: Location) {
        let (key, server, tool) = (task.key.detached(), detached(&task.server), detached(&task.tool));
        let Task { content, ttl_ms, at, .. } = *task;
        let role = task.role.as_ref().map(detached);
        let manifest = Arc::new(TaskManifest { key, server, tool, content, role, ttl_ms, at, request });
        let (slot, call) = self.calls.entry(&task.key);
        call.rare_mut().task = Some(manifest);
        self.set_content(slot, content);
        // The START of the task may have been read first. Tasks are not join candidates.
        self.drop_latest(slot);
        self.list_ended(slot);
    }

    fn enter_dead(&mut self, dead: &Dead, request: Location) {
        let dead_letter = Arc::new(DeadLetterRow::new(dead, request));
        let (server, tool) = (dead_letter.server.clone(), dead_letter.tool.clone());
        let placeholder = placeholder_start(dead_letter.key.clone(), [0; 32], dead.at);
        let (slot, call) = self.calls.entry(&dead.key);
        call.rare_mut().dead_lettered = Some(Arc::new(Start { server, tool, attempt: dead.attempts, ..placeholder }));
        self.list_ended(slot);
        self.dead_letters.insert(by_id(&dead_letter.key), dead_letter);
    }

    fn drop_dead_letter(&mut self, key: &CallKey) {
        self.dead_letters.remove(&by_id(key));
        // A call without other entries is removed together with its dead letter.
        let is_left = |call: &Call| call.start.is_some() || call.answer.is_some() || call.task().is_some();
        let slot = self.calls.find(key).filter(|slot| self.calls.at(*slot).is_some_and(|call| !is_left(call)));
        slot.into_iter().for_each(|slot| self.remove(slot));
    }

    fn set_content(&mut self, slot: Slot, content: [u8; 32]) {
        if self.calls.at(slot).is_some_and(|call| call.content != Some(content)) {
            self.drop_latest(slot);
            self.calls.at_mut(slot).into_iter().for_each(|call| call.content = Some(content));
        }
    }

    /// The latest call of an agent with this content.
    fn find_latest(&self, agent: &str, content: &[u8; 32]) -> Option<Slot> {
        let is_it = |call: &Call| call.content.as_ref() == Some(content) && self.calls.agent(call) == agent;
        let is_it = |slot: &Slot| self.calls.at(*slot).is_some_and(is_it);
        self.latest.find(self.hasher.hash_one((agent, content)), is_it).copied()
    }

    fn note_latest(&mut self, slot: Slot) {
        let Some(call) = self.calls.at(slot) else { return };
        let content = call.content.unwrap_or_default();
        let earlier = self.find_latest(self.calls.agent(call), &content);
        if let Some(earlier) = earlier {
            if earlier == slot || self.calls.at(earlier).is_some_and(|earlier| earlier.began_at() > call.began_at()) {
                return;
            }
            self.drop_latest(earlier);
        }
        let (calls, hasher) = (&self.calls, &self.hasher);
        let hash = |call: &Call| hasher.hash_one((calls.agent(call), &call.content.unwrap_or_default()));
        let rehash = |slot: &Slot| calls.at(*slot).map_or(0, hash);
        self.latest.insert_unique(rehash(&slot), slot, rehash);
    }

    fn drop_latest(&mut self, slot: Slot) {
        let Some((call, content)) = self.calls.at(slot).and_then(|call| Some((call, call.content?))) else { return };
        let hash = self.hasher.hash_one((self.calls.agent(call), &content));
        if let Ok(found) = self.latest.find_entry(hash, |other| *other == slot) {
            found.remove();
        }
    }

    /// Number of remembered calls.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether no call is remembered.
    pub fn is_empty(&self) -> bool {
        self.calls.len() == 0
    }
}

/// Maximum number of joins that are followed from a call.
const MAX_CHAIN: usize = 256;

fn by_id(key: &CallKey) -> (ByteString, ByteString) {
    (key.id.clone(), key.caller.clone())
}

/// A START of which only the call's id is known.
fn placeholder_start(key: CallKey, content: [u8; 32], at: u64) -> Start {
    let (server, tool) = (ByteString::new(), ByteString::new());
    Start { key, server, tool, content, attempt: 1, at, safe: false }
}
