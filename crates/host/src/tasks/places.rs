//! Tasks wait where calls would be refused, because nobody waits for them. So that they can't take a server from those who
//! do wait, tasks together have at most half of what it has, and those of one agent a quarter.

use crate::calls::{Job, Stop};
use crate::server::Server;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use toolbus_mcp::Era;

/// The part of a server's places that all tasks together may have, and the part for those of one agent.
const SHARE_OF_ALL: usize = 2;
const SHARE_OF_AGENT: usize = 4;
/// How long a task waits that finds all sessions of a server in use. Calls don't wait, so they come first.
const SLOT_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Places of one kind that tasks may have.
pub struct TaskPlaces {
    all: Arc<Semaphore>,
    of_agent: usize,
    agents: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl TaskPlaces {
    /// Of so many.
    pub fn of(places: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new((places / SHARE_OF_ALL).max(1))),
            of_agent: (places / SHARE_OF_AGENT).max(1),
            agents: Mutex::default(),
        }
    }

    /// Waits in order, first among the agent's own tasks and then among all.
    async fn enter(&self, agent: &str) -> [OwnedSemaphorePermit; 2] {
        let own = self.places_of(agent).acquire_owned().await.expect("these semaphores are never closed");
        let all = Arc::clone(&self.all).acquire_owned().await.expect("these semaphores are never closed");
        [own, all]
    }

    fn places_of(&self, agent: &str) -> Arc<Semaphore> {
        let mut agents = self.agents.lock().expect("nothing panics while it holds this lock");
        // Whoever has a place, or waits for one, has a share of it.
        agents.retain(|_, places| Arc::strong_count(places) > 1);
        let places = agents.entry(agent.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.of_agent)));
        Arc::clone(places)
    }
}

impl Job {
    /// A task waits, until its time is over, for its place and for a session of its own. Anything else goes on.
    pub async fn wait_for_task_place(&mut self) -> Result<(), Stop> {
        if self.rpc.task.is_none() {
            return Ok(());
        }
        // Asking takes the place in line; whoever comes after this one may ask then.
        let asked = async {
            self.in_line.cancel();
            std::future::pending().await
        };
        let places = tokio::select! {
            biased;
            places = self.task_places() => places,
            never = asked => never,
            () = self.caller.cancel.fired() => return Err(Stop::Cancelled),
            () = self.host.shutdown.cancelled() => return Err(Stop::HandedOver),
        };
        self.places.extend(places);
        Ok(())
    }

    async fn task_places(&self) -> Vec<OwnedSemaphorePermit> {
        let (server, agent) = (&self.server, self.caller.agent());
        let mut places = Vec::from(server.task_calls.enter(agent).await);
        if self.needs_own_session().await {
            places.extend(server.task_sessions.enter(agent).await);
            self.reserve_slot(server).await;
        }
        places
    }

    /// What can't be known yet is found out, and told, when the task is at its server.
    async fn needs_own_session(&self) -> bool {
        let Ok(eras) = self.server.eras(&self.host).await else { return false };
        !self.server.is_shared() && self.server.era_for(self.rpc.client.era, &eras) == Era::Legacy
    }

    /// Before it has anything that those need who have the slots.
    async fn reserve_slot(&self, server: &Server) {
        let Ok(session) = server.session(&self.host, self.session_id(), self.rpc.client.era) else { return };
        loop {
            if let Some(slot) = server.free_slot(&self.host).await {
                return session.reserve(slot);
            }
            tokio::time::sleep(SLOT_AGAIN_AFTER).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_agent_has_a_quarter_and_all_have_half() {
        let places = TaskPlaces::of(8);
        let enter = |agent: &'static str| tokio::time::timeout(Duration::from_secs(1), places.enter(agent));
        let (first, _second) = (enter("a").await.expect("free"), enter("a").await.expect("free"));
        assert!(enter("a").await.is_err());
        let (_third, _fourth) = (enter("b").await.expect("free"), enter("b").await.expect("free"));
        assert!(enter("c").await.is_err());
        drop(first);
        assert!(enter("c").await.is_ok());
        assert!(enter("a").await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_one_place_at_least_and_nobody_is_remembered_for_nothing() {
        let places = TaskPlaces::of(1);
        for agent in ["a", "b", "c"] {
            drop(places.enter(agent).await);
        }
        assert_eq!(places.agents.lock().expect("no panic").len(), 1);
    }
}
