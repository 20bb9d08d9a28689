//! The in-memory index of all calls. It does no I/O; locations in the log are only numbers here.
//!
//! A call is kept as the set of entries written for it, and its state is derived from the set. Compaction moves
//! entries, so the order in which they are replayed must not matter. An answer is final: no later entry revokes it.

mod limits;
mod lists;

pub use limits::Limits;
pub use lists::{CallSummary, Candidate, CandidateState, DeadLetterRow, Sharer, Stage, TaskRow};

use crate::entry::{CallKey, Dead, End, Entry, Finish, Joined, Start, Task, detached};
use crate::log::Location;
use bytestring::ByteString;
use hashbrown::HashMap;
use limits::Ended;
use std::collections::{BTreeMap, BTreeSet};
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

#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    end: End,
    reply_id: ByteString,
    reply: Location,
    at: u64,
}

#[derive(Debug, Default)]
struct Call {
    /// Absent if only the answer could be read; any content matches then.
    content: Option<[u8; 32]>,
    start: Option<Arc<Start>>,
    /// Started by this process.
    live: bool,
    task: Option<Arc<TaskManifest>>,
    answer: Option<Answer>,
    /// The reply id of an answer that is not durable yet.
    answering: Option<ByteString>,
    /// A START derived from the dead letter, used if no START is known.
    dead_lettered: Option<Arc<Start>>,
    joined: Option<Arc<Joined>>,
    /// Calls joined to this one; they are forgotten together with it.
    joiners: Vec<CallKey>,
    latest_join: u64,
    /// The timestamp under which the call is in `Ended`.
    listed: Option<u64>,
}

