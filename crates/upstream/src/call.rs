//! One request to a server, from the caller's side: the events before the response, and the response.

use crate::connection::Handle;
use crate::error::ServerError;
use crate::queue::CallQueue;
use std::sync::Arc;
use toolbus_mcp::{Id, Outcome, Raw};

/// An event of a call, in the order in which the server sent them.
#[derive(Debug, Clone)]
pub enum CallEvent {
    /// A notification of the server.
    Notification {
        /// MCP method.
        method: String,
        /// Params as raw JSON.
        params: Option<Raw>,
    },
    /// A request of the server, answered with [`crate::ServerConnection::answer`].
    Request {
        /// Id to use in the answer.
        id: Id,
        /// MCP method.
        method: String,
        /// Params as raw JSON.
        params: Option<Raw>,
    },
    /// The outcome. It comes exactly once and is the last event.
    Done(Result<Outcome, ServerError>),
}

/// An open request. Dropping it before its end cancels the request. It keeps its connection open.
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

    /// The id of the request at the server. A modern server repeats it as the `subscriptionId`.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The next event. After [`CallEvent::Done`] it never returns. Cancellation-safe: no event is lost.
    pub async fn next(&mut self) -> CallEvent {
        self.queue.next().await
    }

    /// Waits for the outcome and discards all events before it. Requests of the server are rejected.
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

    /// Sends a cancellation to the server. The call still ends only with its `Done`.
    pub async fn cancel(&self, reason: Option<&str>) {
        self.connection.cancel(self.number, reason);
    }
}

impl Drop for ServerCall {
    fn drop(&mut self) {
        self.queue.abandon();
        self.connection.abandon(self.number);
    }
}
