//! A live connection to a server and the sessions that use it. Routes the server's messages that belong to no call.

use crate::calls::Slot;
use crate::catalog::KnownTools;
use crate::failure;
use crate::host::Host;
use crate::open_error::OpenError;
use crate::processes::ProcessSlot;
use crate::session::{Session, Stray};
use crate::translate::{legacy_on_modern::ClientIdentity, listen};
use serde_json::json;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use toolbus_mcp::{Era, HostEvent, Id, LATEST_LEGACY, ListKind, Outcome, Raw, RpcError, codes, empty_object, raw};
use toolbus_protocol::{ErrorCode, MsgId};
use toolbus_upstream::{
    CallEvent, ConnectionOptions, ProbedConnection, ServerConfig, ServerConnection, ServerError, ServerEvent,
};

/// Server events that wait to be forwarded; beyond that, backpressure stops reading from the server.
const MAX_QUEUED_EVENTS: usize = 256;

/// What a connection is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// The session of one client, or the host itself until a client takes the connection over (`spare`).
    Own,
    /// All clients.
    Shared,
}

pub struct Upstream {
    pub connection: ServerConnection,
    pub usage: Usage,
    /// The result of `initialize` or of `server/discover`.
    handshake: OnceLock<Raw>,
    sessions: Mutex<Vec<Weak<Session>>>,
    /// Number of subscribed sessions per resource.
    subscriptions: Mutex<HashMap<String, usize>>,
    /// Calls that asked a modern server for log messages.
    log_receivers: Mutex<Vec<Receiver>>,
    /// Counts the list changes that the server reported.
    list_changes: watch::Sender<u64>,
    /// The tools that this connection lists. Locked while they are read, so that they are read once.
    pub tools: tokio::sync::Mutex<Option<KnownTools>>,
    has_other_tools: AtomicBool,
    closed: CancellationToken,
    /// Whether a client has taken over the host's own connection.
    taken_over: AtomicBool,
    /// The connection's slot of `max_sessions`, released when the connection closes.
    slot: Mutex<Option<ProcessSlot>>,
}

impl Upstream {
    /// Opens a connection without a handshake.
    pub async fn open(
        host: &Arc<Host>,
        config: &ServerConfig,
        era: Era,
        usage: Usage,
        slot: Option<ProcessSlot>,
    ) -> Result<Arc<Self>, ServerError> {
        let (sender, events) = mpsc::channel(MAX_QUEUED_EVENTS);
        let options = ConnectionOptions { map_tokens: usage == Usage::Shared, ..host.options.connection.clone() };
        let connection = ServerConnection::open(config, era, &options, sender).await?;
        Ok(Self::on(host, config, ProbedConnection { connection, events }, usage, slot))
    }

    /// On a connection that is open.
    pub fn on(
        host: &Arc<Host>,
        config: &ServerConfig,
        opened: ProbedConnection,
        usage: Usage,
        slot: Option<ProcessSlot>,
    ) -> Arc<Self> {
        let ProbedConnection { connection, events } = opened;
        let upstream = Arc::new(Self {
            connection,
            usage,
            handshake: OnceLock::new(),
            sessions: Mutex::default(),
            subscriptions: Mutex::default(),
            log_receivers: Mutex::default(),
            list_changes: watch::Sender::new(0),
            tools: tokio::sync::Mutex::default(),
            has_other_tools: AtomicBool::new(false),
            closed: CancellationToken::new(),
            taken_over: AtomicBool::new(false),
            slot: Mutex::new(slot),
        });
        host.tracker.spawn(forward_events(
            Arc::downgrade(&upstream),
            config.name.clone(),
            Arc::downgrade(host),
            events,
        ));
        upstream
    }

    /// The host's own connection becomes that of a client, in this slot.
    pub fn take_over(&self, slot: ProcessSlot) {
        self.taken_over.store(true, Ordering::Relaxed);
        let mut current = self.slot.lock().expect("no code panics while it holds this lock");
        *current = Some(slot).filter(|_| !self.closed.is_cancelled());
    }

    pub fn is_taken_over(&self) -> bool {
        self.taken_over.load(Ordering::Relaxed)
    }

