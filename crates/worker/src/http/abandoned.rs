//! Calls of legacy clients whose connection broke off before the answer. They go on. A client that was started again knows
//! nothing of them and makes the same call once more: it gets what comes of the first, and the tool runs once.

use super::Principal;
use crate::front::FrontCall;
use crate::worker::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use toolbus_mcp::{Members, Message, Outcome, Request, meta};
use xxhash_rust::xxh3::Xxh3;

/// Calls that are remembered; past it the oldest are forgotten, and go on unseen.
const MAX_ABANDONED: usize = 1024;

/// What makes two calls the same: who makes them, and all that they say but their `_meta`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SameCall {
    principal: Principal,
    content: u128,
}

impl SameCall {
    /// Only calls of tools have an effect that must not come twice.
    pub fn of(principal: &Principal, request: &Request) -> Option<Self> {
        if request.method != "tools/call" {
            return None;
        }
        let mut params = Members::of(request.params.as_deref()).ok()?;
        params.remove(meta::META);
        let mut hash = Xxh3::new();
        hash.update(params.to_raw().get().as_bytes());
        Some(Self { principal: principal.clone(), content: hash.digest128() })
    }
}

/// Where the call's messages are kept for its own client, should that come back.
pub type KeptIn = (String, u64);

pub struct AbandonedCalls {
    calls: Mutex<VecDeque<Arc<Abandoned>>>,
    /// How long an answer waits for somebody to ask again.
    window: Duration,
}

struct Abandoned {
    same: SameCall,
    kept_in: Option<KeptIn>,
    bus_id: Option<String>,
    state: Mutex<State>,
}

enum State {
    /// Whoever drives it hands it over when it is asked to.
    Running(mpsc::Sender<oneshot::Sender<FrontCall>>),
    Ended(Outcome, Instant),
}

/// What a repeated call gets.
#[allow(clippy::large_enum_variant)]
pub enum Found {
    Running(FrontCall),
    /// With the id under which the host knew it.
    Ended(Outcome, Option<String>),
}

impl AbandonedCalls {
    pub fn new(window: Duration) -> Self {
        Self { calls: Mutex::default(), window }
    }

    /// Lets the call go on; `keep` gets all that it says.
    pub fn take_over(
        self: &Arc<Self>,
        same: SameCall,
        kept_in: Option<KeptIn>,
        mut call: FrontCall,
        keep: impl Fn(Option<&Message>) + Send + 'static,
    ) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (wishes, mut wished) = mpsc::channel(1);
        let abandoned =
            Arc::new(Abandoned { same, kept_in, bus_id: call.bus_id(), state: Mutex::new(State::Running(wishes)) });
        self.add(Arc::clone(&abandoned));
        let all = Arc::clone(self);
        runtime.spawn(async move {
            loop {
                let message = tokio::select! {
                    biased;
                    Some(wish) = wished.recv() => {
                        let wish: oneshot::Sender<FrontCall> = wish;
                        keep(None);
                        match wish.send(call) {
                            Ok(()) => return,
                            // Whoever wanted it is gone as well.
                            Err(back) => call = back,
                        }
                        all.add(Arc::clone(&abandoned));
                        continue;
                    }
                    message = call.next() => message,
                };
                keep(message.as_ref());
                match message {
                    Some(Message::Response(response)) => {
                        *lock(&abandoned.state) = State::Ended(response.outcome, Instant::now());
                        return keep(None);
                    }
                    Some(_) => {}
                    // It was called off.
                    None => return all.forget(&abandoned),
                }
            }
        });
    }

    /// The oldest call of that kind, which from now on belongs to whoever asks.
    pub async fn join(&self, same: &SameCall) -> Option<Found> {
        let found = {
            let mut calls = lock(&self.calls);
            self.forget_old(&mut calls);
            let at = calls.iter().position(|call| call.same == *same)?;
            calls.remove(at)?
        };
        let wishes = match &*lock(&found.state) {
            State::Running(wishes) => wishes.clone(),
            State::Ended(outcome, _) => return Some(Found::Ended(outcome.clone(), found.bus_id.clone())),
        };
        let (wish, granted) = oneshot::channel();
        if wishes.send(wish).await.is_ok()
            && let Ok(call) = granted.await
        {
            return Some(Found::Running(call));
        }
        // It ended in this moment.
        match &*lock(&found.state) {
            State::Ended(outcome, _) => Some(Found::Ended(outcome.clone(), found.bus_id.clone())),
            State::Running(_) => None,
        }
    }

    /// The call's own client came back for it.
    pub fn came_back(&self, session: &str, stream: u64) {
        let is_own = |call: &Abandoned| call.kept_in.as_ref().is_some_and(|kept| kept.0 == session && kept.1 == stream);
        lock(&self.calls).retain(|call| !is_own(call));
    }

    fn add(&self, abandoned: Arc<Abandoned>) {
        let mut calls = lock(&self.calls);
        self.forget_old(&mut calls);
        if calls.len() >= MAX_ABANDONED {
            calls.pop_front();
        }
        calls.push_back(abandoned);
    }

    fn forget(&self, abandoned: &Arc<Abandoned>) {
        lock(&self.calls).retain(|call| !Arc::ptr_eq(call, abandoned));
    }

    fn forget_old(&self, calls: &mut VecDeque<Arc<Abandoned>>) {
        calls.retain(|call| match &*lock(&call.state) {
            State::Running(_) => true,
            State::Ended(_, at) => at.elapsed() < self.window,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use toolbus_mcp::{Id, raw};

    fn same(name: &str, method: &str, params: Value) -> Option<SameCall> {
        let principal = Principal { name: name.into(), role: None };
        let id = Id::from_raw(&raw(&1)).expect("an id");
        SameCall::of(&principal, &Request { id, method: method.into(), params: Some(raw(&params)) })
    }

    #[test]
    fn the_same_call_is_that_of_the_same_agent_with_the_same_arguments_whatever_its_meta() {
        let call = |name: &str, n: u64, token: u64| {
            let params = json!({"name": "t", "arguments": {"n": n}, "_meta": {"progressToken": token}});
            same(name, "tools/call", params).expect("a call of a tool")
        };
        assert_eq!(call("w", 1, 1), call("w", 1, 2));
        assert_ne!(call("w", 1, 1), call("w", 2, 1));
        assert_ne!(call("w", 1, 1), call("v", 1, 1));
        assert_eq!(same("w", "resources/read", json!({"uri": "x:/"})), None);
    }
}
