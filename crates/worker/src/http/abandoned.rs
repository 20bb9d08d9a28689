//! Calls of legacy clients whose connection broke before the response. They keep running. If the client restarts and
//! repeats the call, the repetition is joined to the first call, so that the tool runs once.

use super::Principal;
use super::session::Session;
use crate::frontend::FrontendCall;
use crate::frontend::joined::EarlierCaller;
use crate::worker::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use toolbus_mcp::{Id, Members, Message, Outcome, Request, meta};
use xxhash_rust::xxh3::Xxh3;

/// Maximum number of calls that can be joined. Beyond it the oldest are dropped from the list but keep running.
const MAX_ABANDONED: usize = 1024;
/// One agent may use this fraction (1/n) of the byte budget.
const AGENT_SHARE: usize = 4;

/// The identity of a call for deduplication: the principal and the params without `_meta`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallKey {
    principal: Principal,
    content: u128,
}

impl CallKey {
    /// `None` for anything but a tool call: only tool calls have effects that must not be repeated.
    pub fn of(principal: &Principal, request: &Request) -> Option<Self> {
        if request.method != "tools/call" {
            return None;
        }
        let mut hash = Xxh3::new();
        for (name, value) in Members::of(request.params.as_ref()).ok()?.iter().filter(|(name, _)| *name != meta::META) {
            for part in [name, value.get()] {
                hash.update(&(part.len() as u64).to_le_bytes());
                hash.update(part.as_bytes());
            }
        }
        Some(Self { principal: principal.clone(), content: hash.digest128() })
    }
}

/// The disconnected caller, and the stream that records the messages of the call in case it reconnects.
pub struct LostCaller {
    pub session: Arc<Session>,
    pub stream: Option<u64>,
    pub id: Id,
}

impl LostCaller {
    fn to_earlier_caller(&self) -> EarlierCaller {
        let (session, stream) = (Arc::clone(&self.session), self.stream);
        let record = move |message: Option<&Message>| match (stream, message) {
            (Some(stream), Some(message)) => drop(session.log.append(stream, message)),
            (Some(stream), None) => session.log.end_stream(stream),
            (None, _) => {}
        };
        EarlierCaller::new(self.id.clone(), Box::new(record))
    }
}

pub struct AbandonedCalls {
    calls: Mutex<VecDeque<Arc<Abandoned>>>,
    /// How long a response is kept after the end of the call.
    window: Duration,
    /// Byte budget of all kept responses.
    max_bytes: usize,
}

struct Abandoned {
    key: CallKey,
    session: Weak<Session>,
    session_id: String,
    stream: Option<u64>,
    /// When the connection broke. Activity in the session since then means that the client is still alive.
    since: Instant,
    bus_id: Option<String>,
    state: Mutex<State>,
}

enum State {
    /// The task that drives the call hands it over on request.
    Running(mpsc::Sender<Handover>),
    Ended(Outcome, Instant),
}

type Handover = oneshot::Sender<(FrontendCall, EarlierCaller)>;

impl Abandoned {
    /// Another session of the same agent may join the call only if the call's own client is disconnected.
    fn can_be_joined_by(&self, session: &Session) -> bool {
        let is_gone = || self.session.upgrade().is_none_or(|own| own.is_idle_since(self.since));
        self.session_id == session.id || is_gone()
    }

    /// The size of the response; `None` while the call is running.
    fn response_bytes(&self) -> Option<usize> {
        match &*lock(&self.state) {
            State::Running(_) => None,
            State::Ended(Outcome::Result(result), _) => Some(result.get().len()),
            State::Ended(Outcome::Error(error), _) => Some(error.get().len()),
        }
    }
}

/// The earlier call that a repeated call was joined to.
#[allow(clippy::large_enum_variant)]
pub enum JoinedCall {
    /// The call and its earlier caller, which gets the response too.
    Running(FrontendCall, EarlierCaller),
    /// The outcome and the id of the call on the bus.
    Ended(Outcome, Option<String>),
}

impl AbandonedCalls {
    pub fn new(window: Duration, max_bytes: usize) -> Self {
        Self { calls: Mutex::default(), window, max_bytes }
    }

