//! The host's outgoing messages to workers: live events, servers' requests to clients, and replies. All use one
//! connection, so they arrive in the order in which they are sent.

use crate::agent_ends::{address, addressed};
use bytes::Bytes;
use std::time::Duration;
use toolbus_client::{BrokerClient, BrokerError, Resend, SendOptions};
use toolbus_journal::End;
use toolbus_mcp::{HostEvent, HostReply, Outcome, Raw, RpcError};
use toolbus_protocol::{Body, ErrorCode, InboxKind, InboxMessage, MsgId};

/// Deadline of a server's request to its client.
pub const CLIENT_REQUEST_DEADLINE: Duration = Duration::from_secs(600);
const EVENT: &str = "mcp_event";

/// The reply to a call and how the call ended.
#[derive(Debug)]
pub struct Answer {
    pub body: Body,
    pub end: End,
    pub form: Form,
}

/// The format of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Mcp,
    /// For the original's workers, which don't speak MCP.
    Original,
}

impl Answer {
    pub fn of(reply: &HostReply) -> Self {
        let end = match reply {
            HostReply::Rpc(Outcome::Result(_)) | HostReply::Task(_) => End::Done,
            HostReply::Rpc(Outcome::Error(_)) => End::Failed,
            HostReply::Cancelled | HostReply::HandedBack => End::Cancelled,
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

    pub fn too_large(self, reason: &str) -> Answer {
        let error = crate::failure::bus(ErrorCode::ResultTooLarge, format!("the result cannot be sent: {reason}"));
        Answer { body: self.error(&error), end: End::Failed, form: self }
    }
}

pub struct Outbox {
    client: BrokerClient,
}

impl Outbox {
    pub fn new(client: BrokerClient) -> Self {
        Self { client }
    }

    /// Sends queued messages and disconnects.
    pub async fn close(&self) {
        self.client.close().await;
    }

    pub fn client(&self) -> &BrokerClient {
        &self.client
    }

    /// Sends a live event: ordered, but dropped if the worker is disconnected or too slow.
    pub async fn live(&self, to: &str, correlation: &MsgId, event: &HostEvent) {
        let body = Body::from_trusted(event.to_json().into_bytes());
        if let Err(error) = self.client.publish_event(&address(to), correlation, body).await {
            tracing::debug!(%error, to, "could not send an event");
        }
    }

    /// Sends an event as a durable message, because a server waits for its answer.
    pub async fn durable(&self, to: &str, correlation: &MsgId, event: &HostEvent) -> Result<(), BrokerError> {
        let body = Body::from_trusted(event.to_json().into_bytes());
        let message =
            InboxMessage::new(self.client.me(), InboxKind::from(EVENT), body).correlated_to(correlation.clone());
        let send = SendOptions { deadline: Some(CLIENT_REQUEST_DEADLINE) };
        self.client.deliver_with(&address(to), message, send).await.map(drop)
    }

    /// Replies and acknowledges the request atomically. A reply that is too large is replaced by an error.
    pub async fn reply(&self, request: &InboxMessage, reply: &HostReply) {
        self.answer(request, Answer::of(reply)).await;
    }

    /// Replies in the original's format.
    pub async fn reply_text(&self, request: &InboxMessage, reply: &Raw) {
        let body = Body::from_trusted(Bytes::copy_from_slice(reply.get().as_bytes()));
        self.answer(request, Answer { body, end: End::Done, form: Form::Original }).await;
    }

    /// Sends a reply that is not journaled. It must not be durable without the acknowledgement of its request: the next
    /// process would decide again, and might run a call whose caller was told that it was refused.
    pub async fn answer(&self, request: &InboxMessage, answer: Answer) {
        let (reply, _) = self.fitting(request, answer);
        let sent = self.client.reply_message_nowait(&addressed(request), &reply, Resend::WithRequest).await;
        self.ack_if_unsent(request, sent).await;
    }

    /// Builds the reply message and how the call ended. A reply that is too large for the broker is replaced by an
    /// error.
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

    /// Sends the same reply again under the same id, so that the broker deduplicates it.
    pub async fn resend(&self, request: &InboxMessage, reply_id: &str, body: Bytes, form: Form) {
        let mut reply = self.reply_to(request, Body::from_trusted(body));
        reply.id = MsgId::from(reply_id.to_owned());
        self.send_or_replace(request, &reply, form).await;
    }

    /// Sends a journaled reply. If the broker's frame limit shrank since it was checked, an error is sent instead, which is
    /// another message and gets another id.
    pub async fn send_or_replace(&self, request: &InboxMessage, reply: &InboxMessage, form: Form) {
        let mut sent = self.send(request, reply).await;
        if let Err(BrokerError::Rejected { code: Some(ErrorCode::FrameTooLarge), reason, .. }) = &sent {
            let too_large = self.reply_to(request, form.too_large(reason).body);
            sent = self.send(request, &too_large).await;
        }
        self.ack_if_unsent(request, sent).await;
    }

    /// Sends a journaled reply, which also acknowledges its request.
    async fn send(&self, request: &InboxMessage, reply: &InboxMessage) -> Result<(), BrokerError> {
        self.client.reply_message_nowait(&addressed(request), reply, Resend::Immediately).await
    }

    pub async fn ack(&self, request: &InboxMessage) {
        if let Err(error) = self.client.ack(request.id.clone()).await {
            tracing::debug!(%error, id = %request.id, "could not acknowledge a request");
        }
    }

    /// Acknowledges a request whose reply could not be sent, or else it would be redelivered forever.
    pub async fn ack_if_unsent(&self, request: &InboxMessage, outcome: Result<(), BrokerError>) {
        if let Err(error) = outcome {
            tracing::warn!(%error, id = %request.id, "could not send a reply");
            self.ack(request).await;
        }
    }
}

pub fn reply_body(reply: &HostReply) -> Body {
    Body::from_trusted(reply.to_json().into_bytes())
}
