//! The status of the broker: its connections and mailboxes.

use crate::engine::Conn;
use crate::{Engine, Millis, Sender};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// Maximum number of connections, and of mailboxes, in one answer.
const MAX_ROWS: usize = 1000;

/// Connections and mailboxes of the broker.
#[derive(Debug, Clone, Default)]
pub struct StatusView {
    /// Connections, oldest first, up to a limit.
    pub connections: Vec<ConnectionView>,
    /// Mailboxes, fullest first, up to a limit.
    pub mailboxes: Vec<MailboxView>,
    /// Number of mailboxes omitted because of the limit.
    pub more_mailboxes: u64,
    /// Number of corrupt messages found since the start.
    pub set_aside: u64,
}

/// A connection.
#[derive(Debug, Clone)]
pub struct ConnectionView {
    /// The peer.
    pub agent: Arc<Sender>,
    /// Whether the peer's mailbox is pushed to this connection.
    pub subscribed: bool,
    /// Time since the connection was established.
    pub connected_ms: u64,
}

/// A mailbox.
#[derive(Debug, Clone)]
pub struct MailboxView {
    /// Name of the mailbox.
    pub name: Arc<str>,
    /// Number of pending messages.
    pub messages: u64,
    /// Size of pending messages.
    pub bytes: u64,
    /// Number of messages that are pushed and not acknowledged.
    pub in_flight: u64,
    /// Age of the oldest message, as far as known without reading the disk.
    pub oldest_ms: Option<u64>,
}

impl Engine {
    /// Returns the current connections and mailboxes.
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

    /// Returns the sorted names of the subscribed peers in a role that the requester may see.
    pub(crate) fn connected_in_role(&self, requester: &Conn, role: &str) -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> = self
            .conns
            .values()
            .filter(|conn| conn.subscribed && conn.sender.role.as_deref() == Some(role))
            .map(|conn| Arc::clone(&conn.sender.name))
            .collect();
        names.sort();
        names.dedup();
        names.retain(|name| self.may_see(requester, name));
        names
    }
}

/// Returns the smallest rows in order. Avoids sorting all of them, because the engine is blocked meanwhile.
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
