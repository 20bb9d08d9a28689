//! What each agent uses of the broker's connections and of the memory for input that has not arrived completely. Other
//! agents are not affected by an agent that uses up its share.

use crate::names::BrokerNames;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use toolbus_engine::Names;
use toolbus_identity::{Identity, Rights};

/// Input of a connection up to this size is not counted: it is about what an idle connection takes.
const FREE_INPUT: u64 = 64 << 10;

/// The connections and the input of all agents.
pub struct Shares {
    max_connections: u64,
    max_input_bytes: u64,
    names: Arc<BrokerNames>,
    usage: Mutex<Usage>,
}

#[derive(Default)]
struct Usage {
    all: Amounts,
    agents: HashMap<String, Amounts>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
struct Amounts {
    connections: u64,
    input: u64,
}

/// A connection of an agent, which counts until it is dropped.
pub struct AgentConnection {
    shares: Arc<Shares>,
    agent: String,
    role: Option<String>,
    rights: Rights,
    input: u64,
}

impl Shares {
    pub fn new(max_connections: usize, max_input_bytes: u64, names: Arc<BrokerNames>) -> Arc<Self> {
        Arc::new(Self { max_connections: max_connections as u64, max_input_bytes, names, usage: Mutex::default() })
    }

    /// Counts a connection. Returns `None` if the broker has too many, or the agent has used up its share.
    pub fn connect(self: &Arc<Self>, identity: &Identity) -> Option<AgentConnection> {
        let role = identity.agent.role.as_ref().map(ToString::to_string);
        let (agent, rights) = (identity.principal().to_owned(), identity.rights);
        let mut usage = self.lock();
        let (all, own) = (usage.all.connections, usage.of(&agent).connections);
        if !self.admits(role.as_deref(), rights, own, all, self.max_connections) {
            return None;
        }
        usage.change(&agent, |amounts| amounts.connections += 1);
        drop(usage);
        Some(AgentConnection { shares: Arc::clone(self), agent, role, rights, input: 0 })
    }

    fn admits(&self, role: Option<&str>, rights: Rights, own: u64, all: u64, whole: u64) -> bool {
        let free = rights.usable(whole).saturating_sub(all);
        free > 0 && (!rights.has_share() || self.names.share(role).admits(own, free))
    }

    fn lock(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().expect("no code panics while holding the lock")
    }
}

impl Usage {
    fn of(&self, agent: &str) -> Amounts {
        self.agents.get(agent).copied().unwrap_or_default()
    }

    fn change(&mut self, agent: &str, change: impl Fn(&mut Amounts)) {
        change(&mut self.all);
        let own = self.agents.entry(agent.to_owned()).or_default();
        change(own);
        if *own == Amounts::default() {
            self.agents.remove(agent);
        }
    }
}

impl AgentConnection {
    /// Whether the connection belongs to this agent in this role.
    pub fn is_of(&self, identity: &Identity) -> bool {
        self.agent == identity.principal() && self.role.as_deref() == identity.agent.role.as_deref()
    }

    /// Sets how many bytes of input are held for this connection. Returns false if the agent has used up its share; the
    /// caller has to drop the input then.
    #[must_use]
    pub fn hold_input(&mut self, bytes: u64) -> bool {
        let (before, now) = (self.input, if bytes > FREE_INPUT { bytes } else { 0 });
        if now == before {
            return true;
        }
        let mut usage = self.shares.lock();
        let (all, own) = (usage.all.input, usage.of(&self.agent).input);
        let whole = self.shares.max_input_bytes;
        if now > before && !self.shares.admits(self.role.as_deref(), self.rights, own, all, whole) {
            return false;
        }
        usage.change(&self.agent, |amounts| amounts.input = amounts.input - before + now);
        self.input = now;
        true
    }
}

impl Drop for AgentConnection {
    fn drop(&mut self) {
        let input = self.input;
        self.shares.lock().change(&self.agent, |amounts| {
            amounts.connections -= 1;
            amounts.input -= input;
        });
    }
}
