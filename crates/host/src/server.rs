//! One configured server: its eras, its connections and the sessions of its clients.

use crate::eviction::Evictions;
use crate::failure;
use crate::host::Host;
use crate::lanes::Lanes;
use crate::open_error::OpenError;
use crate::processes::Processes;
use crate::session::{Session, SessionId};
use crate::session_setup::{restore_session_state, send_setup_request};
use crate::session_table::SessionTable;
use crate::tasks::TaskPermits;
use crate::upstream::{Upstream, Usage, host_initialize, server_down};
use futures_util::future::join_all;
use serde_json::json;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use toolbus_base::Share;
use toolbus_mcp::{Era, Raw, RpcError, raw};
use toolbus_protocol::ErrorCode;
use toolbus_upstream::{Eras, ServerConfig, SessionMode};

/// What the host knows about a server.
#[derive(Debug, Clone)]
pub enum Availability {
    Starting,
    /// Started at least once. If it is down again, the next call notices.
    Known(Arc<Eras>),
    Down(String),
}

pub struct Server {
    pub index: usize,
    pub config: ServerConfig,
    pub availability: watch::Sender<Availability>,
    /// Slots of sessions with a connection of their own.
    pub(super) processes: Arc<Processes>,
    /// The tasks' share of the slots.
    pub task_sessions: TaskPermits,
    pub(super) modern: tokio::sync::Mutex<Option<Arc<Upstream>>>,
    pub(super) shared_legacy: tokio::sync::Mutex<Option<Arc<Upstream>>>,
    /// The host's own connection to a legacy server, for reading its lists, until a client takes it over.
    pub(super) spare: Mutex<Option<Arc<Upstream>>>,
    /// Whether the server was seen to list other tools than at first, which may depend on the client.
    pub lists_vary: AtomicBool,
    pub(super) sessions: Mutex<SessionTable>,
    /// When to search for a connection that can be closed.
    pub(super) evictions: Evictions,
    pub lanes: Arc<Lanes>,
    /// Held while the lists are read and stored, so that an older list never replaces a newer one.
    pub reading: tokio::sync::Mutex<()>,
}

impl Server {
    pub fn new(index: usize, config: ServerConfig) -> Arc<Self> {
        Arc::new(Self {
            index,
            availability: watch::Sender::new(Availability::Starting),
            processes: Processes::new(config.max_sessions),
            task_sessions: TaskPermits::of(config.max_sessions),
            modern: tokio::sync::Mutex::default(),
            shared_legacy: tokio::sync::Mutex::default(),
            spare: Mutex::default(),
            lists_vary: AtomicBool::new(false),
            sessions: Mutex::default(),
            evictions: Evictions::default(),
            lanes: Arc::default(),
            reading: tokio::sync::Mutex::default(),
            config,
        })
    }

    pub fn name(&self) -> &str {
        &self.config.name
    }

    pub fn is_shared(&self) -> bool {
        self.config.session == SessionMode::Shared
    }

    /// The server's eras, if it has started at least once.
    pub fn known_eras(&self) -> Option<Arc<Eras>> {
        match &*self.availability.borrow() {
            Availability::Known(eras) => Some(Arc::clone(eras)),
            Availability::Starting | Availability::Down(_) => None,
        }
    }

    /// The server's eras; waits for a server that is starting.
    pub async fn eras(&self, host: &Host) -> Result<Arc<Eras>, RpcError> {
        if let Some(eras) = self.known_eras() {
            return Ok(eras);
        }
        let mut availability = self.availability.subscribe();
        let known = availability.wait_for(|now| !matches!(now, Availability::Starting));
        let known = tokio::time::timeout(host.options.limits.start_patience, known).await;
        match known.ok().and_then(Result::ok).as_deref() {
            Some(Availability::Known(eras)) => Ok(Arc::clone(eras)),
            Some(Availability::Down(reason)) => Err(server_down(self.name(), reason)),
            Some(Availability::Starting) | None => Err(server_down(self.name(), "it is still starting")),
        }
    }

    /// The era in which to talk to the server for a client of that era.
    pub fn era_for(&self, client: Era, eras: &Eras) -> Era {
        // A shared stdio server must not be started once per era. Modern, because that era has no session state to
        // share.
        let once = self.is_shared() && self.config.transport.is_one_stream();
        match (eras.speaks(Era::Legacy), eras.speaks(Era::Modern)) {
            (true, true) if once => Era::Modern,
            (true, true) => client,
            (false, _) => Era::Modern,
            (true, false) => Era::Legacy,
        }
    }

