//! The end of an agent: its credential was revoked, or its last one has expired.
//!
//! An expired agent's requests to hosts are withdrawn. A revoked agent leaves nothing behind: its mailboxes are emptied, and
//! all that it has sent is withdrawn, because the next agent of the same name must not inherit anything. The *generation*
//! of a name counts its revoked agents; it is part of what identifies the sender of a message. Hosts are notified, because
//! they hold calls of the agent.

use crate::engine::{Conn, DeadlineEntry};
use crate::ledger::PendingId;
use crate::settle::DiscardReason;
use crate::{ConnId, Effects, Engine, Fingerprint, Millis, Outgoing, Seq};
use bytestring::ByteString;
use hashbrown::{HashMap, HashSet};
use std::collections::BTreeSet;
use std::sync::Arc;
use toolbus_base::principal_of;

/// Agents in one frame.
const MAX_AGENTS_PER_FRAME: usize = 1000;

/// What hosts have to know about an agent of which a credential has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentEnd {
    /// Name of the agent.
    pub name: ByteString,
    /// The current generation of the name. Earlier ones have ended.
    pub generation: u64,
    /// Whether the current generation has no valid credential.
    pub expired: bool,
}

/// The messages that the end of an agent removed.
#[derive(Debug, Default)]
pub struct EndedMessages {
    /// Messages that the agent had sent: the mailbox, and the id if it is in memory.
    pub sent: Vec<(Arc<str>, Option<ByteString>)>,
    /// Number of messages in the mailboxes of the agent.
    pub received: u64,
}

/// A pending message of an agent.
struct AgentMessage {
    index: usize,
    seq: Seq,
    fingerprint: Fingerprint,
    /// Whether it is in a mailbox of the agent.
    is_received: bool,
}

impl Engine {
    /// Ends the current generation of an agent: disconnects it, and removes what it has sent and received. Returns the end
    /// of the removed messages, to be passed to [`Engine::remove_earlier`] after a restart.
    pub fn end_generation(&mut self, now: Millis, name: &str, effects: &mut Effects) -> (Seq, EndedMessages) {
        self.disconnect_agent(now, name, effects);
        let before = self.unsettled.end();
        let removed = self.remove_earlier(now, &[(name, before)], effects);
        let generation = self.generation(name) + 1;
        self.set_ended(AgentEnd { name: name.into(), generation, expired: false }, effects);
        (before, removed)
    }

    /// The last credential of an agent has expired: disconnects it, and withdraws its requests to hosts.
    pub fn expire_agent(&mut self, now: Millis, name: &str, effects: &mut Effects) -> EndedMessages {
        self.disconnect_agent(now, name, effects);
        let is_of_host = |mailbox: &str| principal_of(mailbox) != name && self.is_host_mailbox(mailbox);
        let requests = self.messages_of(&[(name, self.unsettled.end())], is_of_host);
        let withdrawn = self.remove_all(now, requests, effects);
        self.set_ended(AgentEnd { name: name.into(), generation: self.generation(name), expired: true }, effects);
        withdrawn
    }

    /// An expired agent has a valid credential again.
    pub fn renew_agent(&mut self, name: &str) {
        if let Some(end) = self.ended.get_mut(name) {
            end.expired = false;
            if end.generation == 0 {
                self.ended.remove(name);
            }
        }
    }

    /// Restores the generation of a name. Call it before the messages are restored.
    pub fn restore_generation(&mut self, name: &str, generation: u64) {
        self.ended.insert(name.into(), AgentEnd { name: name.into(), generation, expired: false });
    }

    /// Removes what earlier generations of agents have sent and received, each below a sequence number. Idempotent.
    pub fn remove_earlier(&mut self, now: Millis, agents: &[(&str, Seq)], effects: &mut Effects) -> EndedMessages {
        let all = self.messages_of(agents, |_| true);
        self.remove_all(now, all, effects)
    }

    /// Notifies a host of all agents that have ended, before its messages are pushed.
    pub(crate) fn report_ended_agents(&self, conn: ConnId, effects: &mut Effects) {
        if !self.conns.get(&conn).is_some_and(|peer| peer.host && peer.numbered_receipts) {
            return;
        }
        let all: Vec<&AgentEnd> = self.ended.values().collect();
        for some in all.chunks(MAX_AGENTS_PER_FRAME) {
            effects.send(conn, Outgoing::AgentsEnded { agents: some.iter().map(|end| (*end).clone()).collect() });
        }
    }

    /// Number of agents of that name that were revoked.
    pub(crate) fn generation(&self, name: &str) -> u64 {
        if self.ended.is_empty() { 0 } else { self.ended.get(name).map_or(0, |end| end.generation) }
    }