    /// Initializes a legacy server, without sending `notifications/initialized`.
    pub async fn initialize(&self, host: &Host, config: &ServerConfig, params: Raw) -> Result<(), OpenError> {
        let limit = host.options.connection.start_timeout_of(config);
        let handshake = async {
            let mut call = self.connection.start("initialize", Some(params)).await?;
            loop {
                match call.next().await {
                    CallEvent::Done(Ok(Outcome::Result(result))) => return Ok(result),
                    CallEvent::Done(Ok(Outcome::Error(error))) => return Err(OpenError::Refused(error)),
                    CallEvent::Done(Err(error)) => return Err(error.into()),
                    CallEvent::Request { id, method, .. } => self.answer_or_refuse(&id, &method).await,
                    CallEvent::Notification { .. } => {}
                }
            }
        };
        let silent = || {
            let runner = config.package_runner().map(str::to_owned);
            let stderr = self.connection.stderr_tail();
            ServerError::SlowStart { server: config.name.clone(), after: limit, runner, stderr }
        };
        let result = tokio::time::timeout(limit, handshake).await.map_err(|_| silent())??;
        self.set_handshake(result);
        Ok(())
    }

    pub fn set_handshake(&self, handshake: Raw) {
        self.handshake.set(handshake).ok();
    }

    pub fn handshake(&self) -> Raw {
        self.handshake.get().cloned().unwrap_or_else(empty_object)
    }

    pub fn is_open(&self) -> bool {
        self.connection.closed().is_none() && !self.closed.is_cancelled()
    }

    /// Closes the connection and waits until it is closed.
    pub async fn close(&self) {
        self.closed.cancel();
        self.connection.close().await;
        drop(self.slot.lock().expect("no code panics while it holds this lock").take());
    }

    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    pub fn list_changes(&self) -> watch::Receiver<u64> {
        self.list_changes.subscribe()
    }

    pub fn count_of_list_changes(&self) -> u64 {
        *self.list_changes.borrow()
    }

    /// Whether the lists of the connection may differ from those of the catalog.
    pub fn has_own_lists(&self) -> bool {
        self.has_other_tools.load(Ordering::Relaxed) || self.count_of_list_changes() > 0
    }

    /// The connection lists other tools than the catalog. Returns true the first time.
    pub fn set_other_tools(&self) -> bool {
        !self.has_other_tools.swap(true, Ordering::Relaxed)
    }

    pub fn add_session(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions.lock().expect("no code panics while it holds this lock");
        sessions.retain(|session_ref| session_ref.strong_count() > 0);
        if !sessions.iter().any(|session_ref| std::ptr::eq(session_ref.as_ptr(), Arc::as_ptr(session))) {
            sessions.push(Arc::downgrade(session));
        }
    }

    fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions
            .lock()
            .expect("no code panics while it holds this lock")
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Counts a subscription; true for the first one, for which the server needs a request.
    pub fn add_subscription(&self, uri: &str) -> bool {
        let mut subscriptions = self.subscriptions.lock().expect("no code panics while it holds this lock");
        let count = subscriptions.entry(uri.to_owned()).or_insert(0);
        *count += 1;
        *count == 1
    }

