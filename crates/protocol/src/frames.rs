//! The frames, independent of their encoding.

pub use crate::handshake::{Framing, Hello, Limits, Welcome};
use crate::{
    AgentEnd, AgentRef, Body, CancelResult, Envelope, ErrorCode, Follow, Followed, Inspect, Inspected, JournalClaim,
};
use bytestring::ByteString;

/// A frame from a client to the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientFrame {
    /// Authenticates the client; the first frame.
    Hello(Hello),
    /// Subscribes to the client's own mailbox.
    Subscribe,
    /// Delivers a message to a mailbox.
    Deliver(Deliver),
    /// Acknowledges a message.
    Ack {
        /// Id of the message.
        id: ByteString,
    },
    /// Acknowledges pushed messages by the tags of their `message` frames (version 2).
    AckTags {
        /// The tags.
        tags: Vec<u64>,
    },
    /// Acknowledges a message, answered by `ack_result`.
    AckWithReceipt {
        /// Id of the message.
        id: ByteString,
        /// Id of this request.
        request_id: ByteString,
    },
    /// Withdraws a message, and asks the recipient to stop working on it.
    Cancel {
        /// Mailbox of the message.
        to: ByteString,
        /// Id of the message.
        correlation_id: ByteString,
        /// Id of this request; with it, the broker answers with `cancel_result`.
        request_id: Option<ByteString>,
    },
    /// Lists the subscribed agents of a role.
    ListConnected {
        /// The role.
        role: ByteString,
    },
    /// Sends a live event: ordered, bounded, lossy, never stored (version 2).
    Event(Event),
    /// Sends a batch of live events of the original; the body is the batch.
    EventBatch(Event),
    /// Requests the connections and mailboxes of the broker (version 2).
    Status {
        /// Id of this request.
        request_id: ByteString,
    },
    /// Queries single peers, messages or one mailbox (version 2).
    Inspect(Inspect),
    /// Requests notifications about peers and messages (version 2).
    Follow(Follow),
    /// Ends a follow (version 2).
    Unfollow {
        /// Id of the `follow`.
        request_id: ByteString,
    },
    /// Announces the manifests of a host and replaces earlier ones (version 2).
    Announce(Announce),
    /// Requests the hosts and their manifests (version 2).
    Hosts(AskHosts),
    /// Names the journal behind a host's mailbox; sent before `subscribe` (version 2).
    Claim(JournalClaim),
    /// Reports that a host refused requests of its mailbox; sent before they are acknowledged (version 2).
    Refused {
        /// The tags of the requests.
        tags: Vec<u64>,
    },
    /// A frame of a later version; ignored after the handshake.
    Unknown {
        /// Its `kind` on the wire.
        kind: String,
    },
}

/// The `deliver` frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deliver {
    /// Mailbox of the recipient.
    pub to: ByteString,
    /// The message.
    pub envelope: Envelope,
    /// Time to live of the message, from its arrival at the broker.
    pub deadline_ms: Option<u64>,
    /// Tag of a pushed message that this one settles. Both become durable atomically.
    pub ack: Option<u64>,
    /// Time since the message was first sent, if it was sent on an earlier connection and may have reached its recipient.
    pub age_ms: Option<u64>,
}

/// A live event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The recipient if sent by a client, the sender if sent by the broker.
    pub peer: ByteString,
    /// Id of the message that the event belongs to.
    pub correlation_id: ByteString,
    /// The body.
    pub body: Body,
}

/// A frame from the broker to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerFrame {
    /// Accepts the handshake.
    Welcome(Welcome),
    /// Identifies the store behind the broker; follows `welcome`.
    BrokerIdentity {
        /// Id of the store, the same across restarts.
        id: ByteString,
    },
    /// Reports an error.
    Error(Refusal),
    /// Pushes a message from the client's mailbox.
    Message(Push),
    /// Receipt of a message (version 1).
    Delivered {
        /// Id of the message.
        id: ByteString,
    },
    /// Receipts by the number of the `deliver` on this connection (version 2).
    Receipts {
        /// Inclusive ranges of numbers.
        ranges: Vec<(u64, u64)>,
    },
    /// Answer to `ack_with_receipt`.
    AckResult(AckResult),
    /// The sender of a message cancelled it.
    Cancel {
        /// Id of the message.
        correlation_id: ByteString,
        /// The mailbox that sent the message. `None` if the broker does not know it, or is an older one.
        from: Option<ByteString>,
    },
    /// Answer to `cancel` with a `request_id` (version 2).
    CancelResult(CancelResult),
    /// Answer to `list_connected`.
    Connected {
        /// Names of the agents' mailboxes.
        ids: Vec<ByteString>,
    },
    /// A live event (version 2).
    Event(Event),
    /// A batch of live events, to clients of version 1.
    EventBatch {
        /// Id of the message that the events belong to.
        correlation_id: ByteString,
        /// The batch, with the sequence numbers of its events.
        batch: Body,
    },
    /// Answer to `status` (version 2).
    Status(Status),
    /// Answer to `inspect` (version 2).
    Inspected(Inspected),
    /// Answer to `follow`, and notification of a change (version 2).
    Followed(Followed),
    /// Answer to `announce` (version 2).
    Announced(Announced),
    /// Answer to `hosts` (version 2).
    Hosts(Hosts),
    /// The hosts changed since the last answer to a client that watches them (version 2).
    HostsChanged,
    /// The message of that id, which follows, may have been started by a host with another journal (version 2).
    Unsure {
        /// Id of the message.
        id: ByteString,
    },
    /// To hosts: credentials of these agents were revoked or have expired (version 2).
    AgentsEnded {
        /// The agents.
        agents: Vec<AgentEnd>,
    },
    /// A frame of a later version.
    Unknown {
        /// Its `kind` on the wire.
        kind: String,
    },
}

