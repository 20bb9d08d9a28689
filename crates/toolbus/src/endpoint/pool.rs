//! One in-process bus connection for each agent that uses the HTTP endpoint, with that agent's rights.

use super::authentication::principal;
use crate::frontend_bus;
use hashbrown::HashMap;
use std::sync::{Arc, Mutex};
use toolbus_broker::{BrokerServer, EndReason, Identity, Standing};
use toolbus_client::{BrokerClient, BrokerError, ClientOptions};
use toolbus_worker::{BoxFuture, Bus, BusPool, Principal};

/// Maximum number of agents with a connection. At the limit, unused connections are closed.
const MAX_AGENTS: usize = 1024;
/// Maximum number of valid credentials that are tracked for one agent.
const MAX_STANDINGS: usize = 64;

pub struct Pool {
    server: Arc<BrokerServer>,
    agents: Mutex<HashMap<Principal, Arc<Entry>>>,
}

struct Entry {
    identity: Identity,
    /// One for each credential that the agent has used. The connection ends with the last of them.
    standings: Mutex<Vec<Standing>>,
    bus: tokio::sync::Mutex<Option<Arc<dyn Bus>>>,
}

impl Entry {
    /// The connection gets its own mailbox, because the same agent in another role must not displace it.
    fn new(identity: &Identity) -> Arc<Self> {
        let mut own = identity.clone();
        own.agent.session_id = format!("{}#mcp-{}", identity.principal(), uuid::Uuid::new_v4()).into();
        own.standing = Standing::forever();
        let standings = Mutex::new(vec![identity.standing.clone()]);
        let entry = Arc::new(Self { identity: own, standings, bus: tokio::sync::Mutex::default() });
        tokio::spawn(end_with_last_credential(Arc::clone(&entry)));
        entry
    }

    fn is_valid(&self) -> bool {
        self.identity.standing.ended().is_none()
    }

    fn add_standing(&self, standing: &Standing) {
        let mut standings = self.standings.lock().expect("no code panics while it holds this lock");
        if standings.iter().any(|known| known.is_same_as(standing)) {
            return;
        }
        standings.retain(|known| known.ended().is_none());
        if standings.len() < MAX_STANDINGS {
            standings.push(standing.clone());
        }
    }

    fn is_unused(&self) -> bool {
        // A locked entry is being opened, and more than one reference means that a session uses it.
        let Ok(bus) = self.bus.try_lock() else { return false };
        bus.as_ref().is_none_or(|bus| Arc::strong_count(bus) == 1)
    }
}

async fn end_with_last_credential(entry: Arc<Entry>) {
    let mut reason = EndReason::Expired;
    loop {
        let next = {
            let mut standings = entry.standings.lock().expect("no code panics while it holds this lock");
            standings.retain(|known| known.ended().is_none());
            let Some(next) = standings.first().cloned() else {
                // Under the lock: no credential can be added to an ended entry, so the next request creates a new one.
                entry.identity.standing.end(reason);
                return;
            };
            next
        };
        reason = next.wait().await;
    }
}

impl Pool {
    pub fn new(server: Arc<BrokerServer>) -> Self {
        Self { server, agents: Mutex::default() }
    }

    /// Registers an authenticated agent.
    pub fn register(&self, identity: &Identity) {
        let mut agents = self.agents.lock().expect("no code panics while it holds this lock");
        let key = principal(identity);
        if let Some(entry) = agents.get(&key).filter(|entry| entry.is_valid()) {
            return entry.add_standing(&identity.standing);
        }
        agents.retain(|_, entry| entry.is_valid());
        if agents.len() >= MAX_AGENTS {
            agents.retain(|_, entry| {
                let is_used = !entry.is_unused();
                if !is_used {
                    entry.identity.standing.end(EndReason::Expired);
                }
                is_used
            });
        }
        if agents.len() < MAX_AGENTS {
            agents.insert(key, Entry::new(identity));
        }
    }

    fn entry(&self, principal: &Principal) -> Option<Arc<Entry>> {
        self.agents.lock().expect("no code panics while it holds this lock").get(principal).cloned()
    }
}

impl BusPool for Pool {
    fn bus<'a>(&'a self, principal: &'a Principal) -> BoxFuture<'a, Result<Arc<dyn Bus>, BrokerError>> {
        Box::pin(async move {
            let full = || BrokerError::Transport(format!("agent limit of the endpoint reached ({MAX_AGENTS} agents)"));
            let entry = self.entry(principal).ok_or_else(full)?;
            let mut open = entry.bus.lock().await;
            if let Some(bus) = open.as_ref().filter(|bus| bus.is_alive()) {
                return Ok(Arc::clone(bus));
            }
            let (server, identity) = (Arc::clone(&self.server), entry.identity.clone());
            let agent = identity.agent.clone();
            let links =
                move || server.attach_as(identity.clone()).map_err(|error| BrokerError::Transport(error.to_string()));
            let client = BrokerClient::connect_local(links, agent, ClientOptions::default()).await?;
            let bus: Arc<dyn Bus> = frontend_bus::open(client).await?;
            *open = Some(Arc::clone(&bus));
            Ok(bus)
        })
    }
}
