//! A call to a server with cancellation and a timeout.

use crate::caller::{Cancel, until};
use std::time::Duration;
use tokio::time::Instant;
use toolbus_mcp::{Id, Outcome, Raw};
use toolbus_upstream::{CallEvent, ServerCall, ServerError};

/// How long to wait for the answer of a cancelled call. Most servers never send one.
pub const CANCEL_GRACE: Duration = Duration::from_secs(1);

/// The next event of a call to a server.
#[derive(Debug)]
pub enum CallStep {
    Notification {
        method: String,
        params: Option<Raw>,
    },
    Request {
        id: Id,
        method: String,
        params: Option<Raw>,
    },
    Done(Result<Outcome, ServerError>),
    /// The call was cancelled, and the server did not answer it within [`CANCEL_GRACE`].
    Cancelled,
    TimedOut,
}

/// A call to a server with cancellation and a timeout.
pub struct UpstreamCall {
    call: ServerCall,
    deadline: Option<Instant>,
    cancelled: bool,
}

impl UpstreamCall {
    pub fn new(call: ServerCall, timeout: Option<Duration>) -> Self {
        Self { call, deadline: timeout.map(|timeout| Instant::now() + timeout), cancelled: false }
    }

    /// Cancellation-safe: dropping the future loses no event.
    pub async fn next(&mut self, cancel: &Cancel) -> CallStep {
        loop {
            tokio::select! {
                // Cancellation and the timeout come first, so that a server that never stops sending can't outrun them.
                biased;
                () = cancel.fired(), if !self.cancelled => {
                    self.call.cancel(cancel.reason()).await;
                    self.cancelled = true;
                    self.deadline = Some(Instant::now() + CANCEL_GRACE);
                }
                () = until(self.deadline) => {
                    if self.cancelled {
                        return CallStep::Cancelled;
                    }
                    self.call.cancel(Some("the call exceeded its time limit")).await;
                    return CallStep::TimedOut;
                }
                event = self.call.next() => return self.step(event),
            }
        }
    }

    fn step(&self, event: CallEvent) -> CallStep {
        match event {
            CallEvent::Notification { method, params } => CallStep::Notification { method, params },
            CallEvent::Request { id, method, params } => CallStep::Request { id, method, params },
            // The failure of a cancelled call is of no interest; only an answer would be.
            CallEvent::Done(Err(_)) if self.cancelled => CallStep::Cancelled,
            CallEvent::Done(outcome) => CallStep::Done(outcome),
        }
    }
}
