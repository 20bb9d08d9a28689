//! Calls of legacy clients whose connection broke off before the answer. They go on. A client that was started again knows
//! nothing of them and makes the same call once more: it gets what comes of the first, and the tool runs once.

use super::Principal;
use super::session::Session;
use crate::frontend::FrontendCall;
use crate::frontend::joined::Earlier;
use crate::worker::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use toolbus_mcp::{Id, Members, Message, Outcome, Request, meta};
use xxhash_rust::xxh3::Xxh3;

/// Calls that are remembered; past it the oldest are forgotten, and go on unseen.
const MAX_ABANDONED: usize = 1024;
/// One agent has this part of the room for answers.
const SHARES: usize = 4;

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

/// Whose call it was, and where its messages are kept should its client come back.
pub struct Left {
    pub session: Arc<Session>,
    pub stream: Option<u64>,
    pub id: Id,
}

impl Left {
    fn earlier(&self) -> Earlier {
        let (session, stream) = (Arc::clone(&self.session), self.stream);
        let keep = move |message: Option<&Message>| match (stream, message) {
            (Some(stream), Some(message)) => drop(session.log.append(stream, message)),
            (Some(stream), None) => session.log.end_stream(stream),
            (None, _) => {}
        };
        Earlier::new(self.id.clone(), Box::new(keep))
    }
}

pub struct AbandonedCalls {
    calls: Mutex<VecDeque<Arc<Abandoned>>>,
    /// How long an answer waits for somebody to ask again.
    window: Duration,
    /// Of all answers together; one agent has a share of it.
    max_bytes: usize,
}

struct Abandoned {
    same: SameCall,
    session: Weak<Session>,
    session_id: String,
    stream: Option<u64>,
    /// Its client may still live if it was heard of since.
    since: Instant,
    bus_id: Option<String>,
    state: Mutex<State>,
}

enum State {
    /// Whoever drives it hands it over when it is asked to.
    Running(mpsc::Sender<Wish>),
    Ended(Outcome, Instant),
}

type Wish = oneshot::Sender<(FrontendCall, Earlier)>;

impl Abandoned {
    /// What another session of the same agent asks for is not this call, as long as its own client may come back for it.
    fn may_go_to(&self, session: &Session) -> bool {
        let is_gone = || self.session.upgrade().is_none_or(|own| own.is_silent_since(self.since));
        self.session_id == session.id || is_gone()
    }

    /// Bytes of its answer.
    fn weight(&self) -> Option<usize> {
        match &*lock(&self.state) {
            State::Running(_) => None,
            State::Ended(Outcome::Result(result), _) => Some(result.get().len()),
            State::Ended(Outcome::Error(error), _) => Some(error.get().len()),
        }
    }
}

/// What a repeated call gets.
#[allow(clippy::large_enum_variant)]
pub enum Found {
    /// With whom it was begun for, who gets the answer too.
    Running(FrontendCall, Earlier),
    /// With the id under which the host knew it.
    Ended(Outcome, Option<String>),
}

impl AbandonedCalls {
    pub fn new(window: Duration, max_bytes: usize) -> Self {
        Self { calls: Mutex::default(), window, max_bytes }
    }

