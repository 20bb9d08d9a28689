//! The frames, independent of how they are written down.

use crate::{AgentRef, Body, Envelope, ErrorCode, Inspect, Inspected};
use bytestring::ByteString;
use std::fmt;

/// How frames are written after the handshake. The handshake itself is always JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    #[default]
    Json,
    Compact,
}

impl Framing {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Compact => "compact",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "json" => Some(Self::Json),
            "compact" => Some(Self::Compact),
            _ => None,
        }
    }
}

/// Client → broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientFrame {
    Hello(Hello),
    Subscribe,
    Deliver(Deliver),
    Ack {
        id: ByteString,
    },
    /// Acknowledges by the tags that `message` frames carried (version 2).
    AckTags {
        tags: Vec<u64>,
    },
    AckWithReceipt {
        id: ByteString,
        request_id: ByteString,
    },
    Cancel {
        to: ByteString,
        correlation_id: ByteString,
    },
    ListConnected {
        role: ByteString,
    },
    /// A live event for `to`: ordered, bounded, lossy, never stored (version 2).
    Event(Event),
    /// Asks who is connected and what waits where (version 2).
    Status {
        request_id: ByteString,
    },
    /// Asks about single peers, messages or one mailbox (version 2).
    Inspect(Inspect),
    /// What I offer as a host; replaces what I announced before (version 2).
    Announce(Announce),
    /// Asks which hosts there are (version 2).
    Hosts(AskHosts),
    /// A frame of a later version; ignored after the handshake.
    Unknown {
        kind: String,
    },
}

#[derive(Clone, PartialEq, Eq)]
pub struct Hello {
    pub agent: AgentRef,
    pub token: String,
    /// Version 1 when absent.
    pub version: Option<u32>,
    pub framing: Option<Framing>,
}

/// The token stays out of logs.
impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello")
            .field("agent", &self.agent)
            .field("version", &self.version)
            .field("framing", &self.framing)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deliver {
    pub to: ByteString,
    pub envelope: Envelope,
    /// How long the message is worth keeping, from its arrival at the broker.
    pub deadline_ms: Option<u64>,
    /// The tag of a pushed message that this one settles. The two become durable as one step.
    pub ack: Option<u64>,
}

/// A live event; `peer` is the recipient on the way in and the sender on the way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub peer: ByteString,
    pub correlation_id: ByteString,
    pub body: Body,
}

/// Broker → client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerFrame {
    Welcome(Welcome),
    BrokerIdentity {
        id: ByteString,
    },
    Error(Refusal),
    Message(Push),
    Delivered {
        id: ByteString,
    },
    /// Receipts by the number of the `deliver` on this connection, as inclusive ranges (version 2).
    Receipts {
        ranges: Vec<(u64, u64)>,
    },
    AckResult(AckResult),
    Cancel {
        correlation_id: ByteString,
    },
    Connected {
        ids: Vec<ByteString>,
    },
    Event(Event),
    Status(Status),
    Inspected(Inspected),
    Announced(Announced),
    Hosts(Hosts),
    /// Something about the hosts changed since the last answer to a client that watches them (version 2).
    HostsChanged,
    Unknown {
        kind: String,
    },
}

/// The handshake is accepted. An original broker says no more than that.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Welcome {
    pub version: Option<u32>,
    pub framing: Option<Framing>,
    pub limits: Option<Limits>,
    pub heartbeat_ms: Option<u64>,
    /// Who the client is to the broker: its credential's name and role, and not what `hello` said.
    pub agent: Option<AgentRef>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub max_frame_bytes: u64,
    pub window_messages: u64,
    pub window_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    /// The message that is refused, if it answers a `deliver`; the request's id, if it answers a `status` or `look`.
    pub id: Option<ByteString>,
    pub code: Option<ErrorCode>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// Names this delivery in `ack_tags`; absent from original brokers.
    pub tag: Option<u64>,
    /// 1 for the first delivery, more when it was delivered before and not acknowledged.
    pub attempt: u32,
    pub from: AgentRef,
    /// What is left of the deadline.
    pub deadline_ms: Option<u64>,
    pub envelope: Envelope,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckResult {
    pub id: ByteString,
    pub request_id: ByteString,
    pub accepted: bool,
    pub reason: Option<String>,
}

