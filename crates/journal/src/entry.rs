//! What is written down.

use bytes::Bytes;
use bytestring::ByteString;
use std::sync::Arc;

/// A call on the bus: its id is unique among those of one sender.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallKey {
    /// The mailbox that it came from.
    pub caller: ByteString,
    pub id: ByteString,
}

impl CallKey {
    /// Whose call it is: the mailbox without what tells apart the processes of one agent.
    pub fn agent(&self) -> &str {
        self.caller.split_once('#').map_or(&*self.caller, |(agent, _)| agent)
    }

    fn weight(&self) -> usize {
        self.caller.len() + self.id.len()
    }

    /// With bytes of its own, so that it keeps no message or segment in memory that it was read from.
    pub(crate) fn detached(&self) -> Self {
        Self { caller: detached(&self.caller), id: detached(&self.id) }
    }
}

pub(crate) fn detached(text: &ByteString) -> ByteString {
    ByteString::from(&**text)
}

/// A call is about to reach its tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    pub key: CallKey,
    pub server: ByteString,
    pub tool: ByteString,
    /// A hash of tool and arguments: the same id with other ones is another call.
    pub content: [u8; 32],
    /// 1 for the first time; more where it is run again on purpose.
    pub attempt: u32,
    /// Milliseconds since 1970, to be shown to people.
    pub at: u64,
    /// It may be run again, so nobody waits for this entry to be durable.
    pub safe: bool,
}

impl Start {
    pub(crate) fn detached(&self) -> Self {
        Self { key: self.key.detached(), server: detached(&self.server), tool: detached(&self.tool), ..*self }
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    Done,
    Failed,
    Cancelled,
    /// Nobody knows whether it had its effect.
    Unknown,
}

/// A call has been answered, for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    pub key: CallKey,
    /// The id of the message that carries the answer: the same whenever it is sent again.
    pub reply_id: ByteString,
    pub reply: Bytes,
    pub end: End,
    pub at: u64,
}

/// A call is answered by what an earlier one is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    pub key: CallKey,
    pub to: CallKey,
    pub content: [u8; 32],
    pub at: u64,
}

/// A call that goes on by itself, whoever is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    pub key: CallKey,
    pub server: ByteString,
    pub tool: ByteString,
    pub content: [u8; 32],
    /// The body of the message, to run it from.
    pub request: Bytes,
    pub role: Option<ByteString>,
    pub ttl_ms: u64,
    pub at: u64,
}

/// A call that is not tried any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dead {
    pub key: CallKey,
    pub server: ByteString,
    pub tool: ByteString,
    pub request: Bytes,
    pub role: Option<ByteString>,
    pub attempts: u32,
    /// What happened to it, a line each.
    pub story: Vec<String>,
    pub at: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Start(Arc<Start>),
    Finish(Finish),
    Joined(Joined),
    Task(Task),
    Dead(Dead),
    /// A dead letter is not kept any more.
    Dropped(CallKey),
}

impl Entry {
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

    /// When it was made. What is dropped has no time of its own.
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

    /// About how many bytes it takes, and never less than its record has.
    pub(crate) fn weight(&self) -> usize {
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
