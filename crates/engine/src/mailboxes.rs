//! The interface between connections and mailboxes. A connection attaches, submits commands and receives all answers
//! through its outbox; it does not depend on whether one process or a cluster keeps the mailboxes.

use crate::{
    AgentEnd, CancelOutcome, ConnId, Follow, FollowView, Inspect, InspectView, JournalClaim, Message, Purpose, Refusal,
    Rights, Seq, StatusView,
};
use bytes::Bytes;
use bytestring::ByteString;
use std::sync::Arc;

/// The outgoing queue of a connection. Implementations must not block.
pub trait Outbox: Send + Sync {
    /// Appends frames in order. Called once per step with all frames that the step produced for this connection.
    fn deliver(&self, outgoing: &mut Vec<Outgoing>);
}

/// Durable mailboxes. Methods return without waiting for the disk; answers arrive in the outbox.
pub trait Mailboxes: Send + Sync + 'static {
    /// Registers a connection.
    fn attach(&self, peer: Peer, outbox: Arc<dyn Outbox>) -> ConnId;

    /// Carries out the commands in order and leaves the list empty.
    fn submit(&self, conn: ConnId, commands: &mut Vec<Command>);

    /// Removes a connection.
    fn detach(&self, conn: ConnId);

    /// Backpressure: whether connections should stop reading until the disk has caught up.
    fn congested(&self) -> bool;
}

/// The authenticated peer of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Name of the peer's mailbox.
    pub name: ByteString,
    /// Role of the peer, if it has one.
    pub role: Option<ByteString>,
    /// Whether the peer understands numbered receipts, and a reply as the receipt of its request.
    pub numbered_receipts: bool,
    /// What the peer's credential permits.
    pub rights: Rights,
    /// Tells the agent from others that had its name; 0 if its credential is not registered.
    pub incarnation: u64,
}

/// A request from a connection.
#[derive(Debug, Clone)]
pub enum Command {
    /// The peer is a host that records the calls of its mailbox in this journal. Compared with the last claim of the mailbox
    /// by the shell, which sets a fence ([`crate::Engine::fence`]).
    Claim {
        /// The journal.
        claim: Box<JournalClaim>,
    },
    /// Push the peer's mailbox to this connection. After a claim, once that is durable and still the last one.
    Subscribe,
    /// The host has refused these pushed requests, answered by [`Outgoing::RefusedSenders`].
    RefusedRequests {
        /// Sequence numbers of the messages.
        tags: Vec<Seq>,
    },
    /// Store a message for another mailbox.
    Deliver(Delivery),
    /// The next [`Command::Deliver`] of this connection has this number, because those before it went to other partitions.
    Numbered {
        /// The number.
        next: u64,
    },
    /// Acknowledge a message in the peer's mailbox by id.
    Ack {
        /// Id of the message.
        id: ByteString,
    },
    /// Acknowledge pushed messages by tag.
    AckTags {
        /// Sequence numbers of the messages.
        tags: Vec<Seq>,
    },
    /// The connection has written these pushed messages of the peer's mailbox to its socket, for peers of version 1.
    Passed {
        /// Sequence numbers of the messages.
        tags: Vec<Seq>,
    },
    /// Acknowledge by id, answered by [`Outgoing::AckResult`] once the acknowledgement is durable.
    AckWithReceipt {
        /// Id of the message.
        id: ByteString,
        /// Id of this request.
        request_id: ByteString,
    },
    /// Withdraw a message, and ask the subscriber of its mailbox to stop working on it.
    Cancel {
        /// Mailbox of the message.
        to: ByteString,
        /// Id of the message.
        correlation_id: ByteString,
        /// Id of this request; with it, the answer is [`Outgoing::CancelResult`].
        request_id: Option<ByteString>,
    },
    /// List the subscribed peers of a role.
    ListConnected {
        /// The role.
        role: ByteString,
    },
    /// Send a live event to the subscriber of a mailbox; it is never stored.
    Event {
        /// Mailbox of the recipient.
        to: ByteString,
        /// Id of the message that the event belongs to.
        correlation_id: ByteString,
        /// Body of the event.
        body: Bytes,
        /// Whether the body is a batch of events of the original.
        batch: bool,
    },
    /// List connections and mailboxes.
    Status {
        /// Id of this request.
        request_id: ByteString,
    },
    /// Query single peers, messages or one mailbox.
    Inspect {
        /// Id of this request.
        request_id: ByteString,
        /// The query.
        inspect: Box<Inspect>,
    },
    /// Report the state of peers and messages, now and after every change.
    Follow {
        /// Id of this request.
        request_id: ByteString,
        /// The peers and messages.
        follow: Box<Follow>,
    },
    /// End a follow.
    Unfollow {
        /// Id of the follow.
        request_id: ByteString,
    },
    /// Treat the peer as a host from now on: its push window is wider. Sent when it announces manifests.
    ActAsHost,
    /// Dead-letter a pushed message that can't be encoded for this peer.
    Unreadable {
        /// The pushed message.
        message: Arc<Message>,
    },
}

