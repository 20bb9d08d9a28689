//! Many requests in flight on one connection, each with its own answer.

use crate::client::{BrokerClient, SendOptions};
use crate::error::{BrokerError, BrokerResult};
use crate::session::PendingRequest;
use crate::shared::Shared;
use bytestring::ByteString;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use toolbus_protocol::{AgentRef, Body, ClientFrame, ErrorCode, InboxKind, InboxMessage, MsgId};

pub struct MultiplexedClient {
    client: BrokerClient,
    me: AgentRef,
}

impl MultiplexedClient {
    pub(crate) fn new(client: BrokerClient) -> Self {
        client.shared.change(|session| {
            session.multiplexed = true;
            if !session.wants_mailbox {
                session.wants_mailbox = true;
                session.send(ClientFrame::Subscribe);
            }
        });
        let me = client.me();
        Self { client, me }
    }

    /// Whether a connection stands right now.
    pub fn reader_alive(&self) -> bool {
        self.client.reader_alive()
    }

    pub fn client(&self) -> &BrokerClient {
        &self.client
    }

    /// Sends a request and waits for the reply that carries its id and comes from `to`; nobody else's counts. When the
    /// time is up, or the caller loses interest, the work is cancelled.
    pub async fn request(
        &self,
        to: &str,
        kind: impl Into<InboxKind>,
        body: Body,
        timeout: Duration,
    ) -> BrokerResult<InboxMessage> {
        let message = InboxMessage::new(self.me.clone(), kind, body);
        self.request_message(to, message, timeout).await
    }

    /// Like [`MultiplexedClient::request`], with a message of the caller's making: its id is the idempotency key.
    pub async fn request_message(
        &self,
        to: &str,
        message: InboxMessage,
        timeout: Duration,
    ) -> BrokerResult<InboxMessage> {
        let id = message.id.clone();
        let (sender, reply) = oneshot::channel();
        let shared = &self.client.shared;
        let pending = PendingRequest { to: ByteString::from(to), reply: sender };
        shared.lock().requests.insert(id.clone().into_inner(), pending);
        let mut guard = CancelOnDrop { shared, to, id: Some(id) };
        let send = SendOptions { deadline: Some(timeout) };
        let exchange = async {
            // The receipt is of no interest: the reply implies it, and a refusal reaches the request as well.
            self.client.start_delivery(to, &message, send, None, None).await?;
            reply.await.unwrap_or(Err(BrokerError::Closed))
        };
        match tokio::time::timeout(timeout, exchange).await {
            // The broker's clock may be the first to say that the time is up.
            Ok(Err(error)) if error.code() == Some(ErrorCode::Expired) => Err(BrokerError::Timeout(timeout)),
            Ok(outcome) => {
                guard.id = None;
                outcome
            }
            Err(_) => Err(BrokerError::Timeout(timeout)),
        }
    }

    pub async fn close(self) {
        self.client.close().await;
    }
}

/// A request that nobody waits for any more is forgotten here and cancelled there.
struct CancelOnDrop<'a> {
    shared: &'a Arc<Shared>,
    to: &'a str,
    id: Option<MsgId>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let correlation_id = id.into_inner();
            let to = ByteString::from(self.to);
            self.shared.change(|session| {
                session.requests.remove(&correlation_id);
                session.send(ClientFrame::Cancel { to, correlation_id });
            });
        }
    }
}
