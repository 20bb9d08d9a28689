//! What the host sends to workers: events on the way, questions of servers, and replies, all on one connection and
//! therefore in the order in which they are sent.

use crate::failure;
use bytes::Bytes;
use serde_json::value::RawValue;
use std::time::Duration;
use toolbus_client::{BrokerClient, BrokerError, SendOptions};
use toolbus_mcp::{HostEvent, HostReply, Outcome};
use toolbus_protocol::{Body, ErrorCode, InboxKind, InboxMessage, MsgId};

/// How long a server's question is worth delivering.
pub const QUESTION_DEADLINE: Duration = Duration::from_secs(600);
const EVENT: &str = "mcp_event";

pub struct Outbox {
    client: BrokerClient,
}

impl Outbox {
    pub fn new(client: BrokerClient) -> Self {
        Self { client }
    }

    /// Sends what waits, and leaves the bus.
    pub async fn close(self) {
        self.client.close().await;
    }

    pub fn client(&self) -> &BrokerClient {
        &self.client
    }

    /// On the live lane: ordered, but lost if the worker is away or too slow.
    pub async fn live(&self, to: &str, correlation: &MsgId, event: &HostEvent) {
        let body = Body::from_trusted(Bytes::from(event.to_json()));
        if let Err(error) = self.client.publish_event(to, correlation, body).await {
            tracing::debug!(%error, to, "an event was not sent");
        }
    }

    /// As a message, because somebody waits for what follows from it.
    pub async fn durable(&self, to: &str, correlation: &MsgId, event: &HostEvent) -> Result<(), BrokerError> {
        let body = Body::from_trusted(Bytes::from(event.to_json()));
        let message =
            InboxMessage::new(self.client.me(), InboxKind::from(EVENT), body).correlated_to(correlation.clone());
        let send = SendOptions { deadline: Some(QUESTION_DEADLINE) };
        self.client.deliver_with(to, message, send).await.map(drop)
    }

    /// Replies and acknowledges as one step. A reply that doesn't fit becomes an error that says so.
    pub async fn reply(&self, request: &InboxMessage, reply: &HostReply) {
        let size = match self.send_reply(request, reply_body(reply)).await {
            Err(BrokerError::Rejected { code: Some(ErrorCode::FrameTooLarge), reason, .. }) => reason,
            outcome => return self.settle(request, outcome).await,
        };
        let error = failure::bus(ErrorCode::ResultTooLarge, format!("the result can't be sent: {size}"));
        let outcome = self.send_reply(request, reply_body(&HostReply::Rpc(error.into()))).await;
        self.settle(request, outcome).await;
    }

    /// A reply of the original's kind.
    pub async fn reply_text(&self, request: &InboxMessage, reply: &RawValue) {
        let body = Body::from_trusted(Bytes::copy_from_slice(reply.get().as_bytes()));
        let outcome = match self.send_reply(request, body).await {
            Err(BrokerError::Rejected { code: Some(ErrorCode::FrameTooLarge), reason, .. }) => {
                let reply = crate::original::error(&format!("the result can't be sent: {reason}"));
                self.send_reply(request, Body::from_trusted(Bytes::from(reply.get().to_owned()))).await
            }
            outcome => outcome,
        };
        self.settle(request, outcome).await;
    }

    pub async fn ack(&self, request: &InboxMessage) {
        if let Err(error) = self.client.ack(request.id.clone()).await {
            tracing::debug!(%error, id = %request.id, "an acknowledgement was not sent");
        }
    }

    async fn send_reply(&self, request: &InboxMessage, body: Body) -> Result<(), BrokerError> {
        self.client.reply_nowait(request, InboxKind::McpReply, body).await
    }

    /// A request whose reply can't even be sent must not come again for ever.
    async fn settle(&self, request: &InboxMessage, outcome: Result<(), BrokerError>) {
        if let Err(error) = outcome {
            tracing::warn!(%error, id = %request.id, "a reply could not be sent");
            self.ack(request).await;
        }
    }
}

/// The same text as [`HostReply::to_json`], without a copy of the result on the way.
fn reply_body(reply: &HostReply) -> Body {
    let (name, value) = match reply {
        HostReply::Task(_) => return Body::from_trusted(Bytes::from(reply.to_json())),
        HostReply::Rpc(Outcome::Result(result)) => ("result", result.get()),
        HostReply::Rpc(Outcome::Error(error)) => ("error", error.get()),
        HostReply::Cancelled => ("cancelled", "true"),
    };
    let text = ["{\"rpc\":{\"", name, "\":", value, "}}"].concat();
    Body::from_trusted(Bytes::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_written_as_everybody_reads_them() {
        let error = toolbus_mcp::RpcError::new(-1, "no");
        let replies = [
            HostReply::Rpc(Outcome::Result(toolbus_mcp::raw(&serde_json::json!({"a": [1, 2.0]})))),
            HostReply::Rpc(error.into()),
            HostReply::Cancelled,
        ];
        for reply in replies {
            assert_eq!(reply_body(&reply).as_bytes(), reply.to_json().as_bytes());
        }
    }
}
