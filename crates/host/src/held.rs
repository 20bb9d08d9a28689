//! Calls to legacy servers that wait until their modern client repeats its request with what the server asked for.

use crate::caller::Caller;
use crate::journaled::Record;
use crate::session::SessionId;
use crate::translate::modern_on_legacy::{Envelope, Repetition};
use std::collections::HashMap;
use std::sync::Mutex;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// A repeated request, on its way to the call that it continues.
pub struct Continuation {
    pub caller: Caller,
    /// What is written about the repetition: it is the one that the call's end answers.
    pub record: Option<Record>,
    pub envelope: Envelope,
    pub repetition: Repetition,
    /// The continued call goes on in the places of its repetition.
    pub places: Vec<OwnedSemaphorePermit>,
}

/// What a call is. What continues it has to be the same: it was this that was allowed, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallIdentity {
    pub session: SessionId,
    pub server: usize,
    pub method: String,
    /// As the caller named it.
    pub name: Option<String>,
    /// A hash.
    pub arguments: Option<String>,
}

struct Held {
    call: CallIdentity,
    waiting: oneshot::Sender<Continuation>,
}

pub struct HeldCalls {
    calls: Mutex<HashMap<String, Held>>,
    limit: usize,
}

impl HeldCalls {
    pub fn new(limit: usize) -> Self {
        Self { calls: Mutex::default(), limit }
    }

    /// A state to hand out and where its continuation comes; none if too many calls are held already.
    pub fn hold(&self, call: CallIdentity) -> Option<(String, oneshot::Receiver<Continuation>)> {
        let mut calls = self.calls.lock().expect("nothing panics while it holds this lock");
        calls.retain(|_, held| !held.waiting.is_closed());
        if calls.len() >= self.limit {
            return None;
        }
        // Nobody can guess it, and it is good for its own session only.
        let state = uuid::Uuid::new_v4().to_string();
        let (waiting, continuation) = oneshot::channel();
        calls.insert(state.clone(), Held { call, waiting });
        Some((state, continuation))
    }

    /// Whether that call waits for a continuation under that state.
    pub fn knows(&self, call: &CallIdentity, state: &str) -> bool {
        let calls = self.calls.lock().expect("nothing panics while it holds this lock");
        calls.get(state).is_some_and(|held| held.call == *call && !held.waiting.is_closed())
    }

    /// Gives the continuation back if there is nothing that it continues.
    pub fn resume(&self, call: &CallIdentity, continuation: Continuation) -> Result<(), Box<Continuation>> {
        let mut calls = self.calls.lock().expect("nothing panics while it holds this lock");
        let state = &continuation.repetition.state;
        let fits = calls.get(state).is_some_and(|held| held.call == *call);
        match fits.then(|| calls.remove(state)).flatten() {
            Some(held) => held.waiting.send(continuation).map_err(Box::new),
            None => Err(Box::new(continuation)),
        }
    }
}
