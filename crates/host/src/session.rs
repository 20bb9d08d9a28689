//! The state of one client at one server between calls. A session outlives its connection: when the connection is
//! opened again, the client's log level and subscriptions are restored.

use crate::calls::Notified;
use crate::host::Host;
use crate::processes::ProcessSlot;
use crate::translate::listen;
use crate::translate::log_level::LogLevel;
use crate::upstream::{Upstream, Usage};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolbus_base::{Share, principal_of};
use toolbus_mcp::{Era, HostEvent, Id, Members, Outcome, Raw};
use toolbus_protocol::MsgId;
use toolbus_upstream::ServerError;

/// Idle time of a session with subscriptions, which receives notifications even if its client makes no calls.
const SUBSCRIBED_IDLE: Duration = Duration::from_secs(3600);

/// Past this many unanswered requests on a shared connection, all of them are forgotten.
const MAX_SHARED_REQUESTS: usize = 1024;

const MAX_STRAYS: usize = 64;

/// The client that a session belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionId {
    pub mailbox: String,
    pub key: String,
}

impl SessionId {
    /// The agent of the client.
    pub fn agent(&self) -> &str {
        principal_of(&self.mailbox)
    }
}

pub struct Session {
    pub id: SessionId,
    era: Era,
    correlation: MsgId,
    /// Locked while a connection is being opened, so that it is opened once.
    pub upstream: tokio::sync::Mutex<Option<Arc<Upstream>>>,
    in_use: AtomicUsize,
    /// A slot for a connection that is not open yet.
    pub(super) reserved: Mutex<Option<ProcessSlot>>,
    /// Locked by a call that waits for such a slot.
    pub reserving: tokio::sync::Mutex<()>,
    /// The share of its agent, if it is set.
    pub share: Option<Share>,
    state: Mutex<State>,
}

struct State {
    last_used: Instant,
    /// The role of the client's last request.
    role: Option<Box<str>>,
    /// Whether `notifications/initialized` has been sent on the current connection.
    initialized: bool,
    level: Option<LogLevel>,
    uris: BTreeSet<String>,
    listeners: Vec<Listener>,
    client_requests: HashMap<Id, oneshot::Sender<Outcome>>,
    /// Ids of requests that the server sent to this client on a shared connection. Only this client may answer them.
    shared_requests: HashSet<Id>,
    next_request: u64,
    stray_senders: Vec<StraySender>,
    /// Ends the current listen of a legacy client on a modern server.
    listening: Option<CancellationToken>,
}

/// A modern client's `subscriptions/listen` on a legacy server.
pub struct Listener {
    pub call: MsgId,
    pub filter: listen::Filter,
}

/// A server's message that arrived while several calls of one client ran and names none of them. Modern clients receive
/// messages only within a call, so any call of the client may take it.
pub enum Stray {
    Notification { method: String, params: Option<Raw> },
    Request { id: Id, method: String, params: Option<Raw> },
}

/// The session's end of a call that accepts strays.
struct StraySender {
    sender: mpsc::Sender<Stray>,
    suspended: Arc<AtomicBool>,
    /// The call asked for log messages.
    wants_log: bool,
}

/// The call's end. While the call is suspended its client receives nothing, so running calls take strays first.
pub struct Strays {
    pub receiver: mpsc::Receiver<Stray>,
    suspended: Arc<AtomicBool>,
}

impl Strays {
    pub fn set_suspended(&self, suspended: bool) {
        self.suspended.store(suspended, Ordering::Relaxed);
    }
}

