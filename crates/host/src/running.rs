//! Calls under way: who waits for each, how it is called off, and when its time is up.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolbus_mcp::{Id, Outcome, Raw};
use toolbus_protocol::{InboxMessage, MsgId, principal_of};
use toolbus_upstream::{CallEvent, ServerCall, ServerError};

/// How long a server may take to answer a call that was called off. Most never do.
pub const CANCEL_GRACE: Duration = Duration::from_secs(1);
/// Ids that are remembered although no call has them: finished ones, and cancels that came before their call.
const REMEMBERED: usize = 32 << 10;

/// No single agent takes more than its share of a host's calls, open listens included.
const MOST_AGENTS_TO_FILL_A_HOST: usize = 4;

/// The wish to call a call off.
#[derive(Debug, Default)]
pub struct Cancel {
    token: CancellationToken,
    reason: OnceLock<String>,
    /// When the caller's patience ends: nobody waits for the call any more, and nobody may be there to say so.
    deadline: OnceLock<Instant>,
    /// When the policy's patience ends, and which limit it is: the caller waits on and is to be told.
    limit: OnceLock<(Instant, String)>,
}

impl Cancel {
    pub fn fire(&self, reason: Option<String>) {
        if let Some(reason) = reason {
            // Only the first reason counts.
            self.reason.set(reason).ok();
        }
        self.token.cancel();
    }

    pub fn expire_at(&self, deadline: Instant) {
        // A call has one deadline; a second push of it brings the same.
        self.deadline.set(deadline).ok();
    }

    pub fn limit(&self, deadline: Instant, which: String) {
        // A call is held to its limits once.
        self.limit.set((deadline, which)).ok();
    }

    pub async fn fired(&self) {
        tokio::select! {
            () = self.token.cancelled() => {}
            () = until(self.end()) => {}
        }
    }

    pub fn is_fired(&self) -> bool {
        self.token.is_cancelled() || self.end().is_some_and(|end| end <= Instant::now())
    }

    /// When the call ends by itself.
    pub fn end(&self) -> Option<Instant> {
        let limit = self.limit.get().map(|(deadline, _)| *deadline);
        self.deadline.get().copied().into_iter().chain(limit).min()
    }

    /// The limit, if it is what ended the call.
    pub fn passed_limit(&self) -> Option<&str> {
        let (deadline, which) = self.limit.get()?;
        (!self.token.is_cancelled() && *deadline <= Instant::now()).then_some(which)
    }

    fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }
}

/// A worker's request that waits for its reply.
#[derive(Clone)]
pub struct Caller {
    pub request: Arc<InboxMessage>,
    pub cancel: Arc<Cancel>,
}

impl Caller {
    pub fn mailbox(&self) -> &str {
        &self.request.from.session_id
    }

    pub fn role(&self) -> Option<&str> {
        self.request.from.role.as_deref()
    }

    pub fn id(&self) -> &MsgId {
        &self.request.id
    }
}

/// Why a request is not begun.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// It runs, or its reply is on its way: the broker pushed it once more after a reconnect.
    Repeated,
    TooMany,
}

#[derive(Default)]
pub struct RunningCalls(Mutex<Table>);

#[derive(Default)]
struct Table {
    calls: HashMap<MsgId, Caller>,
    /// How many of them each agent has.
    by_agent: HashMap<String, usize>,
    finished: Remembered,
    early_cancels: Remembered,
}

/// The last ids, the oldest forgotten first.
#[derive(Default)]
struct Remembered {
    order: VecDeque<MsgId>,
    ids: HashSet<MsgId>,
}

impl Remembered {
    fn add(&mut self, id: MsgId) {
        if self.order.len() == REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        self.order.push_back(id.clone());
        self.ids.insert(id);
    }

    fn contains(&self, id: &MsgId) -> bool {
        self.ids.contains(id)
    }
}

