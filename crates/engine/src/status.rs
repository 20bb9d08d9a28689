//! What the engine shows of itself.

use crate::engine::Conn;
use crate::{Engine, Millis, Sender};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// Rows of one status answer; past that only a count is given.
const MAX_ROWS: usize = 1000;

#[derive(Debug, Clone, Default)]
pub struct StatusView {
    pub connections: Vec<ConnectionView>,
    pub mailboxes: Vec<MailboxView>,
    pub more_mailboxes: u64,
    pub set_aside: u64,
}

#[derive(Debug, Clone)]
pub struct ConnectionView {
    pub agent: Arc<Sender>,
    pub subscribed: bool,
    pub connected_ms: u64,
}

#[derive(Debug, Clone)]
pub struct MailboxView {
    pub name: Arc<str>,
    pub messages: u64,
    pub bytes: u64,
    pub in_flight: u64,
    pub oldest_ms: Option<u64>,
}

impl Engine {
    pub fn status(&self, now: Millis) -> StatusView {
        let connections = first_rows(self.conns.keys().copied()).into_iter().map(|id| {
            let conn = &self.conns[&id];
            ConnectionView {
                agent: Arc::clone(&conn.sender),
                subscribed: conn.subscribed,
                connected_ms: now.saturating_sub(conn.connected_at),
            }
        });
        let fullest_first = self.boxes.iter().map(|(index, mailbox)| (Reverse(mailbox.pending), &*mailbox.name, index));
        let mailboxes = first_rows(fullest_first).into_iter().map(|(_, _, index)| {
            let mailbox = &self.boxes[index];
            MailboxView {
                name: Arc::clone(&mailbox.name),
                messages: mailbox.pending,
                bytes: mailbox.pending_bytes,
                in_flight: mailbox.leases.len() as u64,
                oldest_ms: mailbox.oldest().map(|at| now.saturating_sub(at)),
            }
        });
        StatusView {
            connections: connections.collect(),
            mailboxes: mailboxes.collect(),
            more_mailboxes: self.boxes.len().saturating_sub(MAX_ROWS) as u64,
            set_aside: self.set_aside,
        }
    }

    /// Names of subscribed peers in a role, as far as the asker may know of them, in a stable order.
    pub(crate) fn connected_in_role(&self, asking: &Conn, role: &str) -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> = self
            .conns
            .values()
            .filter(|conn| conn.subscribed && conn.sender.role.as_deref() == Some(role))
            .map(|conn| Arc::clone(&conn.sender.name))
            .collect();
        names.sort();
        names.dedup();
        names.retain(|name| self.may_see(asking, name));
        names
    }
}

/// The smallest rows, in order. All else waits while the engine shows itself, so what is not shown is not sorted.
fn first_rows<T: Ord>(rows: impl Iterator<Item = T>) -> Vec<T> {
    let mut first = BinaryHeap::with_capacity(MAX_ROWS);
    for row in rows {
        if first.len() < MAX_ROWS {
            first.push(row);
        } else if let Some(mut last) = first.peek_mut()
            && row < *last
        {
            *last = row;
        }
    }
    first.into_sorted_vec()
}
