//! Slots for the connections of sessions: taken, waited for, reserved, and freed by closing idle connections.

use crate::host::Host;
use crate::processes::ProcessSlot;
use crate::server::Server;
use crate::session::Session;
use crate::upstream::Usage;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Minimum time between two searches for a connection that is idle for long enough to be closed.
const MIN_EVICTION_INTERVAL: Duration = Duration::from_millis(200);

impl Server {
    /// A slot for the session's connection. If its agent may not have one more, an idle connection is closed: one of the
    /// agent's own, if others are free.
    pub(super) async fn free_slot(&self, host: &Host, session: &Session) -> Option<ProcessSlot> {
        self.slot_or_next_search(host, session).await.ok()
    }

    /// Waits for such a slot.
    pub async fn wait_for_call_slot(&self, host: &Host, session: &Session) -> ProcessSlot {
        loop {
            let mut returned = std::pin::pin!(self.processes.returned());
            returned.as_mut().enable();
            let next_search = match self.slot_or_next_search(host, session).await {
                Ok(slot) => return slot,
                Err(next_search) => next_search,
            };
            tokio::select! {
                () = returned => {}
                () = tokio::time::sleep_until(next_search) => {}
            }
        }
    }

    /// A slot for the session's connection, or the time of the next search for an idle connection.
    async fn slot_or_next_search(&self, host: &Host, session: &Session) -> Result<ProcessSlot, Instant> {
        let agent = session.id.agent();
        let take = || self.processes.take(agent, session.share.unwrap_or_else(|| self.processes.default_share()));
        if let Some(slot) = take() {
            return Ok(slot);
        }
        let next_search = self.make_room(host, self.processes.has_free().then_some(agent)).await;
        take().ok_or(next_search)
    }

    /// Waits for a slot in FIFO order: until one is returned, or a connection is idle for long enough to be closed.
    pub async fn wait_for_slot(&self, host: &Host, agent: &str) -> ProcessSlot {
        let mut returned = std::pin::pin!(self.processes.wait(agent));
        let mut next_search = Instant::now();
        loop {
            tokio::select! {
                biased;
                slot = &mut returned => return slot,
                () = tokio::time::sleep_until(next_search) => next_search = self.make_room(host, None).await,
            }
        }
    }

    /// When the next connection may be idle for long enough. One that is in use now is so later than those that are not.
    fn next_idle(&self, host: &Host) -> Instant {
        let (now, idle) = (Instant::now(), host.options.limits.evicted_after.max(MIN_EVICTION_INTERVAL));
        let sessions = self.sessions.lock().expect("no code panics while it holds this lock");
        let next = sessions.values().filter_map(|session| session.idle_at(idle)).filter(|at| *at > now).min();
        next.unwrap_or(now + idle).clamp(now + MIN_EVICTION_INTERVAL, now + idle)
    }

    /// Closes the longest idle connection, if it was idle for `evicted_after`: its client may have disconnected without
    /// closing its session. If not, its next call reconnects. With `of`, only a connection of that agent. Returns when to search
    /// again.
    async fn make_room(&self, host: &Host, of: Option<&str>) -> Instant {
        if let Some(next) = self.evictions.next(of) {
            return next;
        }
        let mut idle: Vec<_> = {
            let sessions = self.sessions.lock().expect("no code panics while it holds this lock");
            let unused = |session: &&Arc<Session>| {
                of.is_none_or(|agent| session.id.agent() == agent) && session.is_idle(host.options.limits.evicted_after)
            };
            sessions.values().filter(unused).map(|session| (session.last_used(), Arc::clone(session))).collect()
        };
        idle.sort_by_key(|(last_used, _)| *last_used);
        for (_, session) in idle {
            // A locked one is being opened, so it is in use. Waiting for it could deadlock with another session that
            // evicts.
            let Ok(current) = session.upstream.try_lock() else { continue };
            if let Some(upstream) =
                current.as_ref().filter(|upstream| upstream.usage == Usage::Own && upstream.is_open())
            {
                tracing::debug!(
                    server = self.name(),
                    worker = session.id.mailbox,
                    "closing an idle session to free its slot"
                );
                upstream.close().await;
                return Instant::now() + MIN_EVICTION_INTERVAL;
            }
        }
        let next = self.next_idle(host);
        self.evictions.found_nothing(of, next);
        next
    }
}

impl Session {
    /// Stores a slot for the connection that this session will open.
    pub fn reserve(&self, slot: ProcessSlot) {
        *self.reserved.lock().expect("no code panics while it holds this lock") = Some(slot);
    }

    /// Whether the session has a slot: reserved, of an open connection, or of one that is being opened.
    pub fn has_slot(&self) -> bool {
        let is_reserved = self.reserved.lock().expect("no code panics while it holds this lock").is_some();
        is_reserved
            || self.upstream.try_lock().map_or(true, |current| current.as_ref().is_some_and(|own| own.is_open()))
    }

    pub fn take_reserved(&self) -> Option<ProcessSlot> {
        self.reserved.lock().expect("no code panics while it holds this lock").take()
    }
}