    /// Drives the call in the background. Its messages are recorded for its own client.
    pub fn adopt(self: &Arc<Self>, key: CallKey, caller: &LostCaller, call: FrontendCall) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (handovers, requests) = mpsc::channel(1);
        let abandoned = Arc::new(Abandoned {
            key,
            session: Arc::downgrade(&caller.session),
            session_id: caller.session.id.clone(),
            stream: caller.stream,
            since: Instant::now(),
            bus_id: call.bus_id(),
            state: Mutex::new(State::Running(handovers)),
        });
        self.add(Arc::clone(&abandoned));
        runtime.spawn(Arc::clone(self).drive(abandoned, caller.to_earlier_caller(), call, requests));
    }

    async fn drive(
        self: Arc<Self>,
        abandoned: Arc<Abandoned>,
        mut own: EarlierCaller,
        mut call: FrontendCall,
        mut requests: mpsc::Receiver<Handover>,
    ) {
        loop {
            let message = tokio::select! {
                biased;
                Some(handover) = requests.recv() => {
                    match handover.send((call, own)) {
                        Ok(()) => return,
                        // The joining request was dropped in the meantime.
                        Err(back) => (call, own) = back,
                    }
                    self.add(Arc::clone(&abandoned));
                    continue;
                }
                message = call.next() => message,
            };
            message.iter().for_each(|message| own.record(message));
            match message {
                Some(Message::Response(response)) => {
                    *lock(&abandoned.state) = State::Ended(response.outcome.detached(), Instant::now());
                    return self.enforce_budget(&mut lock(&self.calls));
                }
                Some(_) => {}
                // The call was cancelled.
                None => return self.remove(&abandoned),
            }
        }
    }

    /// Removes and returns the oldest equal call that the session may join.
    pub async fn join(&self, key: &CallKey, session: &Session) -> Option<JoinedCall> {
        let found = {
            let mut calls = lock(&self.calls);
            self.remove_expired(&mut calls);
            let at = calls.iter().position(|call| call.key == *key && call.can_be_joined_by(session))?;
            calls.remove(at)?
        };
        let handovers = match &*lock(&found.state) {
            State::Running(handovers) => handovers.clone(),
            State::Ended(outcome, _) => return Some(JoinedCall::Ended(outcome.clone(), found.bus_id.clone())),
        };
        let (handover, handed_over) = oneshot::channel();
        if handovers.send(handover).await.is_ok()
            && let Ok((call, earlier)) = handed_over.await
        {
            return Some(JoinedCall::Running(call, earlier));
        }
        // The call ended before it could be handed over.
        match &*lock(&found.state) {
            State::Ended(outcome, _) => Some(JoinedCall::Ended(outcome.clone(), found.bus_id.clone())),
            State::Running(_) => None,
        }
    }

    /// The call's own client resumed its stream, so the call can't be joined any more.
    pub fn stream_resumed(&self, session: &str, stream: u64) {
        lock(&self.calls).retain(|call| call.session_id != session || call.stream != Some(stream));
    }

    fn add(&self, abandoned: Arc<Abandoned>) {
        let mut calls = lock(&self.calls);
        self.remove_expired(&mut calls);
        if calls.len() >= MAX_ABANDONED {
            calls.pop_front();
        }
        calls.push_back(abandoned);
    }

    /// Drops the oldest responses of agents that exceed their share, and of all agents if the budget is exceeded.
    fn enforce_budget(&self, calls: &mut VecDeque<Arc<Abandoned>>) {
        let (mut all, mut shares) = (0, HashMap::<String, usize>::new());
        let kept: Vec<bool> = (calls.iter().rev())
            .map(|call| {
                let Some(bytes) = call.response_bytes() else { return true };
                let share = shares.entry(call.key.principal.name.clone()).or_default();
                let fits = all + bytes <= self.max_bytes && *share + bytes <= self.max_bytes / AGENT_SHARE;
                // Older responses of the same agent are dropped as well.
                let bytes = if fits { bytes } else { self.max_bytes };
                *share = share.saturating_add(bytes);
                all += if fits { bytes } else { 0 };
                fits
            })
            .collect();
        let mut kept = kept.into_iter().rev();
        calls.retain(|_| kept.next().unwrap_or(true));
    }

    fn remove(&self, abandoned: &Arc<Abandoned>) {
        lock(&self.calls).retain(|call| !Arc::ptr_eq(call, abandoned));
    }

    fn remove_expired(&self, calls: &mut VecDeque<Arc<Abandoned>>) {
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

    fn key(name: &str, method: &str, params: Value) -> Option<CallKey> {
        let principal = Principal { name: name.into(), role: None, incarnation: 0 };
        let id = Id::from_raw(&raw(&1)).expect("an id");
        CallKey::of(&principal, &Request { id, method: method.into(), params: Some(raw(&params)) })
    }

    fn ended(name: &str, bytes: usize) -> Arc<Abandoned> {
        let outcome = Outcome::Result(raw(&"x".repeat(bytes - 2)));
        Arc::new(Abandoned {
            key: key(name, "tools/call", json!({"name": "t"})).expect("a tool call"),
            session: Weak::new(),
            session_id: "s".to_owned(),
            stream: None,
            since: Instant::now(),
            bus_id: None,
            state: Mutex::new(State::Ended(outcome, Instant::now())),
        })
    }

    #[test]
    fn responses_have_a_byte_budget_and_each_agent_a_share_of_it() {
        let abandoned = AbandonedCalls::new(Duration::from_secs(600), 400);
        let remaining = |names: &[(&str, usize)]| {
            let mut calls: VecDeque<_> = names.iter().map(|(name, bytes)| ended(name, *bytes)).collect();
            let all = calls.clone();
            abandoned.enforce_budget(&mut calls);
            let remains = |call: &Arc<Abandoned>| calls.iter().any(|kept| Arc::ptr_eq(kept, call));
            all.iter().map(remains).collect::<Vec<_>>()
        };
        assert_eq!(remaining(&[("w", 50), ("w", 50)]), [true, true]);
        assert_eq!(
            remaining(&[("w", 50), ("v", 50), ("w", 60)]),
            [false, true, true],
            "the agent's oldest response is dropped"
        );
        let five = ["a", "b", "c", "d", "e"].map(|name| (name, 100));
        assert_eq!(remaining(&five), [false, true, true, true, true], "the oldest response of all is dropped");
    }

    #[test]
    fn calls_are_equal_if_agent_and_arguments_are_equal_whatever_their_meta() {
        let call = |name: &str, n: u64, token: u64| {
            let params = json!({"name": "t", "arguments": {"n": n}, "_meta": {"progressToken": token}});
            key(name, "tools/call", params).expect("a tool call")
        };
        assert_eq!(call("w", 1, 1), call("w", 1, 2));
        assert_ne!(call("w", 1, 1), call("w", 2, 1));
        assert_ne!(call("w", 1, 1), call("v", 1, 1));
        assert_eq!(key("w", "resources/read", json!({"uri": "x:/"})), None);
    }
}
