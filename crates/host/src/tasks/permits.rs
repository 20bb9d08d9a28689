//! Session slots for tasks. A task waits where a call would be refused, because no client waits for it. So that tasks
//! don't starve calls, all tasks together get at most half of a server's session slots, and those of one agent a quarter.

use crate::calls::Slot;
use crate::host::Host;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use toolbus_mcp::Era;

/// The share of all tasks, and of the tasks of one agent, as divisors.
const SHARE_OF_ALL: usize = 2;
const SHARE_OF_AGENT: usize = 4;

/// The tasks' share of one kind of permit.
pub struct TaskPermits {
    all: Arc<Semaphore>,
    of_agent: usize,
    agents: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl TaskPermits {
    /// The share of that many permits.
    pub fn of(permits: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new((permits / SHARE_OF_ALL).max(1))),
            of_agent: (permits / SHARE_OF_AGENT).max(1),
            agents: Mutex::default(),
        }
    }

    /// Waits in FIFO order, first among the agent's own tasks and then among all.
    async fn acquire(&self, agent: &str) -> [OwnedSemaphorePermit; 2] {
        let own = self.semaphore_of(agent).acquire_owned().await.expect("these semaphores are never closed");
        let all = Arc::clone(&self.all).acquire_owned().await.expect("these semaphores are never closed");
        [own, all]
    }

    fn semaphore_of(&self, agent: &str) -> Arc<Semaphore> {
        let mut agents = self.agents.lock().expect("no code panics while it holds this lock");
        // Permits and waiters hold a reference, so an unreferenced semaphore is unused.
        agents.retain(|_, permits| Arc::strong_count(permits) > 1);
        let permits = agents.entry(agent.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.of_agent)));
        Arc::clone(permits)
    }
}

/// Waits for a session slot of the task's server, if the task needs a session of its own. Returns the permits of its share,
/// to be held until the task ends. The machine ends the wait when the task expires.
pub async fn reserve_session(host: &Arc<Host>, slot: &Slot) -> Vec<OwnedSemaphorePermit> {
    let server = &slot.server;
    // Unknown eras are reported when the task reaches its server.
    let Ok(eras) = server.eras(host).await else { return Vec::new() };
    let client = slot.parsed.rpc.client.era;
    if server.is_shared() || server.era_for(client, &eras) != Era::Legacy {
        return Vec::new();
    }
    let permits = Vec::from(server.task_sessions.acquire(slot.agent()).await);
    let Ok(session) = server.session(host, slot.session_id(), client, slot.role()) else { return permits };
    session.reserve(server.wait_for_slot(host, slot.agent()).await);
    permits
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn an_agent_gets_a_quarter_and_all_tasks_get_half() {
        let permits = TaskPermits::of(8);
        let acquire = |agent: &'static str| tokio::time::timeout(Duration::from_secs(1), permits.acquire(agent));
        let (first, _second) = (acquire("a").await.expect("free"), acquire("a").await.expect("free"));
        assert!(acquire("a").await.is_err());
        let (_third, _fourth) = (acquire("b").await.expect("free"), acquire("b").await.expect("free"));
        assert!(acquire("c").await.is_err());
        drop(first);
        assert!(acquire("c").await.is_ok());
        assert!(acquire("a").await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_at_least_one_permit_and_unused_semaphores_are_dropped() {
        let permits = TaskPermits::of(1);
        for agent in ["a", "b", "c"] {
            drop(permits.acquire(agent).await);
        }
        assert_eq!(permits.agents.lock().expect("no panic").len(), 1);
    }
}
