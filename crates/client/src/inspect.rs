//! Queries about the broker's current state: its status, and queue inspection of single peers, messages and mailboxes.

use crate::client::BrokerClient;
use crate::queries::QueryGuard;
use crate::{BrokerError, BrokerResult};
use tokio::sync::oneshot;
use toolbus_protocol::{ClientFrame, Inspect, Inspected, MAX_INSPECTED, MsgId, Status};

impl BrokerClient {
    /// Returns the current connections and mailboxes.
    pub async fn status(&self) -> BrokerResult<Status> {
        self.check_supports("status queries")?;
        let request_id = MsgId::new().into_inner();
        let _guard = QueryGuard { shared: &self.shared, id: request_id.clone() };
        let (sender, answer) = oneshot::channel();
        self.shared.change(|session| {
            if session.is_connected() {
                session.queries.statuses.insert(request_id.clone(), sender);
                session.send(ClientFrame::Status { request_id });
            }
        });
        self.await_answer(answer).await?
    }

    /// Inspects queues: whether peers are connected, how many messages are ahead of given ones, and the messages of a
    /// mailbox. Takes at most [`MAX_INSPECTED`] peers and as many messages. The request id is filled in here. An older
    /// broker of version 2 does not answer; the call then ends after [`crate::ClientOptions::receipt_timeout`].
    pub async fn inspect(&self, inspect: Inspect) -> BrokerResult<Inspected> {
        self.check_supports("queue inspection")?;
        if inspect.peers.len().max(inspect.messages.len()) > MAX_INSPECTED {
            let reason = format!("more than {MAX_INSPECTED} peers or messages in one inspection");
            return Err(BrokerError::Rejected { code: None, reason, id: None });
        }
        let request_id = MsgId::new().into_inner();
        let _guard = QueryGuard { shared: &self.shared, id: request_id.clone() };
        let (sender, answer) = oneshot::channel();
        self.shared.change(|session| {
            if session.is_connected() {
                session.queries.inspections.insert(request_id.clone(), sender);
                session.send(ClientFrame::Inspect(Inspect { request_id, ..inspect }));
            }
        });
        self.await_answer(answer).await?
    }

    /// A broker that does not know a query would never answer it.
    pub(crate) fn check_supports(&self, what: &str) -> BrokerResult<()> {
        match self.shared.lock().terms.version < 2 {
            true => Err(BrokerError::Protocol(format!("this broker does not support {what}"))),
            false => Ok(()),
        }
    }
}