    /// The connection that all clients share in the modern era.
    pub async fn modern_upstream(&self, host: &Arc<Host>, eras: &Eras) -> Result<Arc<Upstream>, OpenError> {
        let mut current = self.modern.lock().await;
        if let Some(upstream) = current.as_ref().filter(|upstream| upstream.is_open()) {
            return Ok(Arc::clone(upstream));
        }
        let upstream = Upstream::open(host, &self.config, Era::Modern, Usage::Shared, None).await?;
        if let Some(discover) = &eras.modern {
            upstream.set_handshake(discover.clone());
        }
        Ok(Arc::clone(current.insert(upstream)))
    }

    /// The connection that all clients of a shared legacy server use.
    pub async fn shared_upstream(&self, host: &Arc<Host>) -> Result<Arc<Upstream>, OpenError> {
        let mut current = self.shared_legacy.lock().await;
        if let Some(upstream) = current.as_ref().filter(|upstream| upstream.is_open()) {
            return Ok(Arc::clone(upstream));
        }
        let upstream = Upstream::open(host, &self.config, Era::Legacy, Usage::Shared, None).await?;
        upstream.initialize(host, &self.config, host_initialize(Usage::Shared)).await?;
        upstream.connection.notify("notifications/initialized", None).await?;
        Ok(Arc::clone(current.insert(upstream)))
    }

    /// The session's connection to a legacy server. If there is none, it is opened with the client's own `initialize`.
    pub async fn session_upstream(
        &self,
        host: &Arc<Host>,
        session: &Arc<Session>,
        initialize: impl FnOnce() -> Raw,
    ) -> Result<Arc<Upstream>, OpenError> {
        let mut current = session.upstream.lock().await;
        if let Some(upstream) = current.as_ref().filter(|upstream| upstream.is_open()) {
            return Ok(Arc::clone(upstream));
        }
        let reopened = current.take().is_some();
        let upstream = if self.is_shared() {
            self.shared_upstream(host).await?
        } else {
            self.open_own(host, session, initialize()).await?
        };
        session.set_initialized(true);
        upstream.add_session(session);
        if reopened {
            tracing::info!(server = self.name(), worker = session.id.mailbox, "reopened a session");
        }
        restore_session_state(&upstream, session).await;
        Ok(Arc::clone(current.insert(upstream)))
    }

    /// Handles a client's own `initialize` at a shared server.
    pub async fn initialize_shared(
        &self,
        host: &Arc<Host>,
        session: &Arc<Session>,
        params: &Raw,
    ) -> Result<Raw, OpenError> {
        let mut current = session.upstream.lock().await;
        let upstream = self.shared_upstream(host).await?;
        session.set_initialized(true);
        upstream.add_session(session);
        let handshake = in_version_of(params, upstream.handshake());
        *current = Some(upstream);
        Ok(handshake)
    }

    async fn open_own(&self, host: &Arc<Host>, session: &Session, initialize: Raw) -> Result<Arc<Upstream>, OpenError> {
        let full = || {
            let (name, max, agent) = (self.name(), self.config.max_sessions, session.id.agent());
            let message =
                format!("server {name:?} has no more sessions for agent {agent:?} (of `max_sessions` = {max})");
            OpenError::Host(failure::bus(ErrorCode::TooManySessions, message))
        };
        let slot = match session.take_reserved() {
            Some(slot) => slot,
            None => self.free_slot(host, session).await.ok_or_else(full)?,
        };
        if let Some(spare) = self.take_spare(&initialize) {
            spare.take_over(slot);
            return Ok(spare);
        }
        let upstream = Upstream::open(host, &self.config, Era::Legacy, Usage::Own, Some(slot)).await?;
        let initialized = upstream.initialize(host, &self.config, initialize).await;
        self.try_legacy(host, initialized.as_ref().map(|()| upstream.handshake()));
        initialized?;
        upstream.connection.notify("notifications/initialized", None).await?;
        Ok(upstream)
    }

