//! What is known of each call. No I/O: places in the log are numbers here.
//!
//! A call is kept as the facts that were written of it, and what it *is* follows from them, so that the order in which they
//! are read after entries were moved does not matter. An answer is for ever: no fact takes it back.

mod limits;
mod lists;

pub use limits::Limits;
pub use lists::{CallSummary, Candidate, CandidateState, DeadLetterRow, Sharer, Stage, TaskRow};

use crate::entry::{CallKey, Dead, End, Entry, Finish, Joined, Start, Task, detached};
use crate::log::Place;
use bytestring::ByteString;
use hashbrown::HashMap;
use limits::Ended;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What became of a call that comes (perhaps again).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// Never begun here.
    New,
    /// A task that was taken and not begun.
    Waiting(Arc<TaskManifest>),
    /// This process runs it.
    Running(Arc<Start>),
    /// It was answered; the answer is there in the log. It may have been answered without having been begun.
    Answered { start: Option<Arc<Start>>, end: End, reply_id: ByteString, reply: Place },
    /// It was begun by a process that is gone. Whether it had its effect is not known.
    Interrupted(Arc<Start>),
    /// It is not tried any more, and was not answered yet.
    Buried(Arc<Start>),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("this id was used for a call of {tool} with other arguments")]
    OtherContent { tool: String },
}

/// A task without its request, which stays in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskManifest {
    pub key: CallKey,
    pub server: ByteString,
    pub tool: ByteString,
    pub content: [u8; 32],
    pub role: Option<ByteString>,
    pub ttl_ms: u64,
    pub at: u64,
    pub request: Place,
}

impl TaskManifest {
    /// Nobody is shown it any more from then on.
    pub fn expires_at(&self) -> u64 {
        self.at.saturating_add(self.ttl_ms)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    end: End,
    reply_id: ByteString,
    reply: Place,
    at: u64,
}

#[derive(Debug, Default)]
struct Call {
    /// Absent where only the answer could be read: then any will do.
    content: Option<[u8; 32]>,
    start: Option<Arc<Start>>,
    /// This process began it.
    live: bool,
    task: Option<Arc<TaskManifest>>,
    answer: Option<Answer>,
    /// The id of an answer that is on its way to the disk.
    answering: Option<ByteString>,
    /// As what it was buried, should nothing else be known of it.
    buried: Option<Arc<Start>>,
    joined: Option<Arc<Joined>>,
    /// Forgotten together with this one.
    joiners: Vec<CallKey>,
    latest_join: u64,
    /// Under which time it is among those that have ended.
    listed: Option<u64>,
}

/// All calls of a host that are remembered, each once.
#[derive(Debug, Default)]
pub struct Book {
    limits: Limits,
    /// When this process began to read the journal.
    opened_at: u64,
    /// Boxed, so that the table is small: it is copied as a whole when it grows.
    calls: HashMap<CallKey, Box<Call>>,
    /// The latest call of an agent with that content, and when it began.
    latest: HashMap<(ByteString, [u8; 32]), (u64, CallKey)>,
    /// Tasks and dead letters by id.
    tasks: BTreeMap<(ByteString, ByteString), Arc<TaskManifest>>,
    letters: BTreeMap<(ByteString, ByteString), Arc<DeadLetterRow>>,
    ended: Ended,
    /// All the others.
    open: BTreeSet<CallKey>,
}

impl Book {
    /// `now`: what ended in an earlier process counts as ended now, for its caller could not ask meanwhile.
    pub fn new(limits: Limits, now: u64) -> Self {
        Self { limits, opened_at: now, ..Self::default() }
    }

    /// Looks a call up by its id; the same id has to mean the same call.
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
        if let Some(buried) = &root.buried {
            return Known::Buried(Arc::clone(root.start.as_ref().unwrap_or(buried)));
        }
        match (&root.start, &root.task, &call.joined) {
            (Some(start), ..) if root.live => Known::Running(Arc::clone(start)),
            (Some(start), ..) => Known::Interrupted(Arc::clone(start)),
            (None, Some(task), _) => Known::Waiting(Arc::clone(task)),
            // The entries of the call that it was joined to are lost.
            (None, None, Some(joined)) => Known::Interrupted(Arc::new(nameless(key, joined.content, joined.at))),
            (None, None, None) => Known::New,
        }
    }

