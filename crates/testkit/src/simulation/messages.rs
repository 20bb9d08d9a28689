//! The model's record of one sent message: the facts that sender and reader know, which are the same for all
//! retransmissions, and the state that the broker must have for it now.

use bytes::Bytes;
use bytestring::ByteString;
use toolbus_engine::{Millis, Seq};

/// Index of a message over all senders. The broker never sees it.
pub type MessageNo = usize;

/// How a message was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    Acked,
    /// By the `ack` of that reply, which has to be durable first.
    Answered(MessageNo),
    Expired,
    /// Withdrawn by its sender.
    Cancelled,
    /// Moved to the dead letters, as that message.
    DeadLettered(MessageNo),
    /// In an earlier run of the broker, which remembers only the id.
    BeforeRestart,
}

/// State of a message from its sender's point of view.
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
    /// Its position among the messages of its sender.
    pub order: u64,
    /// It was refused or dropped at some point, so it may arrive after its successors.
    pub order_lost: bool,

    /// The broker knows the id; the message is pending while `settled` is `None`.
    pub known: bool,
    pub settled: Option<Settlement>,
    /// How often the broker accepted the id as new. More than once only if it forgot the id in between.
    pub incarnations: u32,
    /// When the current incarnation was accepted.
    pub incarnation_start: Millis,
    /// All times at which it was, or may have been, accepted as new.
    pub accepted_at: Vec<Millis>,
    pub expires_at: Option<Millis>,
    pub seq: Option<Seq>,
    pub record_durable: bool,
    pub settlement_durable: bool,
    /// The broker sent a receipt, which may not have reached the sender.
    pub receipted: bool,
    pub confirmed: bool,
    pub pushed: bool,
    /// Pushed since the broker accepted it as new.
    pub pushed_since_accepted: bool,
    /// The broker reported that it was withdrawn before it was ever pushed.
    pub withdrawn: bool,
    /// Cancelled while in flight: not pushed to another subscription until the broker restarts.
    pub cancelled_in_flight: bool,
    /// Cancelled in this incarnation or an earlier one.
    pub cancelled_once: bool,
    /// Its reader received it.
    pub seen: bool,
    /// The message of which this one is the dead letter.
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
            order_lost: false,
            known: false,
            settled: None,
            incarnations: 0,
            incarnation_start: 0,
            accepted_at: Vec::new(),
            expires_at: None,
            seq: None,
            record_durable: false,
            settlement_durable: false,
            receipted: false,
            confirmed: false,
            pushed: false,
            pushed_since_accepted: false,
            withdrawn: false,
            cancelled_in_flight: false,
            cancelled_once: false,
            seen: false,
            origin: None,
            dead_copy: None,
        }
    }

    /// The size that the broker accounts for.
    pub fn size(&self) -> u64 {
        self.sealed.len() as u64 + 64
    }

    pub fn pending(&self) -> bool {
        self.known && self.settled.is_none()
    }

    /// Whether this incarnation or an earlier one expired.
    pub fn expired_once(&self, now: Millis) -> bool {
        self.deadline_ms.is_some_and(|ms| self.accepted_at.iter().any(|at| at + ms <= now))
    }

    pub fn expired(&self, now: Millis) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}
