//! What the host sends to workers: events on the way, questions of servers, and replies, all on one connection and
//! therefore in the order in which they are sent.

use bytes::Bytes;
use serde_json::value::RawValue;
use std::time::Duration;
use toolbus_client::{BrokerClient, BrokerError, SendOptions};
use toolbus_journal::End;
use toolbus_mcp::{HostEvent, HostReply, Outcome, RpcError};
use toolbus_protocol::{Body, ErrorCode, InboxKind, InboxMessage, MsgId};

/// How long a server's question is worth delivering.
pub const QUESTION_DEADLINE: Duration = Duration::from_secs(600);
const EVENT: &str = "mcp_event";

/// How a call ended, as it is sent.
#[derive(Debug)]
pub struct Answer {
    pub body: Body,
    pub end: End,
    pub form: Form,
}

/// Who reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Mcp,
    /// A worker that knows nothing of MCP.
    Original,
}

impl Answer {
    pub fn of(reply: &HostReply) -> Self {
        let end = match reply {
            HostReply::Rpc(Outcome::Result(_)) | HostReply::Task(_) => End::Done,
            HostReply::Rpc(Outcome::Error(_)) => End::Failed,
            HostReply::Cancelled => End::Cancelled,
        };
        Self { body: reply_body(reply), end, form: Form::Mcp }
    }
}

impl Form {
    pub fn error(self, error: &RpcError) -> Body {
        match self {
            Self::Mcp => reply_body(&HostReply::Rpc(error.clone().into())),
            Self::Original => Body::from_trusted(Bytes::from(crate::original::error(&error.message).get().to_owned())),
        }
    }
}

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
        self.answer(request, Answer::of(reply)).await;
    }

    /// A reply of the original's kind.
    pub async fn reply_text(&self, request: &InboxMessage, reply: &RawValue) {
        let body = Body::from_trusted(Bytes::copy_from_slice(reply.get().as_bytes()));
        self.answer(request, Answer { body, end: End::Done, form: Form::Original }).await;
    }

    async fn answer(&self, request: &InboxMessage, answer: Answer) {
        let (reply, _) = self.fitting(request, answer);
        let sent = self.send(request, &reply).await;
        self.settle(request, sent).await;
    }

    /// The message of an answer and how it says that the call ended. One that is too large for the broker says that.
    pub fn fitting(&self, request: &InboxMessage, answer: Answer) -> (InboxMessage, End) {
        let Answer { body, end, form } = answer;
        let reply = self.reply_to(request, body);
        match self.client.check_message(&reply) {
            Err(BrokerError::Rejected { code: Some(ErrorCode::FrameTooLarge), reason, .. }) => {
                let Answer { body, end, .. } = form.too_large(&reason);
                (self.reply_to(request, body), end)
            }
            _ => (reply, end),
        }
    }

    pub fn reply_to(&self, request: &InboxMessage, body: Body) -> InboxMessage {
        InboxMessage::new(self.client.me(), InboxKind::McpReply, body).correlated_to(request.id.clone())
    }

    /// The same reply once more, under its own id: however often it is sent, it counts once.
    pub async fn repeat(&self, request: &InboxMessage, reply_id: &str, body: Bytes, form: Form) {
        let mut reply = self.reply_to(request, Body::from_trusted(body));
        reply.id = MsgId::from(reply_id.to_owned());
        let mut sent = self.send(request, &reply).await;
        if let Err(BrokerError::Rejected { code: Some(ErrorCode::FrameTooLarge), reason, .. }) = &sent {
            // The broker took more when the call was answered. Under an id of its own: it is another message.
            let too_large = self.reply_to(request, form.too_large(reason).body);
            sent = self.send(request, &too_large).await;
        }
        self.settle(request, sent).await;
    }

    /// Sends a reply, and acknowledges its request with it.
    pub async fn send(&self, request: &InboxMessage, reply: &InboxMessage) -> Result<(), BrokerError> {
        self.client.reply_message_nowait(request, reply).await
    }

    pub async fn ack(&self, request: &InboxMessage) {
        if let Err(error) = self.client.ack(request.id.clone()).await {
            tracing::debug!(%error, id = %request.id, "an acknowledgement was not sent");
        }
    }

    /// A request whose reply can't even be sent must not come again for ever.
    pub async fn settle(&self, request: &InboxMessage, outcome: Result<(), BrokerError>) {
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
        let error = RpcError::new(-1, "no");
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