/// A message as its sender submits it.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Mailbox of the recipient.
    pub to: ByteString,
    /// Id of the message: its idempotency key within the mailbox.
    pub id: ByteString,
    /// Id of the message that this one answers or belongs to.
    pub correlation_id: Option<ByteString>,
    /// Purpose, from which the required right follows.
    pub purpose: Purpose,
    /// The sealed envelope.
    pub sealed: Bytes,
    /// Content hash: a duplicate of the id must have the same one.
    pub content: u64,
    /// Time to live in milliseconds, from acceptance.
    pub deadline_ms: Option<u64>,
    /// Tag of a pushed message that this one settles.
    pub ack: Option<Seq>,
    /// Time in milliseconds since the sender sent the message first, if this is a repetition.
    pub age_ms: Option<u64>,
}

/// A frame for one connection.
#[derive(Debug, Clone)]
pub enum Outgoing {
    /// A message from the peer's mailbox.
    Message {
        /// The message.
        message: Arc<Message>,
        /// 1 for the first push.
        attempt: u32,
        /// Remaining time to live.
        deadline_ms: Option<u64>,
    },
    /// The message that follows may have been started by an earlier subscriber with another journal: see
    /// [`crate::Engine::fence`].
    Unsure {
        /// Id of the message.
        id: ByteString,
    },
    /// To hosts: these agents have ended; see [`crate::Engine::end_generation`]. Later messages belong to the generations
    /// named here.
    AgentsEnded {
        /// The agents.
        agents: Vec<AgentEnd>,
    },
    /// The message of a deliver is durable, or was acknowledged before it had to be.
    Receipt {
        /// Number of the deliver on this connection.
        number: u64,
        /// Id of the message.
        id: ByteString,
    },
    /// A command was refused, or a message was discarded after it was accepted.
    Refused {
        /// The reason.
        refusal: Refusal,
        /// Id of the message or request, if the refusal concerns one.
        id: Option<ByteString>,
    },
    /// Answer to [`Command::AckWithReceipt`].
    AckResult {
        /// Id of the message.
        id: ByteString,
        /// Id of the request.
        request_id: ByteString,
        /// The reason, if the acknowledgement was refused.
        refusal: Option<Refusal>,
    },
    /// The sender of a message cancelled it.
    Cancel {
        /// Id of the message.
        correlation_id: ByteString,
        /// The mailbox that sent the message, if it is known: an id alone may mean a message of another sender.
        from: Option<ByteString>,
    },
    /// Answer to [`Command::Cancel`] with a request id.
    CancelResult {
        /// Id of the request.
        request_id: ByteString,
        /// Id of the message.
        correlation_id: ByteString,
        /// The state of the message.
        outcome: CancelOutcome,
    },
    /// Answer to [`Command::ListConnected`].
    Connected {
        /// Mailbox names in sorted order.
        ids: Vec<Arc<str>>,
    },
    /// Answer to [`Command::RefusedRequests`]: one name per request. For the connection itself, not for its peer.
    RefusedSenders {
        /// Names of the senders' mailboxes.
        senders: Vec<Arc<str>>,
    },
    /// The partition that the peer's commands went to has another owner, or the peer is not known there yet: the connection
    /// has to end, so that the peer connects and sends again what was not confirmed. For the connection itself.
    Moved,
    /// A live event.
    Event {
        /// Name of the sender.
        from: Arc<str>,
        /// Id of the message that the event belongs to.
        correlation_id: ByteString,
        /// Body of the event.
        body: Bytes,
        /// Whether the body is a batch of events of the original.
        batch: bool,
    },
    /// Answer to [`Command::Status`].
    Status {
        /// Id of the request.
        request_id: ByteString,
        /// The answer.
        view: Box<StatusView>,
    },
    /// Answer to [`Command::Inspect`].
    Inspected {
        /// Id of the request.
        request_id: ByteString,
        /// The answer.
        view: Box<InspectView>,
    },
    /// Answer to [`Command::Follow`], and notification of a change. A later one replaces it.
    Followed {
        /// Id of the follow.
        request_id: ByteString,
        /// The current state.
        view: Box<FollowView>,
    },
}
