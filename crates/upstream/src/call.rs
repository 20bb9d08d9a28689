//! One request to a server, from the caller's side: what comes back before the answer, and the answer.

use crate::connection::Handle;
use crate::error::ServerError;
use crate::queue::CallQueue;
use std::sync::Arc;
use toolbus_mcp::{Id, Outcome, Raw};

/// What a call brings, in the server's order.
#[derive(Debug, Clone)]
pub enum CallEvent {
    Notification {
        method: String,
        params: Option<Raw>,
    },
    /// The server asks the client; answered by [`crate::ServerConnection::answer`].
    Request {
        id: Id,
        method: String,
        params: Option<Raw>,
    },
    /// The end, once. After it, nothing.
    Done(Result<Outcome, ServerError>),
}

/// Dropped before its end, it cancels the request. It keeps its connection open.
pub struct ServerCall {
    id: Id,
    number: u64,
    queue: Arc<CallQueue>,
    connection: Arc<Handle>,
}

impl ServerCall {
    pub(crate) fn new(number: u64, queue: Arc<CallQueue>, connection: Arc<Handle>) -> Self {
        Self { id: Id::number(number), number, queue, connection }
    }

    /// Under which the server knows the request; a modern server repeats it as the `subscriptionId`.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The next event. After [`CallEvent::Done`] it waits for ever. Safe to be cancelled: no event is lost.
    pub async fn next(&mut self) -> CallEvent {
        self.queue.next().await
    }

    /// The answer, without what comes before it. Requests of the server are refused.
    pub async fn outcome(mut self) -> Result<Outcome, ServerError> {
        loop {
            match self.next().await {
                CallEvent::Done(outcome) => return outcome,
                CallEvent::Notification { .. } => {}
                CallEvent::Request { id, method, .. } => {
                    let refusal = toolbus_mcp::RpcError::method_not_found(&method);
                    self.connection.answer(&id, refusal.into()).await?;
                }
            }
        }
    }

    /// Tells the server that nobody wants the answer any more. The call still ends only with its `Done`.
    pub async fn cancel(&self, reason: Option<&str>) {
        self.connection.cancel(self.number, reason);
    }
}

impl Drop for ServerCall {
    fn drop(&mut self) {
        self.queue.abandon();
        self.connection.give_up(self.number);
    }
}
