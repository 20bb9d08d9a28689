//! One connection to the bus for each agent that comes over HTTP, within this process, with that agent's own rights.

use super::gate::principal;
use crate::frontend_bus;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use toolbus_broker::{BrokerServer, EndReason, Identity, Standing};
use toolbus_client::{BrokerClient, BrokerError, ClientOptions};
use toolbus_worker::{BoxFuture, Bus, BusPool, Principal};

/// Agents that have a connection at the same time; past it those go that are not used.
const MAX_AGENTS: usize = 1024;
/// Credentials of one agent that are good at the same time, as far as its connection knows.
const MAX_STANDINGS: usize = 64;

pub struct Pool {
    server: Arc<BrokerServer>,
    agents: Mutex<HashMap<Principal, Arc<Entry>>>,
}

struct Entry {
    identity: Identity,
    /// Of every credential that the agent came with. The connection ends with the last of them.
    standings: Mutex<Vec<Standing>>,
    bus: tokio::sync::Mutex<Option<Arc<dyn Bus>>>,
}

impl Entry {
    /// The agent's connection has a mailbox of its own: the same agent in another role must not take it over.
    fn new(identity: &Identity) -> Arc<Self> {
        let mut own = identity.clone();
        own.agent.session_id = format!("{}#mcp-{}", identity.principal(), uuid::Uuid::new_v4()).into();
        own.standing = Standing::forever();
        let standings = Mutex::new(vec![identity.standing.clone()]);
        let entry = Arc::new(Self { identity: own, standings, bus: tokio::sync::Mutex::default() });
        tokio::spawn(end_with_the_last(Arc::clone(&entry)));
        entry
    }

    fn is_good(&self) -> bool {
        self.identity.standing.ended().is_none()
    }

    fn learn(&self, standing: &Standing) {
        let mut standings = self.standings.lock().expect("no code panics while it holds the standings");
        if standings.iter().any(|known| known.is_same_as(standing)) {
            return;
        }
        standings.retain(|known| known.ended().is_none());
        if standings.len() < MAX_STANDINGS {
            standings.push(standing.clone());
        }
    }

    fn is_unused(&self) -> bool {
        // Somebody opens it right now, or somebody holds what was opened.
        let Ok(bus) = self.bus.try_lock() else { return false };
        bus.as_ref().is_none_or(|bus| Arc::strong_count(bus) == 1)
    }
}

async fn end_with_the_last(entry: Arc<Entry>) {
    let mut why = EndReason::Expired;
    loop {
        let next = {
            let mut standings = entry.standings.lock().expect("no code panics while it holds the standings");
            standings.retain(|known| known.ended().is_none());
            let Some(next) = standings.first().cloned() else {
                // Before anybody can bring another: from here on a new entry is needed.
                entry.identity.standing.end(why);
                return;
            };
            next
        };
        why = next.wait().await;
    }
}

impl Pool {
    pub fn new(server: Arc<BrokerServer>) -> Self {
        Self { server, agents: Mutex::default() }
    }

    /// Whoever came through the gate.
    pub fn introduce(&self, identity: &Identity) {
        let mut agents = self.agents.lock().expect("no code panics while it holds the agents");
        let key = principal(identity);
        if let Some(entry) = agents.get(&key).filter(|entry| entry.is_good()) {
            return entry.learn(&identity.standing);
        }
        agents.retain(|_, entry| entry.is_good());
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
            let bus: Arc<dyn Bus> = frontend_bus::open(client).await?;
            *open = Some(Arc::clone(&bus));
            Ok(bus)
        })
    }
}