/// The index of all remembered calls of a host.
#[derive(Debug, Default)]
pub struct CallIndex {
    limits: Limits,
    /// When this process opened the journal.
    opened_at: u64,
    /// Boxed, because the table is copied as a whole when it grows.
    calls: HashMap<CallKey, Box<Call>>,
    /// The latest call per agent and content, and its start time.
    latest: HashMap<(ByteString, [u8; 32]), (u64, CallKey)>,
    /// By id, then caller.
    tasks: BTreeMap<(ByteString, ByteString), Arc<TaskManifest>>,
    /// By id, then caller.
    dead_letters: BTreeMap<(ByteString, ByteString), Arc<DeadLetterRow>>,
    ended: Ended,
    /// All calls that are not in `ended`.
    open: BTreeSet<CallKey>,
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
            return Err(Refused::OtherContent { tool: self.tool_of(key).to_string() });
        }
        Ok(self.known(key, call))
    }

    fn known(&self, key: &CallKey, call: &Call) -> Known {
        let (answer, root) = self.resolve(call);
        if let Some(answer) = answer {
            let (end, reply_id, reply) = (answer.end, reply_id(key, call, answer), answer.reply.clone());
            return Known::Answered { start: root.start.clone(), end, reply_id, reply };
        }
        if let Some(dead_lettered) = &root.dead_lettered {
            return Known::DeadLettered(Arc::clone(root.start.as_ref().unwrap_or(dead_lettered)));
        }
        match (&root.start, &root.task, &call.joined) {
            (Some(start), ..) if root.live => Known::Running(Arc::clone(start)),
            (Some(start), ..) => Known::Interrupted(Arc::clone(start)),
            (None, Some(task), _) => Known::Waiting(Arc::clone(task)),
            // The entries of the call that this one was joined to are lost.
            (None, None, Some(joined)) => {
                Known::Interrupted(Arc::new(placeholder_start(key, joined.content, joined.at)))
            }
            (None, None, None) => Known::New,
        }
    }

    /// The answer to a call, its own or that of the call it was joined to, and the call that was actually run.
    fn resolve<'a>(&'a self, mut call: &'a Call) -> (Option<&'a Answer>, &'a Call) {
        let mut answer = call.answer.as_ref();
        // Each crash of an agent may add a join to the chain. The limit ends a cycle, which only corruption can cause.
        for _ in 0..MAX_CHAIN {
            let Some(next) = call.joined.as_ref().and_then(|joined| self.calls.get(&joined.to)) else { break };
            call = next;
            answer = answer.or(call.answer.as_ref());
        }
        (answer, call)
    }

    /// The call that was actually run for this one, as far as it is known.
    fn run_for<'a>(&'a self, key: &'a CallKey) -> &'a CallKey {
        let joined = |key: &CallKey| self.calls.get(key).and_then(|call| call.joined.as_ref());
        std::iter::successors(Some(key), |key| joined(key).map(|joined| &joined.to))
            .take(MAX_CHAIN)
            .last()
            .unwrap_or(key)
    }

    fn tool_of(&self, key: &CallKey) -> ByteString {
        let root = self.calls.get(key).map(|call| self.resolve(call).1);
        let of_task = || root?.task.as_ref().map(|task| task.tool.clone());
        root.and_then(|root| root.start.as_ref()).map(|start| start.tool.clone()).or_else(of_task).unwrap_or_default()
    }

    /// Applies the effects of an entry that hold before it is durable: a call is running, a task is accepted, no other
    /// answer is accepted, a dead letter is dropped.
    pub fn announce(&mut self, entry: &Entry) {
        match entry {
            Entry::Start(start) => self.enter_start(start, true),
            Entry::Task(task) => self.enter_task(task, Location::InMemory(task.request.clone())),
            // Prevents a second call from joining the same call before this entry is durable.
            Entry::Joined(joined) => self.note_latest(joined.key.detached(), joined.content, joined.at),
            Entry::Finish(finish) => {
                let call = self.calls.entry(finish.key.clone()).or_default();
                call.answering = Some(finish.reply_id.clone());
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
                let manifest = self.calls.get(&task.key).and_then(|call| call.task.clone());
                self.tasks.extend(manifest.map(|manifest| (by_id(&manifest.key), manifest)));
            }
            Entry::Dead(dead) => self.enter_dead(dead, location),
            Entry::Dropped(key) => self.drop_dead_letter(key),
        }
    }

    fn enter_start(&mut self, start: &Arc<Start>, live: bool) {
        let is_known = |call: &Call| call.start.as_ref().is_some_and(|known| known.attempt >= start.attempt);
        if let Some(call) = self.calls.get_mut(&start.key).filter(|call| is_known(call)) {
            call.live |= live;
            return;
        }
        // An entry read from a segment borrows from the segment's buffer and must not keep it in memory.
        let start = if live { Arc::clone(start) } else { Arc::new(start.detached()) };
        let key = start.key.clone();
        let call = self.calls.entry(key.clone()).or_default();
        call.live |= live;
        call.content = Some(start.content);
        call.start = Some(Arc::clone(&start));
        if call.task.is_none() {
            self.note_latest(key.clone(), start.content, start.at);
        }
        self.list_ended(&key);
    }

    fn enter_finish(&mut self, finish: &Finish, reply: Location, live: bool) {
        let own = |text: &ByteString| if live { text.clone() } else { detached(text) };
        let key = CallKey { caller: own(&finish.key.caller), id: own(&finish.key.id) };
        let call = self.calls.entry(key.clone()).or_default();
        let Finish { end, at, .. } = *finish;
        // The first answer wins, because it may have been sent. Compaction moves entries, so it may be read last.
        let is_later = |first: &Answer| first.reply_id != finish.reply_id && (live || first.at <= at);
        if call.answer.as_ref().is_some_and(is_later) {
            return;
        }
        call.answering = None;
        call.answer = Some(Answer { end, reply_id: own(&finish.reply_id), reply, at });
        self.list_ended(&key);
    }

    /// Whether this answer may be written. A call has one answer; the same message may be written again, with other
    /// content if the first was never sent.
    pub fn takes_answer(&self, finish: &Finish) -> bool {
        let Some(call) = self.calls.get(&finish.key) else { return true };
        let given = call.answer.as_ref().map(|answer| &answer.reply_id).or(call.answering.as_ref());
        given.is_none_or(|reply_id| *reply_id == finish.reply_id)
    }

    /// Whether the call itself (not one that it was joined to) has an answer.
    pub fn is_answered(&self, key: &CallKey) -> bool {
        self.calls.get(key).is_some_and(|call| call.answer.is_some())
    }

    fn enter_joined(&mut self, joined: &Joined) {
        let (key, to) = (joined.key.detached(), self.run_for(&joined.to).detached());
        let kept = Arc::new(Joined { key: key.clone(), to: to.clone(), ..*joined });
        let call = self.calls.entry(key.clone()).or_default();
        call.content = Some(joined.content);
        if call.joined.replace(kept).is_none() {
            let earlier = self.calls.entry(to).or_default();
            earlier.joiners.push(key.clone());
        }
        self.note_join(&key, joined.at);
        self.note_latest(key, joined.content, joined.at);
    }

    fn enter_task(&mut self, task: &Task, request: Location) {
        let (key, server, tool) = (task.key.detached(), detached(&task.server), detached(&task.tool));
        let Task { content, ttl_ms, at, .. } = *task;
        let role = task.role.as_ref().map(detached);
        let manifest = Arc::new(TaskManifest { key: key.clone(), server, tool, content, role, ttl_ms, at, request });
        let call = self.calls.entry(key.clone()).or_default();
        call.content = Some(content);
        call.task = Some(Arc::clone(&manifest));
        // The START of the task may have been read first. Tasks are not join candidates.
        if self.latest.get(&by_content(&key, content)).is_some_and(|(_, latest)| *latest == key) {
            self.latest.remove(&by_content(&key, content));
        }
        self.list_ended(&key);
    }

    fn enter_dead(&mut self, dead: &Dead, request: Location) {
        let dead_letter = Arc::new(DeadLetterRow::new(dead, request));
        let (server, tool) = (dead_letter.server.clone(), dead_letter.tool.clone());
        let call = self.calls.entry(dead_letter.key.clone()).or_default();
        let start =
            Start { server, tool, attempt: dead.attempts, ..placeholder_start(&dead_letter.key, [0; 32], dead.at) };
        call.dead_lettered = Some(Arc::new(start));
        self.list_ended(&dead_letter.key);
        self.dead_letters.insert(by_id(&dead_letter.key), dead_letter);
    }

    fn drop_dead_letter(&mut self, key: &CallKey) {
        self.dead_letters.remove(&by_id(key));
        // A call without other entries is removed together with its dead letter.
        let is_left = |call: &Call| call.start.is_some() || call.answer.is_some() || call.task.is_some();
        if self.calls.get(key).is_some_and(|call| !is_left(call)) {
            self.remove(key);
        }
    }

    fn note_latest(&mut self, key: CallKey, content: [u8; 32], at: u64) {
        let latest = self.latest.entry(by_content(&key, content)).or_insert_with(|| (at, key.clone()));
        if at >= latest.0 {
            *latest = (at, key);
        }
    }

    /// Number of remembered calls.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether no call is remembered.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

/// Maximum number of joins that are followed from a call.
const MAX_CHAIN: usize = 256;

fn by_id(key: &CallKey) -> (ByteString, ByteString) {
    (key.id.clone(), key.caller.clone())
}

fn by_content(key: &CallKey, content: [u8; 32]) -> (ByteString, [u8; 32]) {
    (key.caller.slice_ref(key.agent()), content)
}

/// The id of the message that carries the answer. Calls joined to the same call can come from one mailbox, where
/// message ids must be unique, so a joined call gets an id of its own.
fn reply_id(key: &CallKey, call: &Call, answer: &Answer) -> ByteString {
    match call.answer {
        Some(_) => answer.reply_id.clone(),
        None => ByteString::from(format!("{}.{}", answer.reply_id, key.id)),
    }
}

/// A START of which only the call's id is known.
fn placeholder_start(key: &CallKey, content: [u8; 32], at: u64) -> Start {
    let (server, tool) = (ByteString::new(), ByteString::new());
    Start { key: key.clone(), server, tool, content, attempt: 1, at, safe: false }
}
