//! The entries of the journal.

use bytes::Bytes;
use bytestring::ByteString;
use std::sync::Arc;

/// Identifies a call on the bus. The id is unique per sending mailbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallKey {
    /// The mailbox that sent the call.
    pub caller: ByteString,
    /// The message id of the call.
    pub id: ByteString,
}

impl CallKey {
    /// The calling agent: the mailbox name without the suffix that distinguishes processes of one agent.
    pub fn agent(&self) -> &str {
        agent(&self.caller)
    }

    /// The calling agent, as a part of the caller's text.
    pub fn agent_name(&self) -> ByteString {
        self.caller.slice_ref(self.agent())
    }

    fn weight(&self) -> usize {
        self.caller.len() + self.id.len()
    }

    /// Copies the texts, so that the key does not keep the buffer of a message or segment in memory.
    pub(crate) fn detached(&self) -> Self {
        Self { caller: detached(&self.caller), id: detached(&self.id) }
    }
}

/// The agent of a mailbox.
pub fn agent(mailbox: &str) -> &str {
    mailbox.split_once('#').map_or(mailbox, |(agent, _)| agent)
}

pub(crate) fn detached(text: &ByteString) -> ByteString {
    ByteString::from(&**text)
}

/// START: an attempt of a call is about to be sent to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The call.
    pub key: CallKey,
    /// The MCP server.
    pub server: ByteString,
    /// The tool.
    pub tool: ByteString,
    /// Hash of tool and arguments. The same id with another hash is rejected.
    pub content: [u8; 32],
    /// The number of the attempt, from 1. Only replay-safe calls have more than one.
    pub attempt: u32,
    /// When the attempt started, in milliseconds since 1970.
    pub at: u64,
    /// The call is replay-safe, so it does not wait for this entry to be durable.
    pub safe: bool,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// The server returned a result.
    Done,
    /// The call failed.
    Failed,
    /// The call was cancelled.
    Cancelled,
    /// Outcome unknown: the call was started and its result is not known.
    Unknown,
}

/// RESULT: the final answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// The call.
    pub key: CallKey,
    /// The id of the message that carries the answer, the same each time it is sent.
    pub reply_id: ByteString,
    /// The body of the answer.
    pub reply: Bytes,
    /// How the call ended.
    pub end: End,
    /// When the call was answered, in milliseconds since 1970.
    pub at: u64,
}

/// A call was joined to an earlier equal call and shares its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The call.
    pub key: CallKey,
    /// The earlier call.
    pub to: CallKey,
    /// Hash of tool and arguments.
    pub content: [u8; 32],
    /// When the call was joined, in milliseconds since 1970.
    pub at: u64,
}

/// A call was accepted as a task, which runs independently of its caller's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The call.
    pub key: CallKey,
    /// The MCP server.
    pub server: ByteString,
    /// The tool.
    pub tool: ByteString,
    /// Hash of tool and arguments.
    pub content: [u8; 32],
    /// The body of the request message, from which the task is run after a restart.
    pub request: Bytes,
    /// The caller's role.
    pub role: Option<ByteString>,
    /// Lifetime in milliseconds from acceptance.
    pub ttl_ms: u64,
    /// When the task was accepted, in milliseconds since 1970.
    pub at: u64,
}

/// A call was dead-lettered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dead {
    /// The call.
    pub key: CallKey,
    /// The MCP server.
    pub server: ByteString,
    /// The tool.
    pub tool: ByteString,
    /// The body of the request message.
    pub request: Bytes,
    /// The caller's role.
    pub role: Option<ByteString>,
    /// How often the call was started.
    pub attempts: u32,
    /// The history of the attempts, one line each.
    pub story: Vec<String>,
    /// When the call was dead-lettered, in milliseconds since 1970.
    pub at: u64,
}

/// An entry of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// An attempt of a call starts.
    Start(Arc<Start>),
    /// A call is answered.
    Finish(Finish),
    /// A call is joined to an earlier one.
    Joined(Joined),
    /// A task is accepted.
    Task(Task),
    /// A call is dead-lettered.
    Dead(Dead),
    /// A dead letter is dropped.
    Dropped(CallKey),
}

impl Entry {
    /// The call that the entry belongs to.
    pub fn key(&self) -> &CallKey {
        match self {
            Self::Start(start) => &start.key,
            Self::Finish(finish) => &finish.key,
            Self::Joined(joined) => &joined.key,
            Self::Task(task) => &task.key,
            Self::Dead(dead) => &dead.key,
            Self::Dropped(key) => key,
        }
    }

    /// The timestamp of the entry in milliseconds since 1970; 0 for [`Entry::Dropped`].
    pub fn at(&self) -> u64 {
        match self {
            Self::Start(start) => start.at,
            Self::Finish(finish) => finish.at,
            Self::Joined(joined) => joined.at,
            Self::Task(task) => task.at,
            Self::Dead(dead) => dead.at,
            Self::Dropped(_) => 0,
        }
    }

    /// Upper bound of the size of the entry's payload in bytes.
    pub fn weight(&self) -> usize {
        let names = |server: &ByteString, tool: &ByteString| server.len() + tool.len();
        let role = |role: &Option<ByteString>| role.as_ref().map_or(0, |role| role.len());
        let story = |story: &[String]| story.iter().map(|line| line.len() + 8).sum::<usize>();
        let carried = match self {
            Self::Start(start) => names(&start.server, &start.tool),
            Self::Finish(finish) => finish.reply_id.len() + finish.reply.len(),
            Self::Joined(joined) => joined.to.weight(),
            Self::Task(task) => names(&task.server, &task.tool) + role(&task.role) + task.request.len(),
            Self::Dead(dead) => {
                names(&dead.server, &dead.tool) + role(&dead.role) + dead.request.len() + story(&dead.story)
            }
            Self::Dropped(_) => 0,
        };
        carried + self.key().weight() + 256
    }
}
