//! One client's use of one server, as the host keeps it between calls. A session survives its connection: what the client
//! had set up (level of logs, subscriptions) is set up again when the connection is opened anew.

use crate::host::Host;
use crate::link::{Link, Use};
use crate::translate::listen;
use crate::translate::log_level::LogLevel;
use crate::turns::Turns;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolbus_mcp::{Era, HostEvent, Id, Members, Outcome, Raw};
use toolbus_protocol::MsgId;
use toolbus_upstream::ServerError;

/// How long a session with subscriptions is kept although its client calls nothing: it may still want the news.
const SUBSCRIBED_IDLE: Duration = Duration::from_secs(3600);

/// Questions that a client leaves unanswered are forgotten past this many.
const MOST_OPEN_QUESTIONS: usize = 1024;

const MOST_STRAYS: usize = 64;

/// Who a session belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionId {
    pub mailbox: String,
    pub key: String,
}

pub struct Session {
    pub id: SessionId,
    era: Era,
    correlation: MsgId,
    pub turns: Turns,
    /// Locked while a connection is being opened, so that it is opened once.
    pub link: tokio::sync::Mutex<Option<Arc<Link>>>,
    in_use: AtomicUsize,
    /// For a connection that is still to be opened.
    reserved: Mutex<Option<OwnedSemaphorePermit>>,
    state: Mutex<State>,
}

struct State {
    last_used: Instant,
    /// Whether `notifications/initialized` has been sent on the present connection.
    initialized: bool,
    level: Option<LogLevel>,
    uris: BTreeSet<String>,
    listeners: Vec<Listener>,
    questions: HashMap<Id, oneshot::Sender<Outcome>>,
    /// What a server asked this client on a connection that it shares with others: nobody else may answer it.
    asked: HashSet<Id>,
    next_question: u64,
    takers: Vec<Taker>,
    /// Ends the present listen of a legacy client on a modern server.
    listening: Option<CancellationToken>,
}

/// A modern client's `subscriptions/listen` on a legacy server.
pub struct Listener {
    pub call: MsgId,
    pub filter: listen::Filter,
}

/// What a server said while several calls of one client ran, so that it belongs to none of them for sure. A modern
/// client can hear it only in a call; any of its own will do.
pub enum Stray {
    Notification { method: String, params: Option<Raw> },
    Request { id: Id, method: String, params: Option<Raw> },
}

/// A call that takes strays.
struct Taker {
    sender: mpsc::Sender<Stray>,
    held: Arc<AtomicBool>,
}

/// The call's end of it. While the call is held its client hears nothing, so others take strays first.
pub struct Strays {
    pub receiver: mpsc::Receiver<Stray>,
    held: Arc<AtomicBool>,
}

impl Strays {
    pub fn set_held(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }
}

