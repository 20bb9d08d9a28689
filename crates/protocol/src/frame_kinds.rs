//! The `kind` of every frame on the wire.

use crate::{BrokerFrame, ClientFrame};

/// Ties every variant to its `kind` on the wire, so that none can be added without one.
macro_rules! kinds {
    ($frame:ident { $($variant:pat => $kind:literal),+ $(,)? }) => {
        impl $frame {
            /// All kinds that this version knows.
            pub const KINDS: &[&str] = &[$($kind),+];

            /// Returns the `kind` on the wire.
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
    Self::EventBatch(_) => "publish_event_batch",
    Self::Status { .. } => "status",
    Self::Inspect(_) => "inspect",
    Self::Follow(_) => "follow",
    Self::Unfollow { .. } => "unfollow",
    Self::Announce(_) => "announce",
    Self::Hosts(_) => "hosts",
    Self::Claim(_) => "claim",
    Self::Refused { .. } => "refused",
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
    Self::CancelResult(_) => "cancel_result",
    Self::Connected { .. } => "connected",
    Self::Event(_) => "live_event",
    Self::EventBatch { .. } => "event_batch",
    Self::Status(_) => "status",
    Self::Inspected(_) => "inspected",
    Self::Followed(_) => "followed",
    Self::Announced(_) => "announced",
    Self::Hosts(_) => "hosts",
    Self::HostsChanged => "hosts_changed",
    Self::Unsure { .. } => "unsure",
    Self::AgentsEnded { .. } => "agents_ended",
});