    fn set_ended(&mut self, end: AgentEnd, effects: &mut Effects) {
        for conn in self.conns_where(|peer| peer.host && peer.subscribed && peer.numbered_receipts) {
            effects.send(conn, Outgoing::AgentsEnded { agents: vec![end.clone()] });
        }
        self.ended.insert(end.name.clone(), end);
    }

    /// Ignores further commands of the agent: its connections may not have noticed yet that its credential has ended.
    fn disconnect_agent(&mut self, now: Millis, name: &str, effects: &mut Effects) {
        let own = self.conns_where(|peer| !peer.rights.unrestricted && principal_of(&peer.sender.name) == name);
        own.into_iter().for_each(|conn| self.disconnect(now, conn, effects));
    }

    /// In the order of their arrival, because the order of effects must not depend on the hash map.
    fn conns_where(&self, is_wanted: impl Fn(&Conn) -> bool) -> Vec<ConnId> {
        let wanted = self.conns.iter().filter(|(_, peer)| is_wanted(peer));
        let mut wanted: Vec<ConnId> = wanted.map(|(conn, _)| *conn).collect();
        wanted.sort_unstable_by_key(|conn| conn.0);
        wanted
    }

    /// The pending messages that the agents have sent or received, each below a sequence number, in mailboxes that the
    /// predicate accepts. Scans all pending messages once, if there are any of these agents.
    fn messages_of(&self, agents: &[(&str, Seq)], is_included: impl Fn(&str) -> bool) -> Vec<AgentMessage> {
        let senders: HashMap<u64, Seq> =
            agents.iter().map(|(name, before)| (self.sender_hash(name), *before)).collect();
        let own = self.own_mailboxes(agents);
        let received =
            own.iter().flat_map(|(index, before)| self.boxes[*index].pending_seqs().filter(|seq| seq < before));
        let received: HashSet<Seq> = received.collect();
        if received.is_empty() && !senders.keys().any(|agent| self.totals.has_messages_of(*agent)) {
            return Vec::new();
        }
        let is_sent = |id: &PendingId| senders.get(&id.sender.agent).is_some_and(|before| id.seq < *before);
        let found: HashMap<Seq, Fingerprint> = self
            .ledger
            .pending_ids()
            .filter(|(_, id)| is_sent(id) || received.contains(&id.seq))
            .map(|(fingerprint, id)| (id.seq, *fingerprint))
            .collect();
        let mut messages = Vec::new();
        for (index, mailbox) in self.boxes.iter().filter(|(_, mailbox)| is_included(&mailbox.name)) {
            let is_received = own.contains_key(&index);
            let message = |seq| Some(AgentMessage { index, seq, fingerprint: *found.get(&seq)?, is_received });
            messages.extend(mailbox.pending_seqs().filter_map(message));
        }
        messages.sort_unstable_by_key(|message| message.seq);
        messages
    }

    /// The mailboxes of the agents, and those of their dead letters, whose names may be shortened.
    fn own_mailboxes(&self, agents: &[(&str, Seq)]) -> HashMap<usize, Seq> {
        let agents: HashMap<&str, Seq> = agents.iter().copied().collect();
        let own = self.names.keys().filter_map(|name| Some((&**name, *agents.get(principal_of(name))?)));
        let own: HashMap<&str, Seq> = own.chain(agents.iter().map(|(name, before)| (*name, *before))).collect();
        let index = |name: &str| self.names.get(name).copied();
        let with_dead = |(name, before): (&str, Seq)| {
            [index(name), index(&self.dead_letter_name(name))].into_iter().flatten().map(move |index| (index, before))
        };
        own.into_iter().flat_map(with_dead).collect()
    }

    fn remove_all(&mut self, now: Millis, messages: Vec<AgentMessage>, effects: &mut Effects) -> EndedMessages {
        let mut removed = EndedMessages::default();
        let mut changed = BTreeSet::new();
        for AgentMessage { index, seq, fingerprint, is_received } in messages {
            let mailbox = Arc::clone(&self.boxes[index].name);
            let metadata = self.metadata(&self.boxes[index], seq);
            if is_received {
                removed.received += 1;
            } else {
                let id = metadata.as_ref().map(|(id, ..)| id.clone());
                removed.sent.push((Arc::clone(&mailbox), id));
            }
            match metadata {
                Some((id, from, accepted_at, _)) => {
                    let entry = DeadlineEntry { mailbox, fingerprint, id, from, accepted_at };
                    self.discard(now, seq, entry, DiscardReason::Cancelled, effects);
                }
                // Durable and without a deadline: its sender has the receipt.
                None => {
                    let waiters = self.settle(now, index, seq, fingerprint, None);
                    waiters.into_iter().for_each(|waiter| self.receipt(waiter, effects));
                }
            }
            changed.insert(index);
        }
        self.sweep_deadlines();
        for index in changed {
            self.pump(now, index, effects);
            self.drop_if_idle(index);
        }
        self.notify_followers(effects);
        removed
    }
}
