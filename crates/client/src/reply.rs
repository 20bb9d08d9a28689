//! Replies: each acknowledges the request that it answers.

use crate::BrokerResult;
use crate::client::{BrokerClient, ReceiptSender};
use crate::options::{Resend, SendOptions};
use tokio::sync::oneshot;
use toolbus_protocol::{Body, InboxKind, InboxMessage, MsgId};

impl BrokerClient {
    /// Replies to a received message and acknowledges it atomically: a crash keeps both or neither. The reply expires
    /// an hour after the deadline of its request.
    pub async fn reply(&self, request: &InboxMessage, kind: impl Into<InboxKind>, body: Body) -> BrokerResult<MsgId> {
        let (sender, receipt) = oneshot::channel();
        let id = self.start_reply(request, kind, body, Some(sender)).await?;
        self.await_receipt(receipt).await?;
        Ok(id)
    }

    /// Like [`BrokerClient::reply`], without waiting for the receipt; resent after a reconnect if it is missing.
    pub async fn reply_nowait(
        &self,
        request: &InboxMessage,
        kind: impl Into<InboxKind>,
        body: Body,
    ) -> BrokerResult<()> {
        self.start_reply(request, kind, body, None).await?;
        Ok(())
    }

    /// Like [`BrokerClient::reply`], with a message built by the caller. Its id is the idempotency key: sent again, on
    /// this connection or another, it is deduplicated.
    pub async fn reply_message(&self, request: &InboxMessage, reply: &InboxMessage) -> BrokerResult<()> {
        let (sender, receipt) = oneshot::channel();
        self.send_reply(request, reply, Resend::Immediately, Some(sender)).await?;
        self.await_receipt(receipt).await
    }

    /// Like [`BrokerClient::reply_message`], without waiting for the receipt; resent after a reconnect if the receipt
    /// is missing.
    pub async fn reply_message_nowait(
        &self,
        request: &InboxMessage,
        reply: &InboxMessage,
        resend: Resend,
    ) -> BrokerResult<()> {
        self.send_reply(request, reply, resend, None).await
    }

    async fn start_reply(
        &self,
        request: &InboxMessage,
        kind: impl Into<InboxKind>,
        body: Body,
        receipt: Option<ReceiptSender>,
    ) -> BrokerResult<MsgId> {
        let reply = InboxMessage::new(self.me(), kind, body).correlated_to(request.id.clone());
        self.send_reply(request, &reply, Resend::Immediately, receipt).await?;
        Ok(reply.id)
    }

    async fn send_reply(
        &self,
        request: &InboxMessage,
        reply: &InboxMessage,
        resend: Resend,
        receipt: Option<ReceiptSender>,
    ) -> BrokerResult<()> {
        let (to, answers) = (&request.from.session_id, Some((&request.id, resend)));
        self.start_delivery(to, reply, SendOptions::default(), answers, receipt).await
    }
}
