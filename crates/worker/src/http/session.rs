//! Sessions of legacy HTTP clients: each bound to its principal, bounded in number, and gone when nobody uses them.

use super::HttpOptions;
use super::Principal;
use super::events::{EventLog, STANDALONE};
use crate::error;
use crate::frontend::{Frontend, News};
use crate::worker::{Worker, lock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use toolbus_mcp::RpcError;

pub struct Session {
    pub id: String,
    principal: Principal,
    worker: Arc<Worker>,
    pub frontend: Arc<Frontend>,
    pub log: Arc<EventLog>,
    last_used: Mutex<Instant>,
    /// Streams on which somebody reads, those of calls included.
    pub readers: AtomicUsize,
    ended: AtomicBool,
    news: AbortHandle,
}

impl Session {
    fn new(principal: Principal, worker: Arc<Worker>, options: &HttpOptions) -> Arc<Self> {
        let id = uuid::Uuid::new_v4().to_string();
        let frontend = Frontend::new(Arc::clone(&worker), id.clone());
        let log = Arc::new(EventLog::new(options.max_replay_events, options.max_replay_bytes));
        let (mut news, kept) = (News::open(&frontend), Arc::clone(&log));
        let news = tokio::spawn(async move {
            loop {
                let message = news.next().await;
                kept.append(STANDALONE, &message);
            }
        });
        let last_used = Mutex::new(Instant::now());
        let news = news.abort_handle();
        let (readers, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { id, principal, worker, frontend, log, last_used, readers, ended, news })
    }

    fn is_idle(&self, limit: Duration) -> bool {
        let unused = lock(&self.last_used).elapsed() >= limit;
        unused && self.readers.load(Ordering::Relaxed) == 0 && self.frontend.calls_under_way() == 0
    }

    /// Nobody reads in it, and nothing was asked in it since then.
    pub fn is_silent_since(&self, then: Instant) -> bool {
        let silent = || self.readers.load(Ordering::Relaxed) == 0 && *lock(&self.last_used) <= then;
        self.ended.load(Ordering::Relaxed) || silent()
    }

    /// Tells the hosts, in the background: whoever ended the session doesn't wait for them.
    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.news.abort();
        let frontend = Arc::clone(&self.frontend);
        tokio::spawn(async move { frontend.close().await });
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.news.abort();
    }
}

pub struct Sessions {
    open: Mutex<HashMap<String, Arc<Session>>>,
    options: HttpOptions,
}

impl Sessions {
    pub fn new(options: &HttpOptions) -> Arc<Self> {
        let sessions = Arc::new(Self { open: Mutex::default(), options: options.clone() });
        tokio::spawn(sweep(Arc::downgrade(&sessions), options.session_idle));
        sessions
    }

    /// It counts from now on; who opens it ends it if its `initialize` fails.
    pub fn open(&self, principal: &Principal, worker: Arc<Worker>) -> Result<Arc<Session>, RpcError> {
        let mut open = lock(&self.open);
        let own = open.values().filter(|session| session.principal == *principal).count();
        for (count, limit) in [(open.len(), self.options.max_sessions), (own, self.options.max_sessions_per_principal)]
        {
            if count >= limit {
                return Err(error::too_many_sessions(limit));
            }
        }
        let session = Session::new(principal.clone(), worker, &self.options);
        open.insert(session.id.clone(), Arc::clone(&session));
        Ok(session)
    }

    /// Another principal's session is as unknown as one that never was.
    pub fn find(&self, principal: &Principal, id: &str) -> Option<Arc<Session>> {
        let session = lock(&self.open).get(id).filter(|session| session.principal == *principal).cloned()?;
        // Its bus ended with a credential; a client that is told so begins anew with the one it has now.
        if !session.worker.bus().is_alive() {
            self.end(&session);
            return None;
        }
        *lock(&session.last_used) = Instant::now();
        Some(session)
    }

    pub fn end(&self, session: &Session) {
        lock(&self.open).remove(&session.id);
        session.end();
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
        ended.iter().for_each(|session| session.end());
    }
}

async fn sweep(sessions: Weak<Sessions>, limit: Duration) {
    let mut pace = tokio::time::interval((limit / 20).max(Duration::from_millis(50)));
    loop {
        pace.tick().await;
        let Some(sessions) = sessions.upgrade() else { return };
        sessions.end_idle(limit);
    }
}
