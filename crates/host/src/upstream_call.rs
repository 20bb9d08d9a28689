//! A call to a server that can be called off and whose time may run out.

use crate::caller::{Cancel, until};
use std::time::Duration;
use tokio::time::Instant;
use toolbus_mcp::{Id, Outcome, Raw};
use toolbus_upstream::{CallEvent, ServerCall, ServerError};

/// How long a server may take to answer a call that was called off. Most never do.
pub const CANCEL_GRACE: Duration = Duration::from_secs(1);

/// What a call to a server brings next.
#[derive(Debug)]
pub enum Step {
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
    /// It was called off and the server has kept silent since.
    Cancelled,
    TimedOut,
}

/// A call to a server that can be called off and whose time may run out.
pub struct UpstreamCall {
    call: ServerCall,
    deadline: Option<Instant>,
    cancelled: bool,
}

impl UpstreamCall {
    pub fn new(call: ServerCall, timeout: Option<Duration>) -> Self {
        Self { call, deadline: timeout.map(|timeout| Instant::now() + timeout), cancelled: false }
    }

    /// Giving up the wait loses nothing.
    pub async fn next(&mut self, cancel: &Cancel) -> Step {
        loop {
            tokio::select! {
                // A server that never stops talking must not talk its way past its limits.
                biased;
                () = cancel.fired(), if !self.cancelled => {
                    self.call.cancel(cancel.reason()).await;
                    self.cancelled = true;
                    self.deadline = Some(Instant::now() + CANCEL_GRACE);
                }
                () = until(self.deadline) => {
                    if self.cancelled {
                        return Step::Cancelled;
                    }
                    self.call.cancel(Some("the call took longer than its time limit")).await;
                    return Step::TimedOut;
                }
                event = self.call.next() => return self.step(event),
            }
        }
    }

    fn step(&self, event: CallEvent) -> Step {
        match event {
            CallEvent::Notification { method, params } => Step::Notification { method, params },
            CallEvent::Request { id, method, params } => Step::Request { id, method, params },
            // What a cancelled call ends with is an answer or nothing, but no failure that anybody waits for.
            CallEvent::Done(Err(_)) if self.cancelled => Step::Cancelled,
            CallEvent::Done(outcome) => Step::Done(outcome),
        }
    }
}
