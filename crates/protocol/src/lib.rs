//! What travels on the bus: frames, envelopes, names and error codes.
//!
//! One set of frames ([`ClientFrame`], [`BrokerFrame`]) has two framings: [`json`], the published text
//! protocol of the original system, and [`compact`], a binary one for our own client that leaves bodies
//! untouched. A message body is raw JSON everywhere and is never reinterpreted.

pub mod compact;
mod envelope;
mod errors;
mod frames;
mod inspect;
pub mod json;
mod kind;
mod names;
mod proof;
mod varint;

pub use envelope::{Body, BodyError, Envelope, InboxMessage, MAX_BODY_DEPTH, Timestamp};
pub use errors::{DecodeError, ErrorCode};
pub use frames::{
    AckResult, Announce, Announced, AskHosts, BrokerFrame, ClientFrame, Connection, Deliver, Event, Framing, Hello,
    HostEntry, Hosts, Limits, MailboxStatus, Push, Refusal, RoleManifest, Status, Welcome,
};
pub use inspect::{Inspect, Inspected, MAX_INSPECTED, MessageRef, MessageRow};
pub use kind::InboxKind;
pub use names::{AgentRef, MAX_NAME_BYTES, MsgId, NameError, check_name, principal_of};
pub use proof::{BrokerKey, CHALLENGE_HEADER, MAX_CHALLENGE_BYTES, PROOF_HEADER, hex};

/// The version of the protocol that `hello` and `welcome` name. Peers that name none speak version 1, the
/// original's; version 2 adds delivery tags, numbered receipts, receipts implied by replies, and live events.
pub const PROTOCOL_VERSION: u32 = 2;
