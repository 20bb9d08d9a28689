//! What is stored, in total and per sending agent. A [`Share`] limits what one agent can store, so that it can't fill the
//! broker for the others.

use crate::ledger::SenderKey;
use crate::{EngineOptions, Refusal, Rights};
use hashbrown::HashMap;
use toolbus_base::Share;

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
#[derive(Debug)]
pub struct Totals {
    pub all: Stored,
    /// What the disk can hold, as far as it is known.
    pub capacity: u64,
    /// By sender.
    agents: HashMap<u64, Stored>,
    /// By the owner of their mailbox.
    received: HashMap<u64, Stored>,
}

impl Default for Totals {
    fn default() -> Self {
        Self { all: Stored::default(), capacity: u64::MAX, agents: HashMap::default(), received: HashMap::default() }
    }
}

impl Totals {
    pub fn add(&mut self, sender: SenderKey, owner: u64, size: u64) {
        self.all.add(size);
        self.agents.entry(sender.agent).or_default().add(size);
        self.received.entry(owner).or_default().add(size);
    }

    pub fn remove(&mut self, sender: SenderKey, owner: u64, size: u64) {
        self.all.remove(size);
        for (stored, agent) in [(&mut self.agents, sender.agent), (&mut self.received, owner)] {
            if let Some(of_agent) = stored.get_mut(&agent) {
                of_agent.remove(size);
                if of_agent.messages == 0 {
                    stored.remove(&agent);
                }
            }
        }
    }

    /// Whether a message of that agent is pending.
    pub fn has_messages_of(&self, agent: u64) -> bool {
        self.agents.contains_key(&agent)
    }

    /// Whether a further message of this size fits. `share` returns that of the sender; it is called only if it may matter.
    pub fn check(
        &self,
        options: &EngineOptions,
        (sender, owner, rights): (SenderKey, u64, Rights),
        size: u64,
        share: impl FnOnce() -> Share,
    ) -> Result<(), Refusal> {
        let Stored { messages, bytes } = self.all;
        let whole =
            Stored { messages: rights.usable(options.total_messages), bytes: rights.usable(options.total_bytes) };
        if messages >= whole.messages || bytes + size > whole.bytes {
            return Err(Refusal::BrokerFull { messages, bytes });
        }
        if !rights.has_share() {
            return Ok(());
        }
        // Replies that wait for the sender count too: it has caused them, and those who send them have no share.
        let of = |stored: &HashMap<u64, Stored>, agent| stored.get(&agent).copied().unwrap_or_default();
        let (sent, received) = (of(&self.agents, sender.agent), of(&self.received, owner));
        let own = Stored { messages: sent.messages + received.messages, bytes: sent.bytes + received.bytes };
        let bytes_left = whole.bytes.min(rights.usable(self.capacity)).saturating_sub(bytes);
        let free = Stored { messages: whole.messages - messages, bytes: bytes_left };
        let admits = |share: Share| share.admits(own.messages, free.messages) && share.admits(own.bytes, free.bytes);
        if admits(Share::LEAST) || admits(share()) {
            return Ok(());
        }
        Err(Refusal::ShareFull { messages: own.messages, bytes: own.bytes })
    }
}
