//! Queue inspection: presence of peers, positions of messages, contents of one mailbox. It reads only memory, and the
//! work per query is bounded by limits because the engine is blocked meanwhile.

use crate::engine::Conn;
use crate::mailbox::{Mailbox, NO_DEADLINE};
use crate::{ConnId, Engine, Millis, Seq};
use bytestring::ByteString;
use hashbrown::HashMap;
use std::sync::Arc;

/// Limit up to which the messages before another one are counted.
const MAX_POSITION: usize = 1000;
/// Maximum number of rows in one answer.
const MAX_ROWS: usize = 1000;
/// Maximum number of messages that are searched for those which the requester may see.
const MAX_SEARCHED: usize = 10_000;

/// A query about peers, messages and one mailbox.
#[derive(Debug, Clone, Default)]
pub struct Inspect {
    /// Peers to check for connections.
    pub peers: Vec<ByteString>,
    /// Messages to locate.
    pub messages: Vec<MessageAt>,
    /// Mailbox to list.
    pub rows_of: Option<ByteString>,
}

/// A message, identified by its recipient and its id.
#[derive(Debug, Clone)]
pub struct MessageAt {
    /// Mailbox of the recipient.
    pub to: ByteString,
    /// Id of the message.
    pub id: ByteString,
}

/// Answer to [`Inspect`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InspectView {
    /// Whether each peer of the query is connected.
    pub peers: Vec<bool>,
    /// Whether certainly no agent has the name of each peer.
    pub unknown: Vec<bool>,
    /// Number of pending messages before each message of the query, up to 1000; `None` if it is not pending.
    pub messages: Vec<Option<u64>>,
    /// Whether each message of the query was accepted and is settled.
    pub settled: Vec<bool>,
    /// All messages that were settled within this time are remembered. One that is neither pending nor settled was not
    /// accepted, or was settled earlier.
    pub remembered_ms: u64,
    /// Pending messages of the listed mailbox, in delivery order.
    pub rows: Vec<MessageView>,
    /// Whether the mailbox may hold messages that `rows` does not show.
    pub more: bool,
}

/// A pending message, without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageView {
    /// Id of the message.
    pub id: ByteString,
    /// Name of the sender.
    pub from: Arc<str>,
    /// Time since acceptance; of a message that its sender repeated, since it was first sent at the latest.
    pub age_ms: u64,
    /// Number of push attempts so far.
    pub attempt: u32,
    /// Whether the message is pushed to the current subscriber and not acknowledged.
    pub in_flight: bool,
    /// Remaining time to live.
    pub deadline_ms: Option<u64>,
}

impl Engine {
    /// Answers a query. The right to inspect `peers` must have been checked by `authorise`; messages that the
    /// connection may not see are left out here.
    pub fn inspect(&self, now: Millis, conn: ConnId, inspect: &Inspect) -> InspectView {
        let Some(requester) = self.conns.get(&conn) else { return InspectView::default() };
        let (rows, more) =
            inspect.rows_of.as_ref().map(|mailbox| self.rows(now, requester, mailbox)).unwrap_or_default();
        let is_connected = |name: &ByteString| self.connection_counts.contains_key(&**name);
        let is_unknown = |name: &ByteString| !is_connected(name) && self.known_names.is_unknown(name);
        InspectView {
            peers: inspect.peers.iter().map(is_connected).collect(),
            unknown: inspect.peers.iter().map(is_unknown).collect(),
            messages: self.positions(requester, &inspect.messages),
            settled: inspect.messages.iter().map(|MessageAt { to, id }| self.is_settled(requester, to, id)).collect(),
            remembered_ms: now.saturating_sub(self.ledger.complete_after()),
            rows,
            more,
        }
    }

    fn positions(&self, requester: &Conn, messages: &[MessageAt]) -> Vec<Option<u64>> {
        // One list per mailbox, shared by all queried messages in it.
        let mut heads: HashMap<usize, Vec<Seq>> = HashMap::new();
        let mut position = |MessageAt { to, id }: &MessageAt| {
            let (_, known) = self.find_of_agent(requester, to, id).filter(|(_, known)| known.pending)?;
            let index = *self.names.get(&**to)?;
            let head = heads.entry(index).or_insert_with(|| self.boxes[index].first_pending(MAX_POSITION));
            Some(head.partition_point(|seq| *seq < known.seq) as u64)
        };
        messages.iter().map(&mut position).collect()
    }

    /// Returns the rows that the requester may see, and whether there may be others.
    fn rows(&self, now: Millis, requester: &Conn, name: &str) -> (Vec<MessageView>, bool) {
        let Some(&index) = self.names.get(name) else { return Default::default() };
        let mailbox = &self.boxes[index];
        let sees_all = self.may_see_message(requester, name, None);
        let searched = mailbox.first_pending(if sees_all { MAX_ROWS } else { MAX_SEARCHED });
        let mut more = mailbox.pending > searched.len() as u64;
        let mut rows = Vec::new();
        for seq in searched {
            let Some(row) = self.row(now, mailbox, seq) else {
                more |= sees_all;
                continue;
            };
            if !self.may_see_message(requester, name, Some(&row.from)) {
                continue;
            }
            if rows.len() == MAX_ROWS {
                return (rows, true);
            }
            rows.push(row);
        }
        (rows, more)
    }

    fn row(&self, now: Millis, mailbox: &Mailbox, seq: Seq) -> Option<MessageView> {
        let (id, from, accepted_at, expires_at) = self.metadata(mailbox, seq)?;
        let lease = mailbox.leases.get(&seq);
        let attempts = || mailbox.attempts.get(&seq).copied().unwrap_or_default();
        Some(MessageView {
            id,
            from,
            age_ms: now.saturating_sub(accepted_at),
            attempt: lease.map_or_else(attempts, |lease| lease.attempt),
            in_flight: lease.is_some(),
            deadline_ms: expires_at.map(|at| at.saturating_sub(now)),
        })
    }

    /// Returns id, sender, acceptance time and deadline of a message. Returns `None` for a durable message without a
    /// deadline: its metadata is only on disk.
    pub(crate) fn metadata(
        &self,
        mailbox: &Mailbox,
        seq: Seq,
    ) -> Option<(ByteString, Arc<str>, Millis, Option<Millis>)> {
        if let Some(unsettled) = self.unsettled.get(seq) {
            let message = &unsettled.message;
            return Some((message.id.clone(), Arc::clone(&message.from.name), message.accepted_at, message.expires_at));
        }
        let stored = || mailbox.stored.get(&seq).copied().filter(|at| *at != NO_DEADLINE);
        let leased = mailbox.leases.get(&seq).and_then(|lease| lease.expires_at);
        let expires_at = leased.or_else(stored)?;
        let entry = self.deadlines.get(&(expires_at, seq))?;
        Some((entry.id.clone(), Arc::clone(&entry.from), entry.accepted_at, Some(expires_at)))
    }
}

impl Mailbox {
    /// Returns the sequence numbers of the first pending messages, in order.
    fn first_pending(&self, limit: usize) -> Vec<Seq> {
        let leased = self.leases.keys().take(limit);
        let skipped = self.skipped.iter().take(limit);
        let stored = self.stored.keys().take(limit);
        let waiting = self.waiting.iter().take(limit);
        let mut first: Vec<Seq> = leased.chain(skipped).chain(stored).chain(waiting).copied().collect();
        first.sort_unstable();
        first.truncate(limit);
        first
    }
}
