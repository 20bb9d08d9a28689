//! Cancels and live events, and their bounded queues: when one is full, its oldest entry is dropped.

use bytestring::ByteString;
use std::collections::VecDeque;
use toolbus_protocol::{Body, MsgId};

const MAX_SIGNALS: usize = 1024;

/// A live event of a call, for example progress or a log line.
#[derive(Debug, Clone)]
pub struct LiveEvent {
    /// The agent that sent it.
    pub from: ByteString,
    /// The id of the call.
    pub correlation_id: MsgId,
    /// The content.
    pub body: Body,
}

/// The cancellation of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cancellation {
    /// The id of the message.
    pub id: MsgId,
    /// The mailbox that sent the message. `None` if the broker does not know it, or is an older one.
    pub from: Option<ByteString>,
}

pub fn push_bounded<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() >= MAX_SIGNALS {
        queue.pop_front();
    }
    queue.push_back(item);
}
