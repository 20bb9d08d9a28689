//! A live connection to a server together with the sessions that use it. What the server says outside of any call goes
//! from here to whom it concerns.

use crate::caller::Caller;
use crate::failure;
use crate::host::Host;
use crate::session::{Session, Stray};
use crate::translate::{legacy_on_modern::Introduction, listen};
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio_util::sync::CancellationToken;
use toolbus_mcp::{Era, HostEvent, Id, LATEST_LEGACY, ListKind, Outcome, Raw, RpcError, codes, empty_object, raw};
use toolbus_protocol::ErrorCode;
use toolbus_upstream::{CallEvent, ConnectionOptions, ServerConfig, ServerConnection, ServerError, ServerEvent};

/// Events of a server that wait to be passed on; past it the server has to wait.
const MOST_WAITING_EVENTS: usize = 256;

/// Whom a connection serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// One client's session.
    Own,
    /// Everybody.
    Shared,
    /// The host itself, to know what the server has.
    Catalog,
}

pub struct Link {
    pub connection: ServerConnection,
    pub usage: Use,
    /// What the server said of itself: the result of `initialize` or of `server/discover`.
    hello: OnceLock<Raw>,
    members: Mutex<Vec<Weak<Session>>>,
    /// How many sessions are subscribed to a resource.
    subscriptions: Mutex<HashMap<String, usize>>,
    /// Calls that asked a modern server for its log.
    loggers: Mutex<Vec<Caller>>,
    /// Counts the list changes that the server told of.
    list_changes: watch::Sender<u64>,
    closed: CancellationToken,
    /// The connection's place among those that the server may have; free again as soon as it is closed.
    slot: Mutex<Option<OwnedSemaphorePermit>>,
}

/// Why no session could be opened.
pub enum OpenError {
    Server(ServerError),
    /// The server's own answer to `initialize`.
    Refused(Raw),
}

impl From<ServerError> for OpenError {
    fn from(error: ServerError) -> Self {
        Self::Server(error)
    }
}

impl OpenError {
    pub fn into_outcome(self) -> Outcome {
        match self {
            Self::Server(error) => error.to_rpc_error().into(),
            Self::Refused(error) => Outcome::Error(error),
        }
    }

    pub fn reason(&self) -> String {
        match self {
            Self::Server(error) => error.to_string(),
            Self::Refused(error) => format!("the server refused `initialize`: {error}"),
        }
    }
}

impl Link {
    /// Opens a connection. Nothing has been said on it yet.
    pub async fn open(
        host: &Arc<Host>,
        config: &ServerConfig,
        era: Era,
        usage: Use,
        slot: Option<OwnedSemaphorePermit>,
    ) -> Result<Arc<Self>, ServerError> {
        let (sender, events) = mpsc::channel(MOST_WAITING_EVENTS);
        let options = ConnectionOptions { map_tokens: usage == Use::Shared, ..host.options.connection.clone() };
        let connection = ServerConnection::open(config, era, &options, sender).await?;
        let link = Arc::new(Self {
            connection,
            usage,
            hello: OnceLock::new(),
            members: Mutex::default(),
            subscriptions: Mutex::default(),
            loggers: Mutex::default(),
            list_changes: watch::Sender::new(0),
            closed: CancellationToken::new(),
            slot: Mutex::new(slot),
        });
        host.tasks.spawn(pass_on(Arc::downgrade(&link), config.name.clone(), Arc::downgrade(host), events));
        Ok(link)
    }

    /// Greets a legacy server. `notifications/initialized` is not part of it.
    pub async fn initialize(&self, host: &Host, config: &ServerConfig, params: Raw) -> Result<(), OpenError> {
        let limit = host.options.connection.start_timeout;
        let greeting = async {
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
            let stderr = self.connection.stderr_tail();
            ServerError::Silent { server: config.name.clone(), after: limit, stderr }
        };
        let result = tokio::time::timeout(limit, greeting).await.map_err(|_| silent())??;
        self.set_hello(result);
        Ok(())
    }

    pub fn set_hello(&self, hello: Raw) {
        self.hello.set(hello).ok();
    }

    pub fn hello(&self) -> Raw {
        self.hello.get().cloned().unwrap_or_else(empty_object)
    }

    pub fn is_open(&self) -> bool {
        self.connection.closed().is_none() && !self.closed.is_cancelled()
    }

    /// Ends the connection in order.
    pub async fn close(&self) {
        self.closed.cancel();
        self.connection.close().await;
        drop(self.slot.lock().expect("nothing panics while it holds this lock").take());
    }

    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    pub fn list_changes(&self) -> watch::Receiver<u64> {
        self.list_changes.subscribe()
    }

    pub fn join(&self, session: &Arc<Session>) {
        let mut members = self.members.lock().expect("nothing panics while it holds this lock");
        members.retain(|member| member.strong_count() > 0);
        if !members.iter().any(|member| std::ptr::eq(member.as_ptr(), Arc::as_ptr(session))) {
            members.push(Arc::downgrade(session));
        }
    }

    fn members(&self) -> Vec<Arc<Session>> {
        self.members.lock().expect("nothing panics while it holds this lock").iter().filter_map(Weak::upgrade).collect()
    }

    /// Counts a subscription; true if it is the first, so that the server has to be told.
    pub fn subscribed(&self, uri: &str) -> bool {
        let mut subscriptions = self.subscriptions.lock().expect("nothing panics while it holds this lock");
        let count = subscriptions.entry(uri.to_owned()).or_insert(0);
        *count += 1;
        *count == 1
    }

