//! One connection to the bus for each agent that comes over HTTP, within this process, with that agent's own rights.

use super::gate::principal;
use crate::front_bus;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use toolbus_broker::{BrokerServer, Identity};
use toolbus_client::{BrokerClient, BrokerError, ClientOptions};
use toolbus_worker::{BoxFuture, Bus, BusPool, Principal};

/// Agents that have a connection at the same time; past it those go that are not used.
const MAX_AGENTS: usize = 1024;

pub struct Pool {
    server: Arc<BrokerServer>,
    agents: Mutex<HashMap<Principal, Arc<Entry>>>,
}

struct Entry {
    identity: Identity,
    bus: tokio::sync::Mutex<Option<Arc<dyn Bus>>>,
}

impl Entry {
    fn is_unused(&self) -> bool {
        // Somebody opens it right now, or somebody holds what was opened.
        let Ok(bus) = self.bus.try_lock() else { return false };
        bus.as_ref().is_none_or(|bus| Arc::strong_count(bus) == 1)
    }
}

impl Pool {
    pub fn new(server: Arc<BrokerServer>) -> Self {
        Self { server, agents: Mutex::default() }
    }

    /// Whoever came through the gate. A credential that replaced another gets a connection of its own.
    pub fn introduce(&self, identity: &Identity) {
        let mut agents = self.agents.lock().expect("no code panics while it holds the agents");
        let key = principal(identity);
        if agents.get(&key).is_some_and(|entry| entry.identity.standing.ended().is_none()) {
            return;
        }
        agents.retain(|_, entry| entry.identity.standing.ended().is_none());
        if agents.len() >= MAX_AGENTS {
            agents.retain(|_, entry| !entry.is_unused());
        }
        if agents.len() < MAX_AGENTS {
            let bus = tokio::sync::Mutex::default();
            agents.insert(key, Arc::new(Entry { identity: identity.clone(), bus }));
        }
    }

    fn entry(&self, principal: &Principal) -> Option<Arc<Entry>> {
        self.agents.lock().expect("no code panics while it holds the agents").get(principal).cloned()
    }
}

impl BusPool for Pool {
    fn bus<'a>(&'a self, principal: &'a Principal) -> BoxFuture<'a, Result<Arc<dyn Bus>, BrokerError>> {
        Box::pin(async move {
            let full = || BrokerError::Transport(format!("{MAX_AGENTS} agents use this endpoint already"));
            let entry = self.entry(principal).ok_or_else(full)?;
            let mut open = entry.bus.lock().await;
            if let Some(bus) = open.as_ref().filter(|bus| bus.is_alive()) {
                return Ok(Arc::clone(bus));
            }
            let (server, identity) = (Arc::clone(&self.server), entry.identity.clone());
            let agent = identity.agent.clone();
            let pipes =
                move || server.attach_as(identity.clone()).map_err(|error| BrokerError::Transport(error.to_string()));
            let client = BrokerClient::connect_local(pipes, agent, ClientOptions::default()).await?;
            let bus: Arc<dyn Bus> = front_bus::open(client).await?;
            *open = Some(Arc::clone(&bus));
            Ok(bus)
        })
    }
}
