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
    agents: HashMap<u64, Stored>,
}

impl Default for Totals {
    fn default() -> Self {
        Self { all: Stored::default(), capacity: u64::MAX, agents: HashMap::default() }
    }
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

    /// Whether a further message of this size fits. `share` returns that of the sender; it is called only if it may matter.
    pub fn check(
        &self,
        options: &EngineOptions,
        (sender, rights): (SenderKey, Rights),
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
        let own = self.agents.get(&sender.agent).copied().unwrap_or_default();
        let bytes_left = whole.bytes.min(rights.usable(self.capacity)).saturating_sub(bytes);
        let free = Stored { messages: whole.messages - messages, bytes: bytes_left };
        let admits = |share: Share| share.admits(own.messages, free.messages) && share.admits(own.bytes, free.bytes);
        if admits(Share::LEAST) || admits(share()) {
            return Ok(());
        }
        Err(Refusal::ShareFull { messages: own.messages, bytes: own.bytes })
    }
}