    /// True if it was the last.
    pub fn unsubscribed(&self, uri: &str) -> bool {
        let mut subscriptions = self.subscriptions.lock().expect("nothing panics while it holds this lock");
        let Some(count) = subscriptions.get_mut(uri) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            subscriptions.remove(uri);
        }
        last
    }

    /// Signs a call up for log messages that name no call.
    pub fn add_logger(self: &Arc<Self>, caller: &Caller) -> Logger {
        self.loggers.lock().expect("nothing panics while it holds this lock").push(caller.clone());
        Logger { link: Arc::clone(self), caller: caller.clone() }
    }

    /// A call that gets such messages, if all that want any are the same worker's.
    fn only_logger(&self) -> Option<Caller> {
        let loggers = self.loggers.lock().expect("nothing panics while it holds this lock");
        let last = loggers.last()?;
        loggers.iter().all(|logger| logger.mailbox() == last.mailbox()).then(|| last.clone())
    }

    /// Something that concerns whoever uses the connection, wherever it came in.
    pub async fn spread(&self, host: &Host, server: &str, method: &str, params: Option<Raw>) {
        self.count_list_change(method);
        for session in self.members() {
            session.hear(host, server, self.usage, method, params.clone()).await;
        }
    }

    /// A server's notification during a call may be news for the catalog too.
    pub fn count_list_change(&self, method: &str) {
        if ListKind::ALL.iter().any(|kind| kind.list_changed() == method) {
            self.list_changes.send_modify(|count| *count += 1);
        }
    }

    /// A request of the server that no client can be asked.
    pub async fn answer_or_refuse(&self, id: &Id, method: &str) {
        let outcome = if method == "ping" { Outcome::Result(empty_object()) } else { refusal(method).into() };
        if let Err(error) = self.connection.answer(id, outcome).await {
            tracing::debug!(%error, method, "a server's request was not answered");
        }
    }

    async fn on_event(&self, host: &Host, server: &str, event: ServerEvent) {
        match event {
            ServerEvent::Notification { method, params } => {
                // On a shared connection nobody can tell whose progress or log that is, unless only one wants it.
                let private = matches!(method.as_str(), "notifications/progress" | "notifications/message");
                if self.usage != Use::Shared || !private || self.members().len() == 1 {
                    self.spread(host, server, &method, params).await;
                } else if let Some(caller) = self.only_logger().filter(|_| method == "notifications/message") {
                    let event = HostEvent::Notification { server: server.to_owned(), method, params };
                    host.outbox.live(caller.mailbox(), caller.id(), &event).await;
                }
            }
            ServerEvent::Request { id, method, params } => {
                let members = self.members();
                match members.first() {
                    Some(session) if self.usage == Use::Own && session.is_legacy() && !session.id.is_of_task() => {
                        session.ask(host, server, id, method, params).await;
                    }
                    Some(session) if self.usage == Use::Own => {
                        let left = session.offer(Stray::Request { id, method, params });
                        if let Some(Stray::Request { id, method, .. }) = left {
                            self.answer_or_refuse(&id, &method).await;
                        }
                    }
                    _ => self.answer_or_refuse(&id, &method).await,
                }
            }
            // Nobody has to be told of an end that the host itself wanted.
            ServerEvent::Closed(_) if self.closed.is_cancelled() => {}
            ServerEvent::Closed(error) => {
                self.closed.cancel();
                drop(self.slot.lock().expect("nothing panics while it holds this lock").take());
                tracing::info!(server, %error, usage = ?self.usage, "a connection ended");
                for session in self.members() {
                    session.link_closed(host, server, &error).await;
                }
            }
        }
    }
}

/// As long as it lives, its call may get the server's log.
pub struct Logger {
    link: Arc<Link>,
    caller: Caller,
}

impl Drop for Logger {
    fn drop(&mut self) {
        let mut loggers = self.link.loggers.lock().expect("nothing panics while it holds this lock");
        loggers.retain(|logger| logger.id() != self.caller.id());
    }
}

fn refusal(method: &str) -> RpcError {
    let message = format!("{method} can't be asked now: no single client's call is running to which it could belong");
    let code = ErrorCode::UnknownName;
    RpcError::new(codes::METHOD_NOT_FOUND, message).with_data(json!({"code": code.code()}))
}

async fn pass_on(link: Weak<Link>, server: String, host: Weak<Host>, mut events: mpsc::Receiver<ServerEvent>) {
    while let Some(event) = events.recv().await {
        let (Some(link), Some(host)) = (link.upgrade(), host.upgrade()) else { return };
        link.on_event(&host, &server, event).await;
    }
    if let Some(link) = link.upgrade() {
        link.closed.cancel();
    }
}

/// The `initialize` of the host itself. For a connection that all workers share it says that they can be asked, and each
/// question is still checked against the client that it goes to.
pub fn host_initialize(usage: Use) -> Raw {
    let capabilities = match usage {
        Use::Shared => json!({"elicitation": {}, "sampling": {}}),
        Use::Own | Use::Catalog => json!({}),
    };
    let info = json!({"name": "toolbus", "version": env!("CARGO_PKG_VERSION")});
    raw(&json!({"protocolVersion": LATEST_LEGACY, "capabilities": capabilities, "clientInfo": info}))
}

/// A `subscriptions/listen` of the host itself.
pub fn host_listen(discover: &Raw) -> Option<Raw> {
    let filter = listen::Filter::everything(discover, Default::default());
    let params = raw(&json!({"notifications": filter.to_raw()}));
    (!filter.is_empty()).then(|| Introduction::of_host().envelop(Some(&params), None).unwrap_or(params))
}

impl From<OpenError> for Outcome {
    fn from(error: OpenError) -> Self {
        error.into_outcome()
    }
}

/// A server that is known to be down.
pub fn server_down(server: &str, reason: &str) -> RpcError {
    failure::bus(ErrorCode::ServerDown, format!("server {server:?} is down: {reason}"))
}