impl RunningCalls {
    pub fn begin(&self, request: Arc<InboxMessage>, limit: usize) -> Result<Caller, Refused> {
        let mut table = self.lock();
        if table.calls.contains_key(&request.id) || table.finished.contains(&request.id) {
            return Err(Refused::Repeated);
        }
        let agent = principal_of(&request.from.session_id).to_owned();
        let share = (limit / MOST_AGENTS_TO_FILL_A_HOST).max(1);
        if table.calls.len() >= limit || table.by_agent.get(&agent).is_some_and(|calls| *calls >= share) {
            return Err(Refused::TooMany);
        }
        *table.by_agent.entry(agent).or_insert(0) += 1;
        let caller = Caller { request, cancel: Arc::default() };
        if table.early_cancels.contains(caller.id()) {
            caller.cancel.fire(None);
        }
        table.calls.insert(caller.id().clone(), caller.clone());
        Ok(caller)
    }

    pub fn finish(&self, id: &MsgId) {
        let mut table = self.lock();
        let Some(ended) = table.calls.remove(id) else { return };
        table.finished.add(id.clone());
        let agent = principal_of(ended.mailbox());
        if let Some(calls) = table.by_agent.get_mut(agent) {
            *calls -= 1;
            if *calls == 0 {
                table.by_agent.remove(agent);
            }
        }
    }

    /// Calls off what runs under that id. `by` is the mailbox that asks, where it is known: nobody calls off the calls
    /// of others.
    pub fn cancel(&self, id: &MsgId, by: Option<&str>, reason: Option<String>) {
        let mut table = self.lock();
        match table.calls.get(id) {
            Some(caller) if by.is_none_or(|by| by == caller.mailbox()) => caller.cancel.fire(reason),
            Some(_) => {}
            None if table.finished.contains(id) => {}
            None => table.early_cancels.add(id.clone()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().expect("nothing panics while it holds this lock")
    }
}

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

pub async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_protocol::{AgentRef, Body, InboxKind};

    fn request(from: &str) -> Arc<InboxMessage> {
        let from = AgentRef::new(from);
        Arc::new(InboxMessage::new(from, InboxKind::McpRequest, Body::null()))
    }

    #[test]
    fn a_request_is_begun_once_even_after_it_finished() {
        let running = RunningCalls::default();
        let request = request("w");
        assert!(running.begin(Arc::clone(&request), 8).is_ok());
        assert_eq!(running.begin(Arc::clone(&request), 8).err(), Some(Refused::Repeated));
        running.finish(&request.id);
        assert_eq!(running.begin(request, 8).err(), Some(Refused::Repeated));
    }

    #[test]
    fn an_agent_takes_its_share_of_a_hosts_calls_and_leaves_the_rest() {
        let running = RunningCalls::default();
        let first = running.begin(request("w#1"), 8).expect("room");
        assert!(running.begin(request("w#2"), 8).is_ok());
        assert_eq!(running.begin(request("w#3"), 8).err(), Some(Refused::TooMany));
        assert!(running.begin(request("v"), 8).is_ok());
        running.finish(first.id());
        assert!(running.begin(request("w#3"), 8).is_ok());
    }

    #[test]
    fn calls_are_bounded() {
        let running = RunningCalls::default();
        assert!(running.begin(request("w"), 1).is_ok());
        assert_eq!(running.begin(request("w"), 1).err(), Some(Refused::TooMany));
    }

    #[test]
    fn only_its_own_worker_calls_a_call_off() {
        let running = RunningCalls::default();
        let caller = running.begin(request("w"), 8).expect("room");
        running.cancel(caller.id(), Some("other"), None);
        assert!(!caller.cancel.is_fired());
        running.cancel(caller.id(), Some("w"), Some("enough".to_owned()));
        assert!(caller.cancel.is_fired());
        assert_eq!(caller.cancel.reason(), Some("enough"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_ends_with_its_callers_patience() {
        let caller = RunningCalls::default().begin(request("w"), 8).expect("room");
        caller.cancel.expire_at(Instant::now() + Duration::from_secs(60));
        assert!(!caller.cancel.is_fired());
        caller.cancel.fired().await;
        assert!(caller.cancel.is_fired());
    }

    #[test]
    fn a_cancel_that_overtakes_its_call_counts() {
        let running = RunningCalls::default();
        let request = request("w");
        running.cancel(&request.id, None, None);
        let caller = running.begin(request, 8).expect("room");
        assert!(caller.cancel.is_fired());
    }
}
