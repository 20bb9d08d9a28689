//! A message is a message as its sender and its reader know it: one message has one content, however often it is sent,
//! pushed or lost on the way. Beside it stands what the broker must know of it at this moment.

use bytes::Bytes;
use bytestring::ByteString;
use toolbus_engine::{Millis, Seq};

/// Numbers messages over all senders: the application's own numbering, which the broker never sees.
pub type MessageNo = usize;

/// How a message came off the broker's books.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Acked,
    /// By an acknowledgement folded into that message, which has to be safe first.
    Answered(MessageNo),
    Expired,
    /// Taken back by its sender.
    Cancelled,
    /// Moved to the dead letters, as that message.
    Dead(MessageNo),
    BeforeRestart,
}

/// Where the sender stands with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Outstanding,
    Receipted,
    Refused,
    GivenUp,
}

#[derive(Debug, Clone)]
pub struct SentMessage {
    pub from: usize,
    pub mailbox: ByteString,
    pub id: ByteString,
    pub correlation_id: Option<ByteString>,
    pub sealed: Bytes,
    pub content: u64,
    pub deadline_ms: Option<u64>,
    pub answers: Option<MessageNo>,
    pub phase: Phase,
    /// Its place among the messages of its sender.
    pub order: u64,
    /// It was refused at some point, so it may come after its successors.
    pub lost_its_place: bool,

    /// The broker knows the id: as pending while `settled` is none.
    pub known: bool,
    pub settled: Option<How>,
    /// How often it was taken in anew.
    pub lives: u32,
    /// When this life began.
    pub born: Millis,
    /// When it was, or may have been, taken in anew.
    pub accepted_at: Vec<Millis>,
    pub expires_at: Option<Millis>,
    pub seq: Option<Seq>,
    pub record_durable: bool,
    pub settlement_durable: bool,
    /// The broker sent a receipt, which the sender need not have got.
    pub receipted: bool,
    pub confirmed: bool,
    pub pushed: bool,
    /// Cancelled while it was in flight: it goes to nobody else while the broker runs.
    pub taken_back: bool,
    /// Taken back in this life or an earlier one.
    pub cancelled_once: bool,
    /// Its reader got it.
    pub seen: bool,
    /// The message that this one is the dead copy of.
    pub origin: Option<MessageNo>,
    pub dead_copy: Option<MessageNo>,
}

impl SentMessage {
    pub fn new(from: usize, mailbox: ByteString, id: ByteString, sealed: Bytes) -> Self {
        Self {
            from,
            mailbox,
            id,
            correlation_id: None,
            content: sealed.iter().fold(sealed.len() as u64, |hash, byte| hash.rotate_left(7) ^ u64::from(*byte)),
            sealed,
            deadline_ms: None,
            answers: None,
            phase: Phase::Outstanding,
            order: 0,
            lost_its_place: false,
            known: false,
            settled: None,
            lives: 0,
            born: 0,
            accepted_at: Vec::new(),
            expires_at: None,
            seq: None,
            record_durable: false,
            settlement_durable: false,
            receipted: false,
            confirmed: false,
            pushed: false,
            taken_back: false,
            cancelled_once: false,
            seen: false,
            origin: None,
            dead_copy: None,
        }
    }

    /// What the broker counts it for.
    pub fn size(&self) -> u64 {
        self.sealed.len() as u64 + 64
    }

    pub fn pending(&self) -> bool {
        self.known && self.settled.is_none()
    }

    /// In this life or an earlier one.
    pub fn expired_once(&self, now: Millis) -> bool {
        self.deadline_ms.is_some_and(|ms| self.accepted_at.iter().any(|at| at + ms <= now))
    }

    pub fn expired(&self, now: Millis) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}
