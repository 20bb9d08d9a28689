//! One request to a server, from the caller's side: what comes back before the answer, and the answer.

use crate::error::ServerError;
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

/// Dropped before its end, it cancels the request.
pub struct ServerCall {
    id: Id,
}

impl ServerCall {
    /// Under which the server knows the request; a modern server repeats it as the `subscriptionId`.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The next event. After [`CallEvent::Done`] it waits for ever.
    pub async fn next(&mut self) -> CallEvent {
        std::future::pending().await
    }

    /// Tells the server that nobody wants the answer any more. The call still ends only with its `Done`.
    pub async fn cancel(&self, _reason: Option<&str>) {}
}
