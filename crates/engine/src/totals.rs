//! What is stored, in total and per agent. A [`Share`] limits what one agent can store, so that it can't fill the broker for
//! the others. A message uses the share of exactly one agent, and no agent can use up the share of another one.

use crate::ledger::{Payer, SenderKey};
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

/// A pending message, as far as shares are concerned.
#[derive(Debug, Clone, Copy)]
pub struct Charge {
    pub sender: SenderKey,
    pub payer: Payer,
    /// Hash of the agent that the message's mailbox belongs to.
    pub owner: u64,
    pub size: u64,
}

impl Charge {
    /// The key of the agent whose share the message uses.
    pub fn agent(&self) -> u64 {
        match self.payer {
            Payer::Sender => self.sender.agent,
            Payer::Recipient => self.owner,
        }
    }
}

/// What all agents have stored, and each of them. An agent has two keys: that of its present generation as a sender, and
/// that of its name as the owner of mailboxes.
#[derive(Debug)]
pub struct Totals {
    pub all: Stored,
    /// What the disk can hold, as far as it is known.
    pub capacity: u64,
    /// Pending messages by sender, regardless of their payer.
    sent: HashMap<u64, u64>,
    /// By the agent whose share they use.
    stored: HashMap<u64, Stored>,
    mailboxes: HashMap<u64, u64>,
}

impl Default for Totals {
    fn default() -> Self {
        Self {
            all: Stored::default(),
            capacity: u64::MAX,
            sent: HashMap::default(),
            stored: HashMap::default(),
            mailboxes: HashMap::default(),
        }
    }
}

/// The peer that wants to store something: its two keys, its rights, and its share, which is asked for only if it matters.
pub struct Storing<F> {
    pub sender: SenderKey,
    pub owner: u64,
    pub rights: Rights,
    pub share: F,
}

impl<F: FnOnce() -> Share> Storing<F> {
    /// The keys of the peer's agent. They are the same until an agent of its name was revoked.
    fn keys(&self) -> impl Iterator<Item = u64> {
        let other = (self.owner != self.sender.agent).then_some(self.owner);
        [Some(self.sender.agent), other].into_iter().flatten()
    }

    /// Operators are not limited. Hosts are: what they store on their own account was not asked for.
    fn admits(self, amounts: &[(u64, u64)]) -> bool {
        let admits = |share: Share| amounts.iter().all(|(own, free)| share.admits(*own, *free));
        self.rights.operator || self.rights.unrestricted || admits(Share::LEAST) || admits((self.share)())
    }
}

impl Totals {
    pub fn add(&mut self, charge: Charge) {
        self.all.add(charge.size);
        *self.sent.entry(charge.sender.agent).or_default() += 1;
        self.stored.entry(charge.agent()).or_default().add(charge.size);
    }

    pub fn remove(&mut self, charge: Charge) {
        self.all.remove(charge.size);
        count_down(&mut self.sent, charge.sender.agent);
        if let Some(stored) = self.stored.get_mut(&charge.agent()) {
            stored.remove(charge.size);
            if stored.messages == 0 {
                self.stored.remove(&charge.agent());
            }
        }
    }

    /// A mailbox was created on account of that agent.
    pub fn add_mailbox(&mut self, agent: u64) {
        *self.mailboxes.entry(agent).or_default() += 1;
    }

    pub fn remove_mailbox(&mut self, agent: u64) {
        count_down(&mut self.mailboxes, agent);
    }

    /// Whether a message of that agent is pending.
    pub fn has_messages_of(&self, agent: u64) -> bool {
        self.sent.contains_key(&agent)
    }

    /// Whether a further message fits.
    pub fn check(
        &self,
        options: &EngineOptions,
        charge: Charge,
        storing: Storing<impl FnOnce() -> Share>,
    ) -> Result<(), Refusal> {
        let Stored { messages, bytes } = self.all;
        let rights = storing.rights;
        let whole =
            Stored { messages: rights.usable(options.total_messages), bytes: rights.usable(options.total_bytes) };
        if messages >= whole.messages || bytes + charge.size > whole.bytes {
            return Err(Refusal::BrokerFull { messages, bytes });
        }
        if charge.payer == Payer::Recipient {
            return Ok(());
        }
        let mut own = Stored::default();
        for stored in storing.keys().filter_map(|agent| self.stored.get(&agent)) {
            own = Stored { messages: own.messages + stored.messages, bytes: own.bytes + stored.bytes };
        }
        let bytes_left = whole.bytes.min(rights.usable(self.capacity)).saturating_sub(bytes);
        let free = Stored { messages: whole.messages - messages, bytes: bytes_left };
        if storing.admits(&[(own.messages, free.messages), (own.bytes, free.bytes)]) {
            return Ok(());
        }
        Err(Refusal::ShareFull { messages: own.messages, bytes: own.bytes })
    }

    /// Whether a further mailbox fits; `count` is how many there are.
    pub fn check_mailbox(
        &self,
        options: &EngineOptions,
        count: usize,
        payer: Payer,
        storing: Storing<impl FnOnce() -> Share>,
    ) -> Result<(), Refusal> {
        let (count, whole) = (count as u64, storing.rights.usable(options.mailboxes as u64));
        if count >= whole {
            return Err(Refusal::TooManyMailboxes { limit: whole });
        }
        let own = storing.keys().filter_map(|agent| self.mailboxes.get(&agent)).sum();
        if payer == Payer::Recipient || storing.admits(&[(own, whole - count)]) {
            return Ok(());
        }
        Err(Refusal::MailboxShareFull { mailboxes: own })
    }
}

fn count_down(counts: &mut HashMap<u64, u64>, agent: u64) {
    if let Some(count) = counts.get_mut(&agent) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&agent);
        }
    }
}
