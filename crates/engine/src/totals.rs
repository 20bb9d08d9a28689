//! What is stored, in total and per sending agent. A share limits what one agent can store, so that it can't fill the
//! broker for the others.

use crate::ledger::SenderKey;
use crate::{EngineOptions, Refusal, Rights};
use hashbrown::HashMap;

/// A number of messages and their size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stored {
    pub messages: u64,
    pub bytes: u64,
}

impl Stored {
    fn add(&mut self, size: u64) {
        self.messages += 1;
        self.bytes += size;
    }

    fn remove(&mut self, size: u64) {
        self.messages -= 1;
        self.bytes -= size;
    }
}

/// The pending messages of all mailboxes, by sender.
#[derive(Debug, Default)]
pub struct Totals {
    pub all: Stored,
    agents: HashMap<u64, Stored>,
}

impl Totals {
    pub fn add(&mut self, sender: SenderKey, size: u64) {
        self.all.add(size);
        self.agents.entry(sender.agent).or_default().add(size);
    }

    pub fn remove(&mut self, sender: SenderKey, size: u64) {
        self.all.remove(size);
        if let Some(stored) = self.agents.get_mut(&sender.agent) {
            stored.remove(size);
            if stored.messages == 0 {
                self.agents.remove(&sender.agent);
            }
        }
    }

    /// Whether a message of that agent is pending.
    pub fn has_messages_of(&self, agent: u64) -> bool {
        self.agents.contains_key(&agent)
    }

    /// Whether a further message of this size fits.
    pub fn check(&self, options: &EngineOptions, rights: Rights, sender: SenderKey, size: u64) -> Result<(), Refusal> {
        let reserve = if has_share(rights) { options.reserve } else { 0 };
        let Stored { messages, bytes } = self.all;
        let usable = |limit: u64| limit - percent(limit, reserve);
        if messages >= usable(options.total_messages) || bytes + size > usable(options.total_bytes) {
            return Err(Refusal::BrokerFull { messages, bytes });
        }
        let Stored { messages, bytes } = self.agents.get(&sender.agent).copied().unwrap_or_default();
        if has_share(rights) && (messages >= options.agent_messages || bytes + size > options.agent_bytes) {
            return Err(Refusal::ShareFull { messages, bytes });
        }
        Ok(())
    }
}

/// Whether a sender is limited to its share. Hosts and operators may use everything: what a host sends, others have asked
/// for, and an operator has to be able to act on a full broker.
pub fn has_share(rights: Rights) -> bool {
    !(rights.host || rights.operator || rights.unrestricted)
}

/// A percentage of a number, without overflow.
fn percent(of: u64, percentage: u64) -> u64 {
    of / 100 * percentage + of % 100 * percentage / 100
}