    /// The session with that id; created if the share of its agent allows it. `role`: the client's, as the broker stamped it last.
    pub fn session(&self, host: &Host, id: SessionId, era: Era, role: Option<&str>) -> Result<Arc<Session>, RpcError> {
        let mut sessions = self.sessions.lock().expect("no code panics while it holds this lock");
        if let Some(session) = sessions.get(&id) {
            session.set_role(role);
            return Ok(Arc::clone(session));
        }
        let (max, share) = (host.options.limits.max_remembered_sessions, host.share_of(role));
        // Sessions of tasks are limited by the number of tasks.
        if !id.is_of_task() {
            let (own, all) = sessions.counts(id.agent());
            if !share.unwrap_or(Share::DEFAULT).admits(own, (max as u64).saturating_sub(all)) {
                let (name, agent) = (self.name(), id.agent());
                let message = format!("agent {agent:?} has used up its share of the {max} sessions of server {name:?}");
                return Err(failure::bus(ErrorCode::TooManySessions, message));
            }
        }
        let session = Session::new(id, era, share);
        session.set_role(role);
        sessions.insert(Arc::clone(&session));
        Ok(session)
    }

    pub fn known_session(&self, id: &SessionId) -> Option<Arc<Session>> {
        self.sessions.lock().expect("no code panics while it holds this lock").get(id).cloned()
    }

    /// Removes the sessions of a client, on all lanes, and closes their own connections.
    pub async fn close_session(&self, id: &SessionId) {
        self.end_sessions(self.take_sessions(|known| known.is_lane_of(id))).await;
    }

    /// Removes sessions, to be ended by [`Server::end_sessions`].
    pub fn take_sessions(&self, is_ended: impl Fn(&SessionId) -> bool) -> Vec<Arc<Session>> {
        let mut sessions = self.sessions.lock().expect("no code panics while it holds this lock");
        sessions.take(|session| is_ended(&session.id))
    }

    /// Closes the own connections of sessions, all at the same time: a server may take seconds to exit.
    pub async fn end_sessions(&self, sessions: Vec<Arc<Session>>) {
        join_all(sessions.iter().map(|session| self.end(session))).await;
    }

    /// Whether the server's requests during a call can't be attributed to the call.
    pub fn asks_without_call(&self) -> bool {
        !self.is_shared() && self.config.transport.is_one_stream()
    }

    /// Closes idle sessions.
    pub async fn reap(&self) {
        let idle: Vec<_> = {
            let mut sessions = self.sessions.lock().expect("no code panics while it holds this lock");
            sessions.take(|session| session.is_idle(self.config.idle))
        };
        for session in &idle {
            tracing::debug!(server = self.name(), worker = session.id.mailbox, "closing an idle session");
        }
        self.end_sessions(idle).await;
    }

    pub async fn close(&self) {
        let sessions = self.take_sessions(|_| true);
        self.end_sessions(sessions).await;
        let spare = self.spare.lock().expect("no code panics while it holds this lock").take();
        let shared = [self.modern.lock().await.take(), self.shared_legacy.lock().await.take()];
        let rest: Vec<_> = shared.into_iter().flatten().chain(spare).collect();
        join_all(rest.iter().map(|upstream| upstream.close())).await;
    }

    async fn end(&self, session: &Session) {
        session.replace_listening(None);
        let upstream = session.upstream.lock().await.take();
        let Some(upstream) = upstream else { return };
        if upstream.usage == Usage::Own {
            upstream.close().await;
            return;
        }
        for uri in session.uris() {
            if upstream.remove_subscription(&uri) {
                send_setup_request(&upstream, "resources/unsubscribe", json!({"uri": uri})).await;
            }
        }
    }
}

/// The `initialize` result of another client, with the older protocol version that this client requested.
pub fn in_version_of(initialize: &Raw, handshake: Raw) -> Raw {
    let answer = || {
        let requested = toolbus_mcp::Members::of(Some(initialize)).ok()?.text("protocolVersion")?;
        let mut members = toolbus_mcp::Members::of(Some(&handshake)).ok()?.clone();
        let spoken = members.text("protocolVersion")?;
        let older = toolbus_mcp::LEGACY_VERSIONS.contains(&requested.as_str()) && requested < spoken;
        older.then(|| {
            members.set("protocolVersion", raw(&requested));
            members.into_raw()
        })
    };
    answer().unwrap_or(handshake)
}