/// Keeps a session from being taken for idle.
pub struct InUse(Arc<Session>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.lock().last_used = Instant::now();
        self.0.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Session {
    pub fn new(id: SessionId, era: Era) -> Arc<Self> {
        let state = State {
            last_used: Instant::now(),
            initialized: false,
            level: None,
            uris: BTreeSet::new(),
            listeners: Vec::new(),
            questions: HashMap::new(),
            asked: HashSet::new(),
            next_question: 0,
            takers: Vec::new(),
            listening: None,
        };
        let correlation = MsgId::from(id.key.clone());
        let link = tokio::sync::Mutex::default();
        let (turns, in_use) = (Turns::default(), AtomicUsize::new(0));
        let (reserved, state) = (Mutex::default(), Mutex::new(state));
        Arc::new(Self { id, era, correlation, turns, link, in_use, reserved, state })
    }

    pub fn is_legacy(&self) -> bool {
        self.era == Era::Legacy
    }

    pub fn begin_use(self: &Arc<Self>) -> InUse {
        self.in_use.fetch_add(1, Ordering::Relaxed);
        InUse(Arc::clone(self))
    }

    /// Keeps a slot for the connection that it will open.
    pub fn reserve(&self, slot: OwnedSemaphorePermit) {
        *self.reserved.lock().expect("nothing panics while it holds this lock") = Some(slot);
    }

    pub fn take_reserved(&self) -> Option<OwnedSemaphorePermit> {
        self.reserved.lock().expect("nothing panics while it holds this lock").take()
    }

    pub fn last_used(&self) -> Instant {
        self.lock().last_used
    }

    pub fn is_idle(&self, idle: Duration) -> bool {
        let state = self.lock();
        let wants_news = !state.uris.is_empty() || !state.listeners.is_empty() || state.listening.is_some();
        let limit = if wants_news { idle.max(SUBSCRIBED_IDLE) } else { idle };
        self.in_use.load(Ordering::Relaxed) == 0 && state.last_used.elapsed() >= limit
    }

    /// What the server says outside of any call.
    pub async fn hear(&self, host: &Host, server: &str, usage: Use, method: &str, params: Option<Raw>) {
        if self.id.is_of_task() {
            return;
        }
        if self.is_legacy() {
            if usage == Use::Shared && method == listen::RESOURCE_UPDATED && !self.is_subscribed(params.as_ref()) {
                return;
            }
            let event = HostEvent::Notification { server: server.to_owned(), method: method.to_owned(), params };
            host.outbox.live(&self.id.mailbox, &self.correlation, &event).await;
            return;
        }
        if !listen::is_news(method) {
            self.offer(Stray::Notification { method: method.to_owned(), params });
            return;
        }
        for call in self.listeners_of(method, params.as_ref()) {
            let Ok(params) = listen::tagged(params.as_deref(), call.as_str()) else { continue };
            let (server, method) = (server.to_owned(), method.to_owned());
            let event = HostEvent::Notification { server, method, params: Some(params) };
            host.outbox.live(&self.id.mailbox, &call, &event).await;
        }
    }

    /// Signs a call up for what may belong to it.
    pub fn take_strays(&self) -> Strays {
        let (sender, receiver) = mpsc::channel(MOST_STRAYS);
        let held = Arc::new(AtomicBool::new(false));
        self.lock().takers.push(Taker { sender, held: Arc::clone(&held) });
        Strays { receiver, held }
    }

    /// Gives it to a call whose client can be told at once; back if there is none.
    pub fn offer_running(&self, stray: Stray) -> Option<Stray> {
        self.offer_to(stray, false)
    }

    /// Gives it to one of the calls; back if none takes it.
    pub fn offer(&self, stray: Stray) -> Option<Stray> {
        self.offer_to(stray, false).and_then(|stray| self.offer_to(stray, true))
    }

    fn offer_to(&self, stray: Stray, held: bool) -> Option<Stray> {
        let mut state = self.lock();
        state.takers.retain(|taker| !taker.sender.is_closed());
        let mut takers = state.takers.iter().filter(|taker| taker.held.load(Ordering::Relaxed) == held);
        takers.try_fold(stray, |left, taker| match taker.sender.try_send(left) {
            Ok(()) => None,
            Err(TrySendError::Full(stray) | TrySendError::Closed(stray)) => Some(stray),
        })
    }

    fn is_subscribed(&self, params: Option<&Raw>) -> bool {
        let uri = Members::of(params.map(|params| &**params)).ok().and_then(|params| params.text("uri"));
        uri.is_some_and(|uri| self.lock().uris.contains(&uri))
    }

    fn listeners_of(&self, method: &str, params: Option<&Raw>) -> Vec<MsgId> {
        let state = self.lock();
        let wants = |listener: &&Listener| listener.filter.wants(method, params.map(|params| &**params));
        state.listeners.iter().filter(wants).map(|listener| listener.call.clone()).collect()
    }

    /// The server asks the client, outside of any call.
    pub async fn ask(&self, host: &Host, server: &str, id: Id, method: String, params: Option<Raw>) {
        let event = HostEvent::Request { server: server.to_owned(), id, method, params };
        if let Err(error) = host.outbox.durable(&self.id.mailbox, &self.correlation, &event).await {
            tracing::warn!(%error, server, "a server's request did not reach its client");
        }
    }

    /// The next call opens the connection again; a client that waits for the server's word should know all the same.
    pub async fn link_closed(&self, host: &Host, server: &str, error: &ServerError) {
        if self.is_legacy() && !self.id.is_of_task() {
            let event = HostEvent::Closed { server: server.to_owned(), reason: error.to_string() };
            if let Err(error) = host.outbox.durable(&self.id.mailbox, &self.correlation, &event).await {
                tracing::debug!(%error, server, "the end of a session was not told");
            }
        }
    }

    /// A question to a legacy client on behalf of a modern server: the id to ask under, and where the answer comes.
    pub fn new_question(&self) -> (Id, oneshot::Receiver<Outcome>) {
        let (sender, answer) = oneshot::channel();
        let mut state = self.lock();
        state.questions.retain(|_, waiting| !waiting.is_closed());
        state.next_question += 1;
        let id = Id::text(&format!("toolbus-{}", state.next_question));
        state.questions.insert(id.clone(), sender);
        (id, answer)
    }

    /// The answer to such a question; gives it back if it answers none.
    pub fn answer_question(&self, id: &Id, outcome: Outcome) -> Result<(), Outcome> {
        let Some(waiting) = self.lock().questions.remove(id) else { return Err(outcome) };
        waiting.send(outcome)
    }

    pub fn set_asked(&self, id: Id) {
        let mut state = self.lock();
        if state.asked.len() >= MOST_OPEN_QUESTIONS {
            state.asked.clear();
        }
        state.asked.insert(id);
    }

    pub fn take_asked(&self, id: &Id) -> bool {
        self.lock().asked.remove(id)
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

    /// False if nothing changes.
    pub fn subscribe(&self, uri: &str) -> bool {
        self.lock().uris.insert(uri.to_owned())
    }

    pub fn unsubscribe(&self, uri: &str) -> bool {
        self.lock().uris.remove(uri)
    }

    pub fn add_listener(&self, listener: Listener) {
        self.lock().listeners.push(listener);
    }

    pub fn remove_listener(&self, call: &MsgId) {
        self.lock().listeners.retain(|listener| listener.call != *call);
    }

    /// All resources that somebody in this session listens to.
    pub fn listened_uris(&self) -> BTreeSet<String> {
        let state = self.lock();
        let listened = state.listeners.iter().flat_map(|listener| listener.filter.uris.iter());
        listened.chain(&state.uris).cloned().collect()
    }

    /// True for the first one on a connection.
    pub fn set_initialized(&self, initialized: bool) -> bool {
        std::mem::replace(&mut self.lock().initialized, initialized) != initialized
    }

    /// Puts a new listen in the place of the one before, which is ended.
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
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.replace_listening(None);
    }
}
