//! The wire protocol of the bus: frames, envelopes, names and error codes.
//!
//! The frames ([`ClientFrame`], [`BrokerFrame`]) have two encodings: [`json`], the published text protocol of the
//! original system, and [`compact`], a binary framing that forwards sealed envelopes unchanged. A message body is raw
//! JSON in both and is never parsed and re-encoded.
//!
//! ```
//! use toolbus_protocol::{AgentRef, Body, ClientFrame, Deliver, InboxKind, InboxMessage, json};
//!
//! let me = AgentRef::new("worker-7");
//! let message = InboxMessage::new(me.clone(), InboxKind::Task, Body::parse(r#"{ "total": 1.0 }"#)?);
//! let deliver = Deliver { to: "desktop".into(), envelope: message.seal(), deadline_ms: Some(30_000), ack: None, age_ms: None };
//! let frame = ClientFrame::Deliver(deliver);
//! assert_eq!(json::read_client(json::write_client(&frame, &me).as_bytes())?, frame);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod agent_end;
mod broker_error;
mod cancel;
mod claim;
pub mod compact;
mod envelope;
mod errors;
mod follow;
mod frame_kinds;
mod frames;
mod handshake;
mod inspect;
pub mod json;
mod kind;
mod link;
mod names;
mod proof;
mod varint;

pub use agent_end::AgentEnd;
pub use broker_error::{BrokerError, BrokerResult};
pub use cancel::{CancelOutcome, CancelResult};
pub use claim::{JournalClaim, MAX_ANCESTORS};
pub use envelope::{Body, BodyError, Envelope, InboxMessage, MAX_BODY_DEPTH, Timestamp};
pub use errors::{DecodeError, ErrorCode};
pub use follow::{Follow, Followed};
pub use frames::{
    AckResult, Announce, Announced, AskHosts, BrokerFrame, ClientFrame, Connection, Deliver, Event, Framing, Hello,
    HostEntry, Hosts, Limits, MailboxStatus, Push, Refusal, RoleManifest, Status, Welcome,
};
pub use inspect::{Inspect, Inspected, MAX_INSPECTED, MessageRef, MessageRow};
pub use kind::InboxKind;
#[doc(hidden)]
pub use link::relay;
pub use link::{BrokerLink, ClientLink, FrameBytes, Link, LinkClosed, link};
pub use names::{AgentRef, MAX_NAME_BYTES, MsgId, NameError, check_name};
pub use proof::{BrokerKey, CHALLENGE_HEADER, MAX_CHALLENGE_BYTES, PROOF_HEADER};
pub use toolbus_base::principal_of;

/// Protocol version in `hello` and `welcome`. Peers that send none speak version 1, the original's; version 2 adds
/// delivery tags, numbered receipts, receipts implied by replies, and live events.
pub const PROTOCOL_VERSION: u32 = 2;
