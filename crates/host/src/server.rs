//! One configured server: in which eras it can be spoken to, its connections, and the sessions of its clients.

use crate::breaker::Breaker;
use crate::failure;
use crate::host::Host;
use crate::link::{Link, OpenError, Use, host_initialize, server_down};
use crate::session::{Session, SessionId};
use crate::tasks::TaskPlaces;
use crate::translate::log_level::LogLevel;
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use toolbus_mcp::{Era, Outcome, Raw, RpcError, raw};
use toolbus_protocol::ErrorCode;
use toolbus_upstream::{CallEvent, Eras, ServerConfig, SessionMode, TransportConfig};

/// What is known about a server before it is asked anything.
#[derive(Debug, Clone)]
pub enum Availability {
    Starting,
    /// It was up at least once. Should it be down again, the next call finds out.
    Known(Arc<Eras>),
    Down(String),
}

pub struct Server {
    pub index: usize,
    pub config: ServerConfig,
    pub availability: watch::Sender<Availability>,
    /// Calls that run; the others wait in order.
    pub permits: Arc<Semaphore>,
    /// Sessions with a connection of their own.
    slots: Arc<Semaphore>,
    /// What tasks may have of the two.
    pub task_calls: TaskPlaces,
    pub task_sessions: TaskPlaces,
    modern: tokio::sync::Mutex<Option<Arc<Link>>>,
    shared_legacy: tokio::sync::Mutex<Option<Arc<Link>>>,
    /// The host's own, to look at a legacy server.
    catalog: tokio::sync::Mutex<Option<Arc<Link>>>,
    sessions: Mutex<HashMap<SessionId, Arc<Session>>>,
    breaker: Mutex<Breaker>,
}

impl Server {
    pub fn new(index: usize, config: ServerConfig) -> Arc<Self> {
        Arc::new(Self {
            index,
            availability: watch::Sender::new(Availability::Starting),
            permits: Arc::new(Semaphore::new(config.max_concurrency.max(1))),
            slots: Arc::new(Semaphore::new(config.max_sessions)),
            task_calls: TaskPlaces::of(config.max_concurrency),
            task_sessions: TaskPlaces::of(config.max_sessions),
            modern: tokio::sync::Mutex::default(),
            shared_legacy: tokio::sync::Mutex::default(),
            catalog: tokio::sync::Mutex::default(),
            sessions: Mutex::default(),
            breaker: Mutex::new(Breaker::new(config.calls.trip)),
            config,
        })
    }

    pub fn name(&self) -> &str {
        &self.config.name
    }