/// What `toolbus ps` shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    pub request_id: ByteString,
    pub connections: Vec<Connection>,
    pub mailboxes: Vec<MailboxStatus>,
    /// Mailboxes that were left out because the list has a limit.
    pub more_mailboxes: u64,
    /// Stored messages that were found damaged and set aside since the broker started.
    pub set_aside: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    pub agent: AgentRef,
    pub subscribed: bool,
    pub connected_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailboxStatus {
    pub name: ByteString,
    pub messages: u64,
    pub bytes: u64,
    /// Pushed to the subscriber and not yet acknowledged.
    pub in_flight: u64,
    /// Age of the oldest message that is known without reading the disk.
    pub oldest_ms: Option<u64>,
}

/// Replaces all manifests of the connection's agent. Without manifests it is no longer a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announce {
    pub request_id: ByteString,
    pub manifests: Vec<RoleManifest>,
}

/// What a host offers to a role; without one, to every role that has no manifest of its own. The broker does not read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleManifest {
    pub role: Option<ByteString>,
    pub manifest: Body,
}

/// Answers `announce`: the manifests are durable, or refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    pub request_id: ByteString,
    pub reason: Option<String>,
    pub code: Option<ErrorCode>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskHosts {
    pub request_id: ByteString,
    /// Tell me of changes from now on.
    pub watch: bool,
    /// Versions of the manifests that the client has, by host: these are not sent again.
    pub known: Vec<(ByteString, u64)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hosts {
    pub request_id: ByteString,
    pub hosts: Vec<HostEntry>,
}

/// A host as the asking role sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEntry {
    pub id: ByteString,
    pub online: bool,
    /// For how long it has been online, or away.
    pub since_ms: u64,
    /// Names this content of the manifest.
    pub version: u64,
    /// Left out when the client knows it, and when the answer would get too long: then ask again, with what came.
    pub manifest: Option<Body>,
}

/// Ties every variant to its word on the wire, so that none can be added without one.
macro_rules! kinds {
    ($frame:ident { $($variant:pat => $kind:literal),+ $(,)? }) => {
        impl $frame {
            /// Every `kind` that this version knows.
            pub const KINDS: &[&str] = &[$($kind),+];

            /// The frame's `kind` on the wire.
            pub fn kind(&self) -> &str {
                match self {
                    $($variant => $kind,)+
                    Self::Unknown { kind } => kind,
                }
            }
        }
    };
}

kinds!(ClientFrame {
    Self::Hello(_) => "hello",
    Self::Subscribe => "subscribe",
    Self::Deliver(_) => "deliver",
    Self::Ack { .. } => "ack",
    Self::AckTags { .. } => "ack_tags",
    Self::AckWithReceipt { .. } => "ack_with_receipt",
    Self::Cancel { .. } => "cancel",
    Self::ListConnected { .. } => "list_connected",
    Self::Event(_) => "live_event",
    Self::Status { .. } => "status",
    Self::Inspect(_) => "inspect",
    Self::Announce(_) => "announce",
    Self::Hosts(_) => "hosts",
});

kinds!(BrokerFrame {
    Self::Welcome(_) => "welcome",
    Self::BrokerIdentity { .. } => "broker_identity",
    Self::Error(_) => "error",
    Self::Message(_) => "message",
    Self::Delivered { .. } => "delivered",
    Self::Receipts { .. } => "receipts",
    Self::AckResult(_) => "ack_result",
    Self::Cancel { .. } => "cancel",
    Self::Connected { .. } => "connected",
    Self::Event(_) => "live_event",
    Self::Status(_) => "status",
    Self::Inspected(_) => "inspected",
    Self::Announced(_) => "announced",
    Self::Hosts(_) => "hosts",
    Self::HostsChanged => "hosts_changed",
});