    /// The answer to a call, its own or that of the call it was joined to, and the call that was really run.
    fn resolve<'a>(&'a self, mut call: &'a Call) -> (Option<&'a Answer>, &'a Call) {
        let mut answer = call.answer.as_ref();
        // A chain is as long as an agent crashed often; one that goes round was damaged.
        for _ in 0..MAX_CHAIN {
            let Some(next) = call.joined.as_ref().and_then(|joined| self.calls.get(&joined.to)) else { break };
            call = next;
            answer = answer.or(call.answer.as_ref());
        }
        (answer, call)
    }

    /// The call that was really run for this one, as far as it is known.
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

    /// What is known from the moment it is decided, before it is on disk: that a call begins, that a task was taken, that no
    /// other answer can be given, and that nobody wants a letter any more.
    pub fn announce(&mut self, entry: &Entry) {
        match entry {
            Entry::Start(start) => self.enter_start(start, true),
            Entry::Task(task) => self.enter_task(task, Place::Held(task.request.clone())),
            // A second call must not be joined to the same one meanwhile.
            Entry::Joined(joined) => self.note_latest(joined.key.detached(), joined.content, joined.at),
            Entry::Finish(finish) => {
                let call = self.calls.entry(finish.key.clone()).or_default();
                call.answering = Some(finish.reply_id.clone());
            }
            Entry::Dropped(key) => self.drop_letter(key),
            Entry::Dead(_) => {}
        }
    }

    /// Enters what this process has written. `place` is where it is in the log.
    pub fn enter(&mut self, entry: &Entry, place: Place) {
        self.apply(entry, place, true);
    }

    /// Enters what an earlier process wrote, or what was moved to another place.
    pub fn restore(&mut self, entry: &Entry, place: Place) {
        self.apply(entry, place, false);
    }

    fn apply(&mut self, entry: &Entry, place: Place, live: bool) {
        match entry {
            Entry::Start(start) => self.enter_start(start, live),
            Entry::Finish(finish) => self.enter_finish(finish, place, live),
            Entry::Joined(joined) => self.enter_joined(joined),
            Entry::Task(task) => {
                self.enter_task(task, place);
                let manifest = self.calls.get(&task.key).and_then(|call| call.task.clone());
                self.tasks.extend(manifest.map(|manifest| (by_id(&manifest.key), manifest)));
            }
            Entry::Dead(dead) => self.enter_dead(dead, place),
            Entry::Dropped(key) => self.drop_letter(key),
        }
    }

    fn enter_start(&mut self, start: &Arc<Start>, live: bool) {
        let is_known = |call: &Call| call.start.as_ref().is_some_and(|known| known.attempt >= start.attempt);
        if let Some(call) = self.calls.get_mut(&start.key).filter(|call| is_known(call)) {
            call.live |= live;
            return;
        }
        // What this process wrote owns its texts; what was read from a segment must not keep the segment in memory.
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

    fn enter_finish(&mut self, finish: &Finish, reply: Place, live: bool) {
        let own = |text: &ByteString| if live { text.clone() } else { detached(text) };
        let key = CallKey { caller: own(&finish.key.caller), id: own(&finish.key.id) };
        let call = self.calls.entry(key.clone()).or_default();
        let Finish { end, at, .. } = *finish;
        // The first is what a caller may have been told. Entries that were moved are read after later ones.
        let is_later = |first: &Answer| first.reply_id != finish.reply_id && (live || first.at <= at);
        if call.answer.as_ref().is_some_and(is_later) {
            return;
        }
        call.answering = None;
        call.answer = Some(Answer { end, reply_id: own(&finish.reply_id), reply, at });
        self.list_ended(&key);
    }

    /// A call has one answer. The same message may be written once more, with other content if nobody got the first.
    pub fn takes_answer(&self, finish: &Finish) -> bool {
        let Some(call) = self.calls.get(&finish.key) else { return true };
        let given = call.answer.as_ref().map(|answer| &answer.reply_id).or(call.answering.as_ref());
        given.is_none_or(|reply_id| *reply_id == finish.reply_id)
    }

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

    fn enter_task(&mut self, task: &Task, request: Place) {
        let (key, server, tool) = (task.key.detached(), detached(&task.server), detached(&task.tool));
        let Task { content, ttl_ms, at, .. } = *task;
        let role = task.role.as_ref().map(detached);
        let manifest = Arc::new(TaskManifest { key: key.clone(), server, tool, content, role, ttl_ms, at, request });
        let call = self.calls.entry(key.clone()).or_default();
        call.content = Some(content);
        call.task = Some(Arc::clone(&manifest));
        // Its START may have been read before it.
        if self.latest.get(&by_content(&key, content)).is_some_and(|(_, latest)| *latest == key) {
            self.latest.remove(&by_content(&key, content));
        }
        self.list_ended(&key);
    }

    fn enter_dead(&mut self, dead: &Dead, request: Place) {
        let letter = Arc::new(DeadLetterRow::new(dead, request));
        let (server, tool) = (letter.server.clone(), letter.tool.clone());
        let call = self.calls.entry(letter.key.clone()).or_default();
        let start = Start { server, tool, attempt: dead.attempts, ..nameless(&letter.key, [0; 32], dead.at) };
        call.buried = Some(Arc::new(start));
        self.list_ended(&letter.key);
        self.letters.insert(by_id(&letter.key), letter);
    }

    fn drop_letter(&mut self, key: &CallKey) {
        self.letters.remove(&by_id(key));
        // Nothing but the letter may have been left of it.
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

    pub fn len(&self) -> usize {
        self.calls.len()
    }

    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

const MAX_CHAIN: usize = 256;

fn by_id(key: &CallKey) -> (ByteString, ByteString) {
    (key.id.clone(), key.caller.clone())
}

fn by_content(key: &CallKey, content: [u8; 32]) -> (ByteString, [u8; 32]) {
    (key.caller.slice_ref(key.agent()), content)
}

/// The id of the message that carries the answer. Two calls that were joined to one can be of the same mailbox, where one id
/// stands for one message.
fn reply_id(key: &CallKey, call: &Call, answer: &Answer) -> ByteString {
    match call.answer {
        Some(_) => answer.reply_id.clone(),
        None => ByteString::from(format!("{}.{}", answer.reply_id, key.id)),
    }
}

/// A beginning of which only the id is known.
fn nameless(key: &CallKey, content: [u8; 32], at: u64) -> Start {
    let (server, tool) = (ByteString::new(), ByteString::new());
    Start { key: key.clone(), server, tool, content, attempt: 1, at, safe: false }
}
