//! An honest pair of clients that must not notice what happens around them.

use crate::support::{Bus, Peer};
use serde_json::json;

pub struct Witness {
    sender: Peer,
    recipient: Peer,
    sent: u32,
}

impl Witness {
    pub async fn join(bus: &Bus) -> Self {
        Self { sender: bus.peer("honest-sender").await, recipient: bus.subscriber("honest-recipient").await, sent: 0 }
    }

    /// A message still goes from one to the other, with its receipt, its sender's name and its acknowledgement.
    pub async fn is_served(&mut self) {
        self.sent += 1;
        let id = format!("honest-{}", self.sent);
        self.sender.deliver("honest-recipient", &id, json!({"n": self.sent})).await;
        let frame = self.recipient.frame().await;
        assert_eq!(frame["kind"], "message", "{frame}");
        assert_eq!(frame["message"]["id"], id.as_str(), "{frame}");
        assert_eq!(frame["message"]["body"]["n"], self.sent, "{frame}");
        assert_eq!(frame["message"]["from"]["session_id"], "honest-sender", "{frame}");
        assert_eq!(frame.get("attempt"), None, "{frame}");
        self.recipient.ack(&id).await;
    }
}