    /// Lets the call go on; all that it says is kept where its own client finds it.
    pub fn take_over(self: &Arc<Self>, same: SameCall, left: &Left, call: FrontendCall) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (wishes, wished) = mpsc::channel(1);
        let abandoned = Arc::new(Abandoned {
            same,
            session: Arc::downgrade(&left.session),
            session_id: left.session.id.clone(),
            stream: left.stream,
            since: Instant::now(),
            bus_id: call.bus_id(),
            state: Mutex::new(State::Running(wishes)),
        });
        self.add(Arc::clone(&abandoned));
        runtime.spawn(Arc::clone(self).drive(abandoned, left.earlier(), call, wished));
    }

    async fn drive(
        self: Arc<Self>,
        abandoned: Arc<Abandoned>,
        mut own: Earlier,
        mut call: FrontendCall,
        mut wished: mpsc::Receiver<Wish>,
    ) {
        loop {
            let message = tokio::select! {
                biased;
                Some(wish) = wished.recv() => {
                    match wish.send((call, own)) {
                        Ok(()) => return,
                        // Whoever wanted it is gone as well.
                        Err(back) => (call, own) = back,
                    }
                    self.add(Arc::clone(&abandoned));
                    continue;
                }
                message = call.next() => message,
            };
            message.iter().for_each(|message| own.keep(message));
            match message {
                Some(Message::Response(response)) => {
                    *lock(&abandoned.state) = State::Ended(response.outcome, Instant::now());
                    return self.make_room(&mut lock(&self.calls));
                }
                Some(_) => {}
                // It was called off.
                None => return self.forget(&abandoned),
            }
        }
    }

    /// The oldest call of that kind that the session may have, and which from now on belongs to it.
    pub async fn join(&self, same: &SameCall, session: &Session) -> Option<Found> {
        let found = {
            let mut calls = lock(&self.calls);
            self.forget_old(&mut calls);
            let at = calls.iter().position(|call| call.same == *same && call.may_go_to(session))?;
            calls.remove(at)?
        };
        let wishes = match &*lock(&found.state) {
            State::Running(wishes) => wishes.clone(),
            State::Ended(outcome, _) => return Some(Found::Ended(outcome.clone(), found.bus_id.clone())),
        };
        let (wish, granted) = oneshot::channel();
        if wishes.send(wish).await.is_ok()
            && let Ok((call, earlier)) = granted.await
        {
            return Some(Found::Running(call, earlier));
        }
        // It ended in this moment.
        match &*lock(&found.state) {
            State::Ended(outcome, _) => Some(Found::Ended(outcome.clone(), found.bus_id.clone())),
            State::Running(_) => None,
        }
    }

    /// The call's own client came back for it.
    pub fn came_back(&self, session: &str, stream: u64) {
        lock(&self.calls).retain(|call| call.session_id != session || call.stream != Some(stream));
    }

    fn add(&self, abandoned: Arc<Abandoned>) {
        let mut calls = lock(&self.calls);
        self.forget_old(&mut calls);
        if calls.len() >= MAX_ABANDONED {
            calls.pop_front();
        }
        calls.push_back(abandoned);
    }

    /// The oldest answers go first: of an agent that has more than its share, and of all.
    fn make_room(&self, calls: &mut VecDeque<Arc<Abandoned>>) {
        let (mut all, mut shares) = (0, HashMap::<String, usize>::new());
        let kept: Vec<bool> = (calls.iter().rev())
            .map(|call| {
                let Some(bytes) = call.weight() else { return true };
                let share = shares.entry(call.same.principal.name.clone()).or_default();
                let fits = all + bytes <= self.max_bytes && *share + bytes <= self.max_bytes / SHARES;
                // What is older than one that had to go goes too.
                let bytes = if fits { bytes } else { self.max_bytes };
                *share = share.saturating_add(bytes);
                all += if fits { bytes } else { 0 };
                fits
            })
            .collect();
        let mut kept = kept.into_iter().rev();
        calls.retain(|_| kept.next().unwrap_or(true));
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

    fn ended(name: &str, bytes: usize) -> Arc<Abandoned> {
        let outcome = Outcome::Result(raw(&"x".repeat(bytes - 2)));
        Arc::new(Abandoned {
            same: same(name, "tools/call", json!({"name": "t"})).expect("a call of a tool"),
            session: Weak::new(),
            session_id: "s".to_owned(),
            stream: None,
            since: Instant::now(),
            bus_id: None,
            state: Mutex::new(State::Ended(outcome, Instant::now())),
        })
    }

    #[test]
    fn answers_have_a_budget_and_each_agent_a_share_of_it() {
        let abandoned = AbandonedCalls::new(Duration::from_secs(600), 400);
        let left = |names: &[(&str, usize)]| {
            let mut calls: VecDeque<_> = names.iter().map(|(name, bytes)| ended(name, *bytes)).collect();
            let all = calls.clone();
            abandoned.make_room(&mut calls);
            let is_left = |call: &Arc<Abandoned>| calls.iter().any(|left| Arc::ptr_eq(left, call));
            all.iter().map(is_left).collect::<Vec<_>>()
        };
        assert_eq!(left(&[("w", 50), ("w", 50)]), [true, true]);
        assert_eq!(left(&[("w", 50), ("v", 50), ("w", 60)]), [false, true, true], "the oldest of that agent");
        let five = ["a", "b", "c", "d", "e"].map(|name| (name, 100));
        assert_eq!(left(&five), [false, true, true, true, true], "the oldest of all");
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