/// Keeps a session from being considered idle.
pub struct InUse(Arc<Session>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.lock().last_used = Instant::now();
        self.0.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Session {
    pub fn new(id: SessionId, era: Era, share: Option<Share>) -> Arc<Self> {
        let state = State {
            last_used: Instant::now(),
            role: None,
            initialized: false,
            level: None,
            uris: BTreeSet::new(),
            listeners: Vec::new(),
            client_requests: HashMap::new(),
            shared_requests: HashSet::new(),
            next_request: 0,
            stray_senders: Vec::new(),
            listening: None,
        };
        let correlation = MsgId::from(id.key.clone());
        let upstream = tokio::sync::Mutex::default();
        let (in_use, state) = (AtomicUsize::new(0), Mutex::new(state));
        let (reserved, reserving) = (Mutex::default(), tokio::sync::Mutex::default());
        Arc::new(Self { id, era, correlation, upstream, in_use, reserved, reserving, share, state })
    }

    pub fn is_legacy(&self) -> bool {
        self.era == Era::Legacy
    }

    pub fn begin_use(self: &Arc<Self>) -> InUse {
        self.in_use.fetch_add(1, Ordering::Relaxed);
        InUse(Arc::clone(self))
    }

    pub fn last_used(&self) -> Instant {
        self.lock().last_used
    }

    pub fn is_idle(&self, idle: Duration) -> bool {
        self.idle_at(idle).is_some_and(|at| at <= Instant::now())
    }

    /// When the session has been idle for that long; `None` while it is in use.
    pub fn idle_at(&self, idle: Duration) -> Option<Instant> {
        let state = self.lock();
        let has_subscriptions = !state.uris.is_empty() || !state.listeners.is_empty() || state.listening.is_some();
        let limit = if has_subscriptions { idle.max(SUBSCRIBED_IDLE) } else { idle };
        (self.in_use.load(Ordering::Relaxed) == 0).then(|| state.last_used + limit)
    }

    pub fn set_role(&self, role: Option<&str>) {
        let mut state = self.lock();
        if state.role.as_deref() != role {
            state.role = role.map(Into::into);
        }
    }

    pub fn role(&self) -> Option<Box<str>> {
        self.lock().role.clone()
    }

    /// Delivers a notification that belongs to no call, if the rules in force let its client use what it is about.
    pub async fn deliver_notification(
        &self,
        host: &Host,
        server: &str,
        usage: Usage,
        method: &str,
        params: Option<Raw>,
    ) {
        if self.id.is_of_task() {
            return;
        }
        let role = self.role();
        let about = Notified { role: role.as_deref(), server, method, params: params.as_ref() };
        if self.is_legacy() {
            if !host.may_notify(&about) {
                return;
            }
            if usage == Usage::Shared && method == listen::RESOURCE_UPDATED && !self.is_subscribed(params.as_ref()) {
                return;
            }
            let event = HostEvent::Notification { server: server.to_owned(), method: method.to_owned(), params };
            host.outbox.live(&self.id.mailbox, &self.correlation, &event).await;
            return;
        }
        if !listen::is_listen_notification(method) {
            self.offer(Stray::Notification { method: method.to_owned(), params });
            return;
        }
        if !host.may_listen(&about) {
            return;
        }
        for call in self.listeners_of(method, params.as_ref()) {
            let Ok(params) = listen::tagged(params.as_ref(), call.as_str()) else { continue };
            let (server, method) = (server.to_owned(), method.to_owned());
            let event = HostEvent::Notification { server, method, params: Some(params) };
            host.outbox.live(&self.id.mailbox, &call, &event).await;
        }
    }

    /// Registers a call as a receiver of strays.
    pub fn take_strays(&self, wants_log: bool) -> Strays {
        let (sender, receiver) = mpsc::channel(MAX_STRAYS);
        let suspended = Arc::new(AtomicBool::new(false));
        let mut state = self.lock();
        state.stray_senders.retain(|other| !other.sender.is_closed());
        state.stray_senders.push(StraySender { sender, suspended: Arc::clone(&suspended), wants_log });
        Strays { receiver, suspended }
    }

    /// Offers a stray to calls that are not suspended; returns it if none accepts it.
    pub fn offer_running(&self, stray: Stray) -> Option<Stray> {
        self.offer_to(stray, false)
    }

    /// Offers a stray to all calls, running ones first; returns it if none accepts it.
    pub fn offer(&self, stray: Stray) -> Option<Stray> {
        self.offer_to(stray, false).and_then(|stray| self.offer_to(stray, true))
    }

    fn offer_to(&self, stray: Stray, suspended: bool) -> Option<Stray> {
        let mut state = self.lock();
        state.stray_senders.retain(|target| !target.sender.is_closed());
        // All calls are the same client's, so a log message goes to any of them that asked for one.
        let is_log = matches!(&stray, Stray::Notification { method, .. } if method == "notifications/message");
        let accepts = |target: &&StraySender| {
            target.suspended.load(Ordering::Relaxed) == suspended && (target.wants_log || !is_log)
        };
        let mut targets = state.stray_senders.iter().filter(accepts);
        targets.try_fold(stray, |left, target| match target.sender.try_send(left) {
            Ok(()) => None,
            Err(TrySendError::Full(stray) | TrySendError::Closed(stray)) => Some(stray),
        })
    }

    fn is_subscribed(&self, params: Option<&Raw>) -> bool {
        let uri = Members::of(params).ok().and_then(|params| params.text("uri"));
        uri.is_some_and(|uri| self.lock().uris.contains(&uri))
    }

    fn listeners_of(&self, method: &str, params: Option<&Raw>) -> Vec<MsgId> {
        let state = self.lock();
        let wants = |listener: &&Listener| listener.filter.wants(method, params);
        state.listeners.iter().filter(wants).map(|listener| listener.call.clone()).collect()
    }

    /// Forwards a server's request that belongs to no call to the client.
    pub async fn forward_request(&self, host: &Host, server: &str, id: Id, method: String, params: Option<Raw>) {
        let event = HostEvent::Request { server: server.to_owned(), id, method, params };
        if let Err(error) = host.outbox.durable(&self.id.mailbox, &self.correlation, &event).await {
            tracing::warn!(%error, server, "could not deliver a server's request to its client");
        }
    }

    /// Reports a lost connection to a legacy client, which may wait for notifications. The next call reconnects.
    pub async fn upstream_closed(&self, host: &Host, server: &str, error: &ServerError) {
        if self.is_legacy() && !self.id.is_of_task() {
            let event = HostEvent::Closed { server: server.to_owned(), reason: error.to_string() };
            if let Err(error) = host.outbox.durable(&self.id.mailbox, &self.correlation, &event).await {
                tracing::debug!(%error, server, "could not report a closed session to its client");
            }
        }
    }

    /// Registers a request to a legacy client on behalf of a modern server: its id and the receiver of the answer.
    pub fn new_client_request(&self) -> (Id, oneshot::Receiver<Outcome>) {
        let (sender, answer) = oneshot::channel();
        let mut state = self.lock();
        state.client_requests.retain(|_, waiting| !waiting.is_closed());
        state.next_request += 1;
        let id = Id::text(&format!("toolbus-{}", state.next_request));
        state.client_requests.insert(id.clone(), sender);
        (id, answer)
    }

    /// Resolves such a request; returns the outcome if the id is unknown.
    pub fn answer_client_request(&self, id: &Id, outcome: Outcome) -> Result<(), Outcome> {
        let Some(waiting) = self.lock().client_requests.remove(id) else { return Err(outcome) };
        waiting.send(outcome)
    }

    pub fn add_shared_request(&self, id: Id) {
        let mut state = self.lock();
        if state.shared_requests.len() >= MAX_SHARED_REQUESTS {
            state.shared_requests.clear();
        }
        state.shared_requests.insert(id);
    }

    pub fn take_shared_request(&self, id: &Id) -> bool {
        self.lock().shared_requests.remove(id)
    }

    pub fn level(&self) -> Option<LogLevel> {
        self.lock().level
    }

    pub fn set_level(&self, level: LogLevel) {
        self.lock().level = Some(level);
    }

    pub fn uris(&self) -> BTreeSet<String> {
        self.lock().uris.clone()
    }

    /// Returns false if the URI was subscribed already.
    pub fn subscribe(&self, uri: &str) -> bool {
        self.lock().uris.insert(uri.to_owned())
    }

    pub fn unsubscribe(&self, uri: &str) -> bool {
        self.lock().uris.remove(uri)
    }

    pub fn add_listener(&self, listener: Listener) {
        self.lock().listeners.push(listener);
    }

    /// Removes a listener and returns what it listened to.
    pub fn remove_listener(&self, call: &MsgId) -> Option<listen::Filter> {
        let mut state = self.lock();
        let position = state.listeners.iter().position(|listener| listener.call == *call)?;
        Some(state.listeners.remove(position).filter)
    }

    /// All resources that this session is subscribed or listening to.
    pub fn listened_uris(&self) -> BTreeSet<String> {
        let state = self.lock();
        let listened = state.listeners.iter().flat_map(|listener| listener.filter.uris.iter());
        listened.chain(&state.uris).cloned().collect()
    }

    /// Returns whether the value changed.
    pub fn set_initialized(&self, initialized: bool) -> bool {
        std::mem::replace(&mut self.lock().initialized, initialized) != initialized
    }

    /// Replaces the current listen, and ends the previous one.
    pub fn replace_listening(&self, new: Option<CancellationToken>) {
        let old = std::mem::replace(&mut self.lock().listening, new);
        if let Some(old) = old {
            old.cancel();
        }
    }

    pub fn is_listening(&self) -> bool {
        self.lock().listening.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds this lock")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.replace_listening(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_ended_leave_nothing_behind() {
        let id = SessionId { mailbox: "bob".into(), key: "s".into() };
        let session = Session::new(id, Era::Modern, None);
        (0..9).for_each(|_| drop(session.take_strays(true)));
        let _running = session.take_strays(true);
        assert_eq!(session.lock().stray_senders.len(), 1);
    }
}