    /// Returns true if it was the last one.
    pub fn remove_subscription(&self, uri: &str) -> bool {
        let mut subscriptions = self.subscriptions.lock().expect("no code panics while it holds this lock");
        let Some(count) = subscriptions.get_mut(uri) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            subscriptions.remove(uri);
        }
        last
    }

    /// Registers a call for log messages that name no call.
    pub fn add_log_receiver(self: &Arc<Self>, slot: &Slot) -> LogReceiver {
        let receiver = Receiver { mailbox: slot.mailbox().to_owned(), id: slot.id().clone() };
        self.log_receivers.lock().expect("no code panics while it holds this lock").push(receiver.clone());
        LogReceiver { upstream: Arc::clone(self), receiver }
    }

    /// The call that gets such messages, if all registered calls belong to one worker.
    fn only_log_receiver(&self) -> Option<Receiver> {
        let log_receivers = self.log_receivers.lock().expect("no code panics while it holds this lock");
        let last = log_receivers.last()?;
        log_receivers.iter().all(|receiver| receiver.mailbox == last.mailbox).then(|| last.clone())
    }

    /// Delivers a notification to all sessions of the connection, and counts list changes.
    pub async fn broadcast(&self, host: &Host, server: &str, method: &str, params: Option<Raw>) {
        self.count_list_change(method);
        for session in self.sessions() {
            session.deliver_notification(host, server, self.usage, method, params.clone()).await;
        }
    }

    /// List changes that arrive during a call concern the catalog as well.
    pub fn count_list_change(&self, method: &str) {
        if ListKind::ALL.iter().any(|kind| kind.list_changed() == method) {
            self.assume_list_change();
        }
    }

    /// The lists have changed, or may have.
    pub fn assume_list_change(&self) {
        self.list_changes.send_modify(|count| *count += 1);
    }

    /// Answers a server's request that can't be forwarded to a client.
    pub async fn answer_or_refuse(&self, id: &Id, method: &str) {
        let outcome = if method == "ping" { Outcome::Result(empty_object()) } else { refusal(method).into() };
        if let Err(error) = self.connection.answer(id, outcome).await {
            tracing::debug!(%error, method, "could not answer a server's request");
        }
    }

    /// Handles a message of the server that belongs to no call.
    pub async fn on_event(&self, host: &Host, server: &str, event: ServerEvent) {
        match event {
            ServerEvent::Notification { method, params } => {
                // On a shared connection, progress and log messages can't be attributed to a session unless there is
                // only one.
                let private = matches!(method.as_str(), "notifications/progress" | "notifications/message");
                if self.usage != Usage::Shared || !private || self.sessions().len() == 1 {
                    self.broadcast(host, server, &method, params).await;
                } else if let Some(receiver) = self.only_log_receiver().filter(|_| method == "notifications/message") {
                    let event = HostEvent::Notification { server: server.to_owned(), method, params };
                    host.outbox.live(&receiver.mailbox, &receiver.id, &event).await;
                }
            }
            ServerEvent::Request { id, method, params } => {
                let sessions = self.sessions();
                let may_ask = |session: &Session| host.may_see(session.role().as_deref(), server);
                match sessions.first().filter(|session| may_ask(session)) {
                    Some(session) if self.usage == Usage::Own && session.is_legacy() && !session.id.is_of_task() => {
                        session.forward_request(host, server, id, method, params).await;
                    }
                    Some(session) if self.usage == Usage::Own => {
                        let left = session.offer(Stray::Request { id, method, params });
                        if let Some(Stray::Request { id, method, .. }) = left {
                            self.answer_or_refuse(&id, &method).await;
                        }
                    }
                    _ => self.answer_or_refuse(&id, &method).await,
                }
            }
            // The host itself closed the connection, so there is nothing to report.
            ServerEvent::Closed(_) if self.closed.is_cancelled() => {}
            ServerEvent::Closed(error) => {
                self.closed.cancel();
                drop(self.slot.lock().expect("no code panics while it holds this lock").take());
                tracing::info!(server, %error, usage = ?self.usage, "a connection to a server was lost");
                for session in self.sessions() {
                    session.upstream_closed(host, server, &error).await;
                }
            }
        }
    }
}

/// Registration of a call for log messages, removed on drop.
pub struct LogReceiver {
    upstream: Arc<Upstream>,
    receiver: Receiver,
}

/// A call that gets log messages.
#[derive(Clone)]
struct Receiver {
    mailbox: String,
    id: MsgId,
}

impl Drop for LogReceiver {
    fn drop(&mut self) {
        let mut log_receivers = self.upstream.log_receivers.lock().expect("no code panics while it holds this lock");
        log_receivers.retain(|receiver| receiver.id != self.receiver.id);
    }
}

fn refusal(method: &str) -> RpcError {
    let message = format!("{method} cannot be forwarded: it does not belong to the running call of a single client");
    let code = ErrorCode::UnknownName;
    RpcError::new(codes::METHOD_NOT_FOUND, message).with_data(json!({"code": code.code()}))
}

async fn forward_events(
    upstream: Weak<Upstream>,
    server: String,
    host: Weak<Host>,
    mut events: mpsc::Receiver<ServerEvent>,
) {
    while let Some(event) = events.recv().await {
        let (Some(upstream), Some(host)) = (upstream.upgrade(), host.upgrade()) else { return };
        upstream.on_event(&host, &server, event).await;
    }
    if let Some(upstream) = upstream.upgrade() {
        upstream.closed.cancel();
    }
}

/// The host's own `initialize`. On a shared connection it announces that clients accept requests; each request is
/// checked against the capabilities of the client that gets it.
pub fn host_initialize(usage: Usage) -> Raw {
    let capabilities = match usage {
        Usage::Shared => json!({"elicitation": {}, "sampling": {}}),
        Usage::Own => json!({}),
    };
    let info = json!({"name": "toolbus", "version": env!("CARGO_PKG_VERSION")});
    raw(&json!({"protocolVersion": LATEST_LEGACY, "capabilities": capabilities, "clientInfo": info}))
}

/// The params of the host's own `subscriptions/listen`; `None` if the server has nothing to report.
pub fn host_listen(discover: &Raw) -> Option<Raw> {
    let filter = listen::Filter::everything(discover, Default::default());
    let params = raw(&json!({"notifications": filter.to_raw()}));
    (!filter.is_empty()).then(|| ClientIdentity::of_host().add_envelope(Some(&params), None).unwrap_or(params))
}

/// The error for a server that is down.
pub fn server_down(server: &str, reason: &str) -> RpcError {
    failure::bus(ErrorCode::ServerDown, format!("server {server:?} is down: {reason}"))
}
