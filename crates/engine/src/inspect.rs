//! A look at single peers, messages and mailboxes. All of it comes from memory, and everybody waits while it is taken: so
//! no more is gone through than a limit says, however much waits.

use crate::engine::Conn;
use crate::mailbox::{Mailbox, NEVER};
use crate::{ConnId, Engine, Millis, Seq};
use bytestring::ByteString;
use hashbrown::HashMap;
use std::sync::Arc;

/// How far the messages before one are counted.
const MAX_AHEAD: usize = 1000;
/// Rows of one answer.
const MAX_ROWS: usize = 1000;
/// Messages that are gone through to find the asker's own among others'.
const MAX_EXAMINED: usize = 10_000;

#[derive(Debug, Clone, Default)]
pub struct Inspect {
    pub peers: Vec<ByteString>,
    pub messages: Vec<MessageAt>,
    pub rows_of: Option<ByteString>,
}

/// A message by the mailbox that it was sent to.
#[derive(Debug, Clone)]
pub struct MessageAt {
    pub to: ByteString,
    pub id: ByteString,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InspectView {
    pub peers: Vec<bool>,
    pub messages: Vec<Option<u64>>,
    pub rows: Vec<MessageView>,
    pub more: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageView {
    pub id: ByteString,
    pub from: Arc<str>,
    pub age_ms: u64,
    pub attempt: u32,
    pub in_flight: bool,
    pub deadline_ms: Option<u64>,
}

impl Engine {
    /// What the connection may not know is decided in `rights`: about peers before this, about messages here.
    pub fn inspect(&self, now: Millis, conn: ConnId, inspect: &Inspect) -> InspectView {
        let Some(asking) = self.conns.get(&conn) else { return InspectView::default() };
        let (rows, more) = inspect.rows_of.as_ref().map(|mailbox| self.rows(now, asking, mailbox)).unwrap_or_default();
        InspectView {
            peers: inspect.peers.iter().map(|name| self.present.contains_key(&**name)).collect(),
            messages: self.messages(asking, &inspect.messages),
            rows,
            more,
        }
    }

    fn messages(&self, asking: &Conn, messages: &[MessageAt]) -> Vec<Option<u64>> {
        // One list for all letters in a mailbox.
        let mut heads: HashMap<usize, Vec<Seq>> = HashMap::new();
        let mut ahead = |MessageAt { to, id }: &MessageAt| {
            let (_, known) = self.find_of_agent(asking, to, id).filter(|(_, known)| known.pending)?;
            let index = *self.names.get(&**to)?;
            let head = heads.entry(index).or_insert_with(|| self.boxes[index].first(MAX_AHEAD));
            Some(head.partition_point(|seq| *seq < known.seq) as u64)
        };
        messages.iter().map(&mut ahead).collect()
    }

    /// Rows that the asker may see, and whether there may be others.
    fn rows(&self, now: Millis, asking: &Conn, name: &str) -> (Vec<MessageView>, bool) {
        let Some(&index) = self.names.get(name) else { return Default::default() };
        let mailbox = &self.boxes[index];
        let sees_all = self.may_see_letter(asking, name, None);
        let examined = mailbox.first(if sees_all { MAX_ROWS } else { MAX_EXAMINED });
        let mut more = mailbox.pending > examined.len() as u64;
        let mut rows = Vec::new();
        for seq in examined {
            let Some(row) = self.row(now, mailbox, seq) else {
                more |= sees_all;
                continue;
            };
            if !self.may_see_letter(asking, name, Some(&row.from)) {
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
        let (id, from, accepted_at, expires_at) = self.message(mailbox, seq)?;
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

    /// Id, sender, and when the message came and expires. `None` for what has no deadline and is on disk only: there the
    /// rest is too.
    pub(crate) fn message(
        &self,
        mailbox: &Mailbox,
        seq: Seq,
    ) -> Option<(ByteString, Arc<str>, Millis, Option<Millis>)> {
        if let Some(unsettled) = self.unsettled.get(seq) {
            let message = &unsettled.message;
            return Some((message.id.clone(), Arc::clone(&message.from.name), message.accepted_at, message.expires_at));
        }
        let on_disk = || mailbox.stored.get(&seq).copied().filter(|at| *at != NEVER);
        let leased = mailbox.leases.get(&seq).and_then(|lease| lease.expires_at);
        let expires_at = leased.or_else(on_disk)?;
        let entry = self.deadlines.get(&(expires_at, seq))?;
        Some((entry.id.clone(), Arc::clone(&entry.from), entry.accepted_at, Some(expires_at)))
    }
}

impl Mailbox {
    /// The places of the first pending messages, in order.
    fn first(&self, limit: usize) -> Vec<Seq> {
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
