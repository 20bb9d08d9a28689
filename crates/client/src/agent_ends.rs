//! Agents whose credentials have ended, as the broker tells a host. Their messages that the host has not taken yet are dropped.

use crate::session::Session;
use bytestring::ByteString;
use std::collections::{BTreeMap, HashMap, VecDeque};
use toolbus_protocol::{AgentEnd, InboxMessage, principal_of};

/// The generations of names, and the ends that the host has not collected yet.
#[derive(Default)]
pub struct AgentEnds {
    generations: HashMap<ByteString, u64>,
    /// At most one for each name.
    uncollected: BTreeMap<ByteString, AgentEnd>,
}

impl AgentEnds {
    pub fn report(&mut self, end: AgentEnd) {
        self.generations.insert(end.name.clone(), end.generation);
        let uncollected = self.uncollected.entry(end.name.clone()).or_insert_with(|| end.clone());
        let was_expired = uncollected.expired && uncollected.generation == end.generation;
        *uncollected = AgentEnd { expired: end.expired || was_expired, ..end };
    }

    pub fn collect(&mut self) -> Option<AgentEnd> {
        self.uncollected.pop_first().map(|(_, end)| end)
    }

    pub fn has_uncollected(&self) -> bool {
        !self.uncollected.is_empty()
    }

    /// The generation that messages arriving now from that mailbox belong to.
    pub fn generation(&self, mailbox: &str) -> u64 {
        if self.generations.is_empty() { 0 } else { self.generations.get(principal_of(mailbox)).copied().unwrap_or(0) }
    }
}

impl Session {
    pub fn end_agent(&mut self, end: AgentEnd) {
        let has_ended = |session: &Self, message: &InboxMessage| {
            principal_of(&message.from.session_id) == &*end.name
                && (end.expired || session.generation_of(&message.id) < end.generation)
        };
        let inbox = std::mem::take(&mut self.inbox);
        let (ended, kept): (VecDeque<_>, VecDeque<_>) = inbox.into_iter().partition(|message| has_ended(self, message));
        self.inbox = kept;
        // The broker has removed them, and has room in its window for others.
        ended.iter().for_each(|message| self.forget_received(&message.id));
        self.agent_ends.report(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_one_agent_are_merged_and_none_is_lost() {
        let end = |name: &str, generation, expired| AgentEnd { name: name.into(), generation, expired };
        let mut ends = AgentEnds::default();
        assert_eq!(ends.generation("ana#x"), 0);
        for (generation, expired) in [(1, false), (1, true), (1, false)] {
            ends.report(end("ana", generation, expired));
        }
        ends.report(end("bo", 3, true));
        ends.report(end("bo", 4, false));
        assert_eq!(ends.collect(), Some(end("ana", 1, true)));
        assert_eq!(ends.collect(), Some(end("bo", 4, false)));
        assert_eq!(ends.collect(), None);
        assert_eq!((ends.generation("ana#x"), ends.generation("bo"), ends.generation("an")), (1, 4, 0));
    }
}
