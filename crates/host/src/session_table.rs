//! The sessions of a server, with the number of each agent's: a new session must not cost a pass over all others.

use crate::session::{Session, SessionId};
use std::collections::HashMap;
use std::collections::hash_map::Values;
use std::sync::Arc;

#[derive(Default)]
pub struct SessionTable {
    by_id: HashMap<SessionId, Arc<Session>>,
    /// Sessions of each agent, without those of tasks, which are limited by the number of tasks.
    by_agent: HashMap<String, u64>,
    of_agents: u64,
}

impl SessionTable {
    pub fn get(&self, id: &SessionId) -> Option<&Arc<Session>> {
        self.by_id.get(id)
    }

    pub fn values(&self) -> Values<'_, SessionId, Arc<Session>> {
        self.by_id.values()
    }

    /// The number of sessions of an agent and of all agents.
    pub fn counts(&self, agent: &str) -> (u64, u64) {
        (self.by_agent.get(agent).copied().unwrap_or_default(), self.of_agents)
    }

    /// Adds a session whose id is not known yet.
    pub fn insert(&mut self, session: Arc<Session>) {
        if !session.id.is_of_task() {
            *self.by_agent.entry(session.id.agent().to_owned()).or_default() += 1;
            self.of_agents += 1;
        }
        self.by_id.insert(session.id.clone(), session);
    }

    pub fn take(&mut self, is_taken: impl Fn(&Session) -> bool) -> Vec<Arc<Session>> {
        let taken: Vec<_> = self.by_id.extract_if(|_, session| is_taken(session)).map(|(_, session)| session).collect();
        for session in taken.iter().filter(|session| !session.id.is_of_task()) {
            self.of_agents -= 1;
            if let Some(own) = self.by_agent.get_mut(session.id.agent()) {
                *own -= 1;
                if *own == 0 {
                    self.by_agent.remove(session.id.agent());
                }
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_mcp::Era;

    fn session(mailbox: &str, key: &str) -> Arc<Session> {
        Session::new(SessionId { mailbox: mailbox.into(), key: key.into() }, Era::Legacy, None)
    }

    #[test]
    fn sessions_are_counted_by_agent_whatever_their_mailbox() {
        let mut table = SessionTable::default();
        for (mailbox, key) in [("ann", "1"), ("ann#a", "1"), ("ann#b", "2"), ("bob", "1")] {
            table.insert(session(mailbox, key));
        }
        assert_eq!((table.counts("ann"), table.counts("bob"), table.counts("eve")), ((3, 4), (1, 4), (0, 4)));
        assert_eq!(table.take(|session| session.id.key == "1").len(), 3);
        assert_eq!((table.counts("ann"), table.counts("bob")), ((1, 1), (0, 1)));
        assert_eq!(table.take(|_| true).len(), 1);
        assert!(table.by_agent.is_empty() && table.values().next().is_none());
    }
}
