//! Many concurrent requests on one connection, each correlated with its reply.

use crate::BrokerResult;
use crate::call::Call;
use crate::client::BrokerClient;
use crate::session::Session;
use std::time::Duration;
use toolbus_protocol::{AgentRef, Body, InboxKind, InboxMessage};

/// A [`BrokerClient`] that correlates concurrent requests with their replies.
pub struct MultiplexedClient {
    client: BrokerClient,
    me: AgentRef,
}

impl MultiplexedClient {
    pub(crate) fn new(client: BrokerClient) -> Self {
        client.shared.change(Session::multiplex);
        let me = client.me();
        Self { client, me }
    }

    /// Whether the client is connected now.
    pub fn reader_alive(&self) -> bool {
        self.client.reader_alive()
    }

    /// The underlying client.
    pub fn client(&self) -> &BrokerClient {
        &self.client
    }

    /// Sends a request and waits for the reply that carries its id and comes from `to`; replies of other senders are
    /// ignored. A timeout or a dropped future cancels the request.
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

    /// Like [`MultiplexedClient::request`], with a message built by the caller; its id is the idempotency key.
    pub async fn request_message(
        &self,
        to: &str,
        message: InboxMessage,
        timeout: Duration,
    ) -> BrokerResult<InboxMessage> {
        Call::start(&self.client, to, &message, timeout, false).await?.reply().await
    }

    /// Like [`MultiplexedClient::request_message`], for callers that also want the events before the reply: live
    /// events, and stored messages of kind `mcp_event`, that carry the call's id and come from `to`.
    pub async fn start_call(&self, to: &str, message: InboxMessage, timeout: Duration) -> BrokerResult<Call> {
        Call::start(&self.client, to, &message, timeout, true).await
    }

    /// Like [`BrokerClient::close`].
    pub async fn close(self) {
        self.client.close().await;
    }
}
