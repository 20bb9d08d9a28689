//! What is written down.

use bytes::Bytes;
use bytestring::ByteString;
use std::sync::Arc;

/// A call on the bus: its id is unique among those of one sender.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallKey {
    /// The mailbox that it came from.
    pub caller: ByteString,
    pub id: ByteString,
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
}

/// A call has been answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    pub key: CallKey,
    pub reply: Bytes,
    pub at: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Start(Arc<Start>),
    Finish(Finish),
    /// The caller has its answer and won't ask again.
    Collected(CallKey),
}

impl Entry {
    pub fn key(&self) -> &CallKey {
        match self {
            Self::Start(start) => &start.key,
            Self::Finish(finish) => &finish.key,
            Self::Collected(key) => key,
        }
    }
}
