//! Sessions of legacy HTTP clients: bound to their principal, limited in number, and ended when idle.

use super::HttpOptions;
use super::Principal;
use super::events::{EventLog, STANDALONE};
use super::kept::{KeptSession, KeptSessions};
use crate::error;
use crate::frontend::{Frontend, News};
use crate::worker::{Worker, lock};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use toolbus_base::Share;
use toolbus_mcp::RpcError;

pub struct Session {
    pub id: String,
    principal: Principal,
    worker: Arc<Worker>,
    pub frontend: Arc<Frontend>,
    pub log: Arc<EventLog>,
    last_used: Mutex<Instant>,
    /// Number of open event streams, including those of calls.
    pub readers: AtomicUsize,
    ended: AtomicBool,
    news_task: AbortHandle,
}

impl Session {
    fn new(id: String, principal: Principal, worker: Arc<Worker>, options: &HttpOptions) -> Arc<Self> {
        let frontend = Frontend::new(Arc::clone(&worker), id.clone());
        let log = Arc::new(EventLog::new(options.max_replay_events, options.max_replay_bytes));
        let (mut news, kept) = (News::open(&frontend), Arc::clone(&log));
        let news_task = tokio::spawn(async move {
            loop {
                let message = news.next().await;
                kept.append(STANDALONE, &message);
            }
        });
        let last_used = Mutex::new(Instant::now());
        let news_task = news_task.abort_handle();
        let (readers, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { id, principal, worker, frontend, log, last_used, readers, ended, news_task })
    }

    fn is_idle(&self, limit: Duration) -> bool {
        let unused = lock(&self.last_used).elapsed() >= limit;
        unused && self.readers.load(Ordering::Relaxed) == 0 && self.frontend.calls_under_way() == 0
    }

    /// Whether the session has ended, or has no open stream and had no request since then.
    pub fn is_idle_since(&self, then: Instant) -> bool {
        let idle = || self.readers.load(Ordering::Relaxed) == 0 && *lock(&self.last_used) <= then;
        self.ended.load(Ordering::Relaxed) || idle()
    }

    /// Closes the session at the hosts in the background.
    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.news_task.abort();
        let frontend = Arc::clone(&self.frontend);
        tokio::spawn(async move { frontend.close().await });
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.news_task.abort();
    }
}

pub struct Sessions {
    open: Mutex<HashMap<String, Arc<Session>>>,
    /// The sessions' records, which the next process continues.
    kept: Option<KeptSessions>,
    options: HttpOptions,
}

impl Sessions {
    pub fn new(options: &HttpOptions) -> Arc<Self> {
        let kept = options.session_folder.clone().and_then(|folder| {
            let opened = KeptSessions::open(folder, options.max_sessions);
            opened.inspect_err(|error| tracing::warn!(%error, "MCP sessions end with this process")).ok()
        });
        let sessions = Arc::new(Self { open: Mutex::default(), kept, options: options.clone() });
        tokio::spawn(sweep(Arc::downgrade(&sessions), options.session_idle));
        sessions
    }

    /// Opens a session, which counts towards the limits immediately. The caller has to end it if `initialize` fails.
    pub fn open(&self, principal: &Principal, share: Share, worker: Arc<Worker>) -> Result<Arc<Session>, RpcError> {
        self.add(uuid::Uuid::new_v4().to_string(), principal, share, worker)
    }

    fn add(
        &self,
        id: String,
        principal: &Principal,
        share: Share,
        worker: Arc<Worker>,
    ) -> Result<Arc<Session>, RpcError> {
        let mut open = lock(&self.open);
        let own = open.values().filter(|session| session.principal.name == principal.name).count();
        let max = self.options.max_sessions;
        if !share.admits(own as u64, max.saturating_sub(open.len()) as u64) {
            return Err(error::too_many_sessions(own, max));
        }
        let session = Session::new(id, principal.clone(), worker, &self.options);
        open.insert(session.id.clone(), Arc::clone(&session));
        Ok(session)
    }

    /// Records a session, so that the next process can continue it. An agent that may do nothing causes no write: it has nothing
    /// to continue.
    pub fn keep(&self, session: &Session, share: Share) {
        if share == Share::LEAST {
            return;
        }
        if let (Some(kept), Some((initialize, negotiated))) = (&self.kept, session.frontend.negotiated()) {
            kept.keep(&session.id, &KeptSession::new(&session.principal, initialize, negotiated));
        }
    }

    /// The record of a session of the principal that an earlier process had.
    pub async fn kept(&self, principal: &Principal, id: &str) -> Option<KeptSession> {
        self.kept.as_ref()?.find(principal, id).await
    }

    /// Continues a session of an earlier process.
    pub fn reopen(
        &self,
        id: &str,
        kept: KeptSession,
        principal: &Principal,
        share: Share,
        worker: Arc<Worker>,
    ) -> Result<Arc<Session>, RpcError> {
        // Another request of the client may have been faster.
        if let Some(session) = self.find(principal, id) {
            return Ok(session);
        }
        let session = self.add(id.to_owned(), principal, share, worker)?;
        session.frontend.restore(kept.initialize, &kept.negotiated);
        Ok(session)
    }

    /// Finds a session of the principal. Sessions of other principals are reported as unknown.
    pub fn find(&self, principal: &Principal, id: &str) -> Option<Arc<Session>> {
        let session = lock(&self.open).get(id).filter(|session| session.principal == *principal).cloned()?;
        // The connection to the bus was closed, for example with a revoked credential. A client that gets 404 sends
        // `initialize` again, with its current credential.
        if !session.worker.bus().is_alive() {
            self.end(&session);
            return None;
        }
        *lock(&session.last_used) = Instant::now();
        Some(session)
    }

    pub fn end(&self, session: &Session) {
        lock(&self.open).remove(&session.id);
        self.kept.iter().for_each(|kept| kept.forget(&session.id));
        session.end();
    }

    /// Writes the records of all sessions before the process ends. Blocks on disk I/O.
    pub fn write_kept(&self) {
        self.kept.iter().for_each(KeptSessions::write_now);
    }

    /// Forgets sessions of the earlier process whose clients did not come back.
    fn forget_unused(&self) {
        let open: HashSet<String> = lock(&self.open).keys().cloned().collect();
        self.kept.iter().for_each(|kept| kept.forget_others(&open));
    }

    fn end_idle(&self, limit: Duration) {
        let mut ended = Vec::new();
        lock(&self.open).retain(|_, session| {
            let is_idle = session.is_idle(limit);
            if is_idle {
                ended.push(Arc::clone(session));
            }
            !is_idle
        });
        for session in ended {
            self.kept.iter().for_each(|kept| kept.forget(&session.id));
            session.end();
        }
    }
}

async fn sweep(sessions: Weak<Sessions>, limit: Duration) {
    let mut pace = tokio::time::interval((limit / 20).max(Duration::from_millis(50)));
    let mut forget_at = Some(Instant::now() + limit);
    loop {
        pace.tick().await;
        let Some(sessions) = sessions.upgrade() else { return };
        sessions.end_idle(limit);
        if forget_at.take_if(|at| *at <= Instant::now()).is_some() {
            sessions.forget_unused();
        }
    }
}