/// The `error` frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// A sentence for humans.
    pub reason: String,
    /// Id of the refused message, or of the refused `status`, `inspect` or `follow` request.
    pub id: Option<ByteString>,
    /// The code, if the broker sent one that this version knows.
    pub code: Option<ErrorCode>,
}

/// The `message` frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// Identifies this delivery in `ack_tags`; original brokers send none.
    pub tag: Option<u64>,
    /// 1 for the first delivery, more for a redelivery.
    pub attempt: u32,
    /// The sender, as authenticated by the broker.
    pub from: AgentRef,
    /// Remaining time to live.
    pub deadline_ms: Option<u64>,
    /// The message.
    pub envelope: Envelope,
}

/// The `ack_result` frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckResult {
    /// Id of the message.
    pub id: ByteString,
    /// Id of the request.
    pub request_id: ByteString,
    /// Whether the acknowledgement is durable; false if it was refused.
    pub accepted: bool,
    /// Why it was refused.
    pub reason: Option<String>,
}

/// The `status` frame of the broker, as `toolbus ps` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// Id of the request.
    pub request_id: ByteString,
    /// Connections, up to a limit.
    pub connections: Vec<Connection>,
    /// Mailboxes, up to a limit.
    pub mailboxes: Vec<MailboxStatus>,
    /// Number of mailboxes omitted because of the limit.
    pub more_mailboxes: u64,
    /// Number of corrupt messages found since the broker started.
    pub set_aside: u64,
}

/// A connection in [`Status`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// The connected agent.
    pub agent: AgentRef,
    /// Whether its mailbox is pushed to this connection.
    pub subscribed: bool,
    /// Time since the connection was established.
    pub connected_ms: u64,
}

/// A mailbox in [`Status`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailboxStatus {
    /// Name of the mailbox.
    pub name: ByteString,
    /// Number of pending messages.
    pub messages: u64,
    /// Size of pending messages.
    pub bytes: u64,
    /// Number of messages that are pushed and not acknowledged.
    pub in_flight: u64,
    /// Age of the oldest message, as far as known without reading the disk.
    pub oldest_ms: Option<u64>,
}

/// The `announce` frame: replaces all manifests of the agent. An agent without manifests is not a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announce {
    /// Id of this request.
    pub request_id: ByteString,
    /// At most one manifest per role.
    pub manifests: Vec<RoleManifest>,
}

/// The manifest of a host for one role. Opaque to the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleManifest {
    /// The role; `None` for all roles without a manifest of their own.
    pub role: Option<ByteString>,
    /// The manifest.
    pub manifest: Body,
}

/// The `announced` frame: the manifests are durable, or were refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    /// Id of the request.
    pub request_id: ByteString,
    /// Why the manifests were refused; `None` if they are durable.
    pub reason: Option<String>,
    /// Code of the refusal.
    pub code: Option<ErrorCode>,
}

/// The `hosts` frame of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskHosts {
    /// Id of this request.
    pub request_id: ByteString,
    /// Whether to send `hosts_changed` from now on.
    pub watch: bool,
    /// Manifest versions that the client has, by host: these manifests are not sent again.
    pub known: Vec<(ByteString, u64)>,
}

/// The `hosts` frame of the broker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hosts {
    /// Id of the request.
    pub request_id: ByteString,
    /// The hosts that have a manifest for the client's role.
    pub hosts: Vec<HostEntry>,
}

/// A host, with its manifest for the role of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEntry {
    /// Name of the host.
    pub id: ByteString,
    /// Whether the host is connected.
    pub online: bool,
    /// Time since the host went online or offline.
    pub since_ms: u64,
    /// Version of the manifest's content.
    pub version: u64,
    /// Omitted if the client knows the version, or if the frame would be too large: then repeat the request with the
    /// versions received so far.
    pub manifest: Option<Body>,
}