    pub fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().expect("nothing panics while it holds this lock")
    }

    pub fn is_shared(&self) -> bool {
        self.config.session == SessionMode::Shared
    }

    /// The server's eras, as soon as they are known.
    pub async fn eras(&self, host: &Host) -> Result<Arc<Eras>, RpcError> {
        if let Availability::Known(eras) = &*self.availability.borrow() {
            return Ok(Arc::clone(eras));
        }
        let mut availability = self.availability.subscribe();
        let known = availability.wait_for(|now| !matches!(now, Availability::Starting));
        let known = tokio::time::timeout(host.options.limits.start_patience, known).await;
        match known.ok().and_then(Result::ok).as_deref() {
            Some(Availability::Known(eras)) => Ok(Arc::clone(eras)),
            Some(Availability::Down(reason)) => Err(server_down(self.name(), reason)),
            Some(Availability::Starting) | None => Err(server_down(self.name(), "it has not started yet")),
        }
    }

    /// The era in which the server is spoken to for a client of that era.
    pub fn era_for(&self, client: Era, eras: &Eras) -> Era {
        // What exists only once must not be started once for each era. The modern one has no state to share.
        let once = self.is_shared() && matches!(self.config.transport, TransportConfig::Stdio { .. });
        match (eras.speaks(Era::Legacy), eras.speaks(Era::Modern)) {
            (true, true) if once => Era::Modern,
            (true, true) => client,
            (false, _) => Era::Modern,
            (true, false) => Era::Legacy,
        }
    }

    /// The one connection that serves everybody in the modern era.
    pub async fn modern_link(&self, host: &Arc<Host>, eras: &Eras) -> Result<Arc<Link>, OpenError> {
        let mut place = self.modern.lock().await;
        if let Some(link) = place.as_ref().filter(|link| link.is_open()) {
            return Ok(Arc::clone(link));
        }
        let link = Link::open(host, &self.config, Era::Modern, Use::Shared, None).await?;
        if let Some(discover) = &eras.modern {
            link.set_hello(discover.clone());
        }
        Ok(Arc::clone(place.insert(link)))
    }

    /// The one connection to a legacy server that exists only once.
    pub async fn shared_link(&self, host: &Arc<Host>) -> Result<Arc<Link>, OpenError> {
        let mut place = self.shared_legacy.lock().await;
        if let Some(link) = place.as_ref().filter(|link| link.is_open()) {
            return Ok(Arc::clone(link));
        }
        let link = Link::open(host, &self.config, Era::Legacy, Use::Shared, None).await?;
        link.initialize(host, &self.config, host_initialize(Use::Shared)).await?;
        link.connection.notify("notifications/initialized", None).await?;
        Ok(Arc::clone(place.insert(link)))
    }

    /// A legacy connection for the host's own questions, with `notifications/initialized` said.
    pub async fn catalog_link(&self, host: &Arc<Host>) -> Result<Arc<Link>, OpenError> {
        let mut place = self.catalog.lock().await;
        if let Some(old) = place.take() {
            old.close().await;
        }
        let link = Link::open(host, &self.config, Era::Legacy, Use::Catalog, None).await?;
        place.replace(Arc::clone(&link));
        link.initialize(host, &self.config, host_initialize(Use::Catalog)).await?;
        link.connection.notify("notifications/initialized", None).await?;
        Ok(link)
    }

    /// The session's connection to a legacy server, opened with the client's own words if there is none.
    pub async fn session_link(
        &self,
        host: &Arc<Host>,
        session: &Arc<Session>,
        initialize: impl FnOnce() -> Raw,
    ) -> Result<Arc<Link>, Outcome> {
        let mut place = session.link.lock().await;
        if let Some(link) = place.as_ref().filter(|link| link.is_open()) {
            return Ok(Arc::clone(link));
        }
        let reopened = place.take().is_some();
        let link = if self.is_shared() {
            self.shared_link(host).await?
        } else {
            let link = self.open_own(host, session, initialize()).await?;
            link.connection.notify("notifications/initialized", None).await.map_err(OpenError::from)?;
            link
        };
        session.set_initialized(true);
        link.join(session);
        if reopened {
            tracing::info!(server = self.name(), worker = session.id.mailbox, "a session was opened again");
        }
        set_up_again(&link, session).await;
        Ok(Arc::clone(place.insert(link)))
    }

    /// A client's own `initialize`: a new connection, whatever there was. Its `notifications/initialized` comes later.
    pub async fn initialize(&self, host: &Arc<Host>, session: &Arc<Session>, params: Raw) -> Result<Raw, Outcome> {
        let mut place = session.link.lock().await;
        if let Some(old) = place.take().filter(|_| !self.is_shared()) {
            old.close().await;
        }
        let (link, hello) = if self.is_shared() {
            let link = self.shared_link(host).await?;
            session.set_initialized(true);
            let hello = in_version_of(&params, link.hello());
            (link, hello)
        } else {
            let link = self.open_own(host, session, params).await?;
            session.set_initialized(false);
            let hello = link.hello();
            (link, hello)
        };
        link.join(session);
        *place = Some(link);
        Ok(hello)
    }

    async fn open_own(&self, host: &Arc<Host>, session: &Session, initialize: Raw) -> Result<Arc<Link>, Outcome> {
        let full = || {
            let most = self.config.max_sessions;
            let message =
                format!("server {:?} already has {most} sessions, as many as `max_sessions` allows", self.name());
            Outcome::from(failure::bus(ErrorCode::TooManySessions, message))
        };
        let slot = match session.take_reserved() {
            Some(slot) => slot,
            None => self.free_slot(host).await.ok_or_else(full)?,
        };
        let opened = Link::open(host, &self.config, Era::Legacy, Use::Own, Some(slot)).await;
        let link = opened.map_err(OpenError::from)?;
        link.initialize(host, &self.config, initialize).await?;
        Ok(link)
    }

    /// A place for one more connection, made free if that can be done.
    pub async fn free_slot(&self, host: &Host) -> Option<OwnedSemaphorePermit> {
        if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
            return Some(slot);
        }
        self.make_room(host).await;
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    /// Closes the connection that was unused for longest, if it was for a while: its client may be gone without a word.
    /// If it is not, the connection is opened again for its next call.
    async fn make_room(&self, host: &Host) {
        let mut idle: Vec<_> = {
            let sessions = self.sessions.lock().expect("nothing panics while it holds this lock");
            let unused = |session: &&Arc<Session>| session.is_idle(host.options.limits.evicted_after);
            sessions.values().filter(unused).map(|session| (session.last_used(), Arc::clone(session))).collect()
        };
        idle.sort_by_key(|(last_used, _)| *last_used);
        for (_, session) in idle {
            // One that is being opened is in use after all; and two that wait for each other would wait for ever.
            let Ok(place) = session.link.try_lock() else { continue };
            if let Some(link) = place.as_ref().filter(|link| link.usage == Use::Own && link.is_open()) {
                tracing::debug!(server = self.name(), worker = session.id.mailbox, "an idle session makes room");
                link.close().await;
                return;
            }
        }
    }

    /// The session under that id; a new one if there is room.
    pub fn session(&self, host: &Host, id: SessionId, era: Era) -> Result<Arc<Session>, RpcError> {
        let mut sessions = self.sessions.lock().expect("nothing panics while it holds this lock");
        if let Some(session) = sessions.get(&id) {
            return Ok(Arc::clone(session));
        }
        let most = host.options.limits.max_remembered_sessions;
        // Tasks are counted as tasks, and there may be many that wait.
        let is_full = || sessions.keys().filter(|id| !id.is_of_task()).count() >= most;
        if !id.is_of_task() && sessions.len() >= most && is_full() {
            let message = format!("server {:?} already has {most} client sessions", self.name());
            return Err(failure::bus(ErrorCode::TooManySessions, message));
        }
        let session = Session::new(id.clone(), era);
        sessions.insert(id, Arc::clone(&session));
        Ok(session)
    }

    pub fn known_session(&self, id: &SessionId) -> Option<Arc<Session>> {
        self.sessions.lock().expect("nothing panics while it holds this lock").get(id).cloned()
    }

    /// Forgets a session and ends its own connection.
    pub async fn close_session(&self, id: &SessionId) {
        let session = self.sessions.lock().expect("nothing panics while it holds this lock").remove(id);
        if let Some(session) = session {
            self.end(&session).await;
        }
    }

    /// Ends the sessions that nobody has used for a while.
    pub async fn reap(&self) {
        let idle: Vec<_> = {
            let mut sessions = self.sessions.lock().expect("nothing panics while it holds this lock");
            let ids: Vec<_> = sessions.values().filter(|session| session.is_idle(self.config.idle)).cloned().collect();
            ids.into_iter().filter_map(|session| sessions.remove(&session.id)).collect()
        };
        for session in idle {
            tracing::debug!(server = self.name(), worker = session.id.mailbox, "an idle session ends");
            self.end(&session).await;
        }
    }

    pub async fn close(&self) {
        let sessions: Vec<_> =
            self.sessions.lock().expect("nothing panics while it holds this lock").drain().map(|(_, s)| s).collect();
        for session in sessions {
            self.end(&session).await;
        }
        for place in [&self.modern, &self.shared_legacy, &self.catalog] {
            if let Some(link) = place.lock().await.take() {
                link.close().await;
            }
        }
    }

    async fn end(&self, session: &Session) {
        session.replace_listening(None);
        let link = session.link.lock().await.take();
        let Some(link) = link else { return };
        if link.usage == Use::Own {
            link.close().await;
            return;
        }
        for uri in session.uris() {
            if link.unsubscribed(&uri) {
                tell(&link, "resources/unsubscribe", json!({"uri": uri})).await;
            }
        }
    }
}

