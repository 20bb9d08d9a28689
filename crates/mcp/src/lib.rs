//! MCP as raw JSON, without I/O: messages, the two eras, and the bodies that carry them over the bus.
//!
//! A proxy that parses messages into types loses what the types don't know. Here a message is parsed only as far as a
//! proxy must change it (ids, tokens, names). The rest stays the original text, including numbers, unknown fields and
//! the order of members.

mod admin;
mod batch;
mod bus;
mod bus_text;
mod era;
mod error;
mod id_scan;
mod json_text;
mod manifest;
mod members;
mod message;
pub mod meta;
mod method;
mod opened;
mod pool;
mod raw;
mod uri_template;

pub use admin::{
    AdminRequest, CallList, CallRow, CallState, DeadLetter, DeadList, TaskList, TaskName, TaskStatus, TaskView,
    TaskWish,
};
pub use batch::{BATCH_VERSION, MAX_BATCH, parse_batch};
pub use bus::{
    Answer, ApprovalDecision, BusBodyError, ClientHello, HostEvent, HostReply, HostRequest, Notify, Rpc, SessionKey,
};
pub use era::{Era, LATEST_LEGACY, LEGACY_VERSIONS, MODERN_VERSION, MODERN_VERSIONS};
pub use error::{RpcError, codes};
pub use id_scan::{IdScan, ScannedId};
pub use manifest::{Down, HostManifest, ServerManifest, ServerState, SomeTools};
pub use members::{Members, MembersError, member_text};
pub use message::{Id, Message, MessageError, Notification, Outcome, Request, Response};
pub use method::{
    ListKind, NameError, NameKey, has_effect, is_plain_notification, is_plain_request, required_name, routed_name,
};
pub use pool::{MergedPool, PoolMember, Serving, merge_pool};
pub use raw::Raw;
pub use uri_template::UriTemplate;

/// Serializes a value of toolbus's own types as raw JSON.
pub fn raw(value: &(impl serde::Serialize + ?Sized)) -> Raw {
    let text = serde_json::to_string(value).expect("toolbus values have string keys and finite numbers");
    Raw::trusted(text.into())
}

/// An empty object.
pub fn empty_object() -> Raw {
    raw(&serde_json::Map::new())
}
