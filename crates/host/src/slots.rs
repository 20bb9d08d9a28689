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
        let agent = session.id.agent();
        let take = || self.processes.take(agent, session.share.unwrap_or_else(|| self.processes.default_share()));
        if let Some(slot) = take() {
            return Some(slot);
        }
        self.make_room(host, self.processes.has_free().then_some(agent)).await;
        take()
    }

    /// Waits for such a slot.
    pub async fn wait_for_call_slot(&self, host: &Host, session: &Session) -> ProcessSlot {
        loop {
            let mut returned = std::pin::pin!(self.processes.returned());
            returned.as_mut().enable();
            if let Some(slot) = self.free_slot(host, session).await {
                return slot;
            }
            let idle_at = self.next_idle(host.options.limits.evicted_after.max(MIN_EVICTION_INTERVAL));
            tokio::select! {
                () = returned => {}
                () = tokio::time::sleep_until(idle_at) => {}
            }
        }
    }

    /// Waits for a slot in FIFO order: until one is returned, or a connection is idle for long enough to be closed.
    pub async fn wait_for_slot(&self, host: &Host, agent: &str) -> ProcessSlot {
        let mut returned = std::pin::pin!(self.processes.wait(agent));
        let mut idle_at = Instant::now();
        loop {
            tokio::select! {
                biased;
                slot = &mut returned => return slot,
                () = tokio::time::sleep_until(idle_at) => self.make_room(host, None).await,
            }
            idle_at = self.next_idle(host.options.limits.evicted_after.max(MIN_EVICTION_INTERVAL));
        }
    }

    /// When the next connection may be idle for that long. One that is in use now is so later than those that are not.
    fn next_idle(&self, idle: Duration) -> Instant {
        let now = Instant::now();
        let sessions = self.sessions.lock().expect("no code panics while it holds this lock");
        let next = sessions.values().filter_map(|session| session.idle_at(idle)).filter(|at| *at > now).min();
        next.unwrap_or(now + idle).min(now + idle)
    }

    /// Closes the longest idle connection, if it was idle for `evicted_after`: its client may have disconnected without
    /// closing its session. If not, its next call reconnects. With `of`, only a connection of that agent.
    async fn make_room(&self, host: &Host, of: Option<&str>) {
        if of.is_none()
            && *self.nothing_idle_until.lock().expect("no code panics while it holds this lock") > Instant::now()
        {
            return;
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
                return;
            }
        }
        if of.is_some() {
            return;
        }
        let until = Instant::now() + MIN_EVICTION_INTERVAL;
        *self.nothing_idle_until.lock().expect("no code panics while it holds this lock") = until;
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