/// What the client had set up on a connection that is gone.
async fn set_up_again(link: &Link, session: &Session) {
    if let Some(level) = session.level() {
        set_level(link, level).await;
    }
    for uri in session.listened_uris() {
        if link.subscribed(&uri) {
            tell(link, "resources/subscribe", json!({"uri": uri})).await;
        }
    }
}

pub async fn set_level(link: &Link, level: LogLevel) {
    tell(link, "logging/setLevel", json!({"level": level.as_str()})).await;
}

/// A request of our own whose answer changes nothing. It goes out before what follows.
pub async fn tell(link: &Link, method: &str, params: serde_json::Value) {
    let Ok(mut call) = link.connection.start(method, Some(raw(&params))).await else { return };
    let end = async {
        loop {
            match call.next().await {
                CallEvent::Done(_) => return,
                CallEvent::Request { id, method, .. } => link.answer_or_refuse(&id, &method).await,
                CallEvent::Notification { .. } => {}
            }
        }
    };
    if tokio::time::timeout(crate::upstream_call::CANCEL_GRACE, end).await.is_err() {
        tracing::debug!(method, "a server has not answered");
    }
}

/// On a shared connection the server has answered a client of the host's choice; each client hears its own version.
fn in_version_of(initialize: &Raw, hello: Raw) -> Raw {
    let answer = || {
        let requested = toolbus_mcp::Members::of(Some(initialize)).ok()?.text("protocolVersion")?;
        let mut members = toolbus_mcp::Members::of(Some(&hello)).ok()?;
        let spoken = members.text("protocolVersion")?;
        let older = toolbus_mcp::LEGACY_VERSIONS.contains(&requested.as_str()) && requested < spoken;
        older.then(|| {
            members.set("protocolVersion", raw(&requested));
            members.to_raw()
        })
    };
    answer().unwrap_or(hello)
}
