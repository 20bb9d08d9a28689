//! A pair of well-behaved clients that must not be affected by the misbehaviour of others.

use crate::support::{Bus, Peer};
use serde_json::json;

pub struct HealthyPair {
    sender: Peer,
    recipient: Peer,
    sent: u32,
}

impl HealthyPair {
    pub async fn join(bus: &Bus) -> Self {
        Self { sender: bus.peer("honest-sender").await, recipient: bus.subscriber("honest-recipient").await, sent: 0 }
    }

    /// Asserts that a message is delivered from one to the other, with its receipt and its stamped sender.
    pub async fn exchange_message(&mut self) {
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
