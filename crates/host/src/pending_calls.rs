//! Calls to legacy servers that wait for their modern client to answer a request of the server (elicitation, sampling).
//! The client answers by repeating its request.

use crate::caller::Caller;
use crate::journaled::Record;
use crate::session::SessionId;
use crate::translate::modern_on_legacy::{Envelope, Repetition};
use std::collections::HashMap;
use std::sync::Mutex;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// A repeated request, handed to the call that it continues.
pub struct Continuation {
    pub caller: Caller,
    /// The journal record of the repetition, which the end of the call answers.
    pub record: Option<Record>,
    pub envelope: Envelope,
    pub repetition: Repetition,
    /// The continued call runs under the permits of its repetition.
    pub permits: Vec<OwnedSemaphorePermit>,
}

/// Identifies a call. A continuation must match it, because only this call was authorised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallIdentity {
    pub session: SessionId,
    pub server: usize,
    pub method: String,
    /// As the caller named it.
    pub name: Option<String>,
    /// Hash of the arguments.
    pub arguments: Option<String>,
}

struct PendingCall {
    call: CallIdentity,
    waiting: oneshot::Sender<Continuation>,
}

pub struct PendingCalls {
    calls: Mutex<HashMap<String, PendingCall>>,
    limit: usize,
}

impl PendingCalls {
    pub fn new(limit: usize) -> Self {
        Self { calls: Mutex::default(), limit }
    }

    /// Registers a call: returns its `requestState` and the receiver of its continuation; `None` if too many calls are
    /// pending.
    pub fn suspend(&self, call: CallIdentity) -> Option<(String, oneshot::Receiver<Continuation>)> {
        let mut calls = self.calls.lock().expect("no code panics while it holds this lock");
        calls.retain(|_, pending| !pending.waiting.is_closed());
        if calls.len() >= self.limit {
            return None;
        }
        // Unguessable, and valid only in its own session.
        let state = uuid::Uuid::new_v4().to_string();
        let (waiting, continuation) = oneshot::channel();
        calls.insert(state.clone(), PendingCall { call, waiting });
        Some((state, continuation))
    }

    /// Whether that call waits for a continuation under that state.
    pub fn knows(&self, call: &CallIdentity, state: &str) -> bool {
        let calls = self.calls.lock().expect("no code panics while it holds this lock");
        calls.get(state).is_some_and(|pending| pending.call == *call && !pending.waiting.is_closed())
    }

    /// Hands the continuation to its call; returns it if no such call is pending.
    pub fn resume(&self, call: &CallIdentity, continuation: Continuation) -> Result<(), Box<Continuation>> {
        let mut calls = self.calls.lock().expect("no code panics while it holds this lock");
        let state = &continuation.repetition.state;
        let fits = calls.get(state).is_some_and(|pending| pending.call == *call);
        match fits.then(|| calls.remove(state)).flatten() {
            Some(pending) => pending.waiting.send(continuation).map_err(Box::new),
            None => Err(Box::new(continuation)),
        }
    }
}
