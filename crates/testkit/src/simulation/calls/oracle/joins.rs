//! Which calls may share an answer: equal ones of the same agent, if the earlier callers are gone and the answer was not
//! collected when the broker was asked.

use super::{Oracle, RequestNo};
use bytestring::ByteString;
use std::collections::{BTreeMap, BTreeSet};
use toolbus_engine::{Inspect, Seq};
use toolbus_journal::CallKey;

/// The truth at the time of an inspection.
#[derive(Default)]
pub struct Truth {
    connected: BTreeMap<ByteString, bool>,
    /// Ids of replies that were collected.
    collected: BTreeSet<ByteString>,
}

impl Oracle {
    pub fn are_equal(&self, one: RequestNo, other: RequestNo) -> bool {
        let (one, other) = (&self.requests[one], &self.requests[other]);
        let same = one.agent == other.agent && one.host == other.host && one.mailbox != other.mailbox;
        same && one.work.content() == other.work.content()
    }

    /// Whether there is another call that may be joined with this one.
    pub fn has_equal(&self, key: &CallKey) -> bool {
        let Some(no) = self.by_id.get(&key.id) else { return false };
        (0..self.requests.len()).any(|other| self.are_equal(*no, other))
    }

    /// The call that was run for this one.
    pub fn root_of(&self, id: &ByteString) -> ByteString {
        let root = std::iter::successors(Some(id), |id| self.joined_to.get(*id)).last();
        root.unwrap_or(id).clone()
    }

    pub fn delivered(&mut self, mailbox: &ByteString, tag: Seq, reply_id: &ByteString) {
        self.tags.insert((mailbox.clone(), tag), reply_id.clone());
    }

    /// The broker received acknowledgements of answers.
    pub fn acked(&mut self, mailbox: &ByteString, tags: &[Seq]) {
        for tag in tags {
            if let Some(reply_id) = self.tags.get(&(mailbox.clone(), *tag)) {
                self.acked.insert((mailbox.clone(), reply_id.clone()));
            }
        }
    }

    /// A crash may lose the id of a reply that was acknowledged before it needed a record, so that the broker takes it for one
    /// that it never had. Its answer is then given to a repeated call too, which has no further effect.
    pub fn broker_crashed(&mut self) {
        self.acked.clear();
        self.broker_crashes += 1;
    }

    /// The broker answers an inspection.
    pub fn inspected(&mut self, id: &ByteString, inspect: &Inspect, is_connected: impl Fn(&ByteString) -> bool) {
        let mut truth = Truth::default();
        truth.connected.extend(inspect.peers.iter().map(|peer| (peer.clone(), is_connected(peer))));
        for message in &inspect.messages {
            if self.acked.contains(&(message.to.clone(), message.id.clone())) {
                truth.collected.insert(message.id.clone());
            }
        }
        self.inspections.insert(id.clone(), truth);
    }

    /// A host joins a call to an earlier one, after this last inspection that named its mailbox.
    pub fn joins(&mut self, key: &CallKey, to: &CallKey, inspection: Option<&ByteString>, is_asked: bool) {
        let truth = inspection.and_then(|id| self.inspections.get(id));
        let is_connected = |truth: &Truth| truth.connected.get(&to.caller).copied().unwrap_or_default();
        let reply = self.reply_ids.get(&to.id);
        let is_collected = |truth: &Truth| reply.is_some_and(|reply| truth.collected.contains(reply));
        let wrong = match truth {
            _ if !is_asked => None,
            None => Some("without asking for its caller"),
            Some(truth) if is_connected(truth) => Some("whose caller was connected"),
            Some(truth) if is_collected(truth) => Some("whose answer had been collected"),
            Some(_) => None,
        };
        if let Some(wrong) = wrong {
            self.violated(format!("{} was joined to {}, {wrong}", key.id, to.id));
        }
        self.joined_to.insert(key.id.clone(), to.id.clone());
        let (Some(joined), Some(earlier)) = (self.by_id.get(&key.id), self.by_id.get(&to.id)) else { return };
        if !self.are_equal(*joined, *earlier) {
            self.violated(format!("{} was joined to {}, which is not the same call", key.id, to.id));
        }
    }

    /// Forgets the joins of a host's calls that its journal does not have.
    pub fn joins_lost(&mut self, host: usize, is_lost: impl Fn(&CallKey, &[u8; 32]) -> bool) {
        let (by_id, requests) = (&self.by_id, &self.requests);
        self.joined_to.retain(|id, _| {
            let request = &requests[by_id[id]];
            let key = CallKey { caller: request.mailbox.clone(), id: id.clone() };
            request.host != host || !is_lost(&key, &request.work.content())
        });
    }
}
