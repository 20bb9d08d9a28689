//! What the engine shows of itself.

use crate::{Engine, Millis, Sender};
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
        let mut connections: Vec<_> = self.conns.iter().collect();
        connections.sort_by_key(|(id, _)| **id);
        let connections = connections.into_iter().take(MAX_ROWS).map(|(_, conn)| ConnectionView {
            agent: Arc::clone(&conn.sender),
            subscribed: conn.subscribed,
            connected_ms: now.saturating_sub(conn.connected_at),
        });
        let mut mailboxes: Vec<_> = self.boxes.iter().map(|(_, mailbox)| mailbox).collect();
        mailboxes.sort_by(|a, b| b.pending.cmp(&a.pending).then_with(|| a.name.cmp(&b.name)));
        let rows = mailboxes.iter().take(MAX_ROWS).map(|mailbox| MailboxView {
            name: Arc::clone(&mailbox.name),
            messages: mailbox.pending,
            bytes: mailbox.pending_bytes,
            in_flight: mailbox.leases.len() as u64,
            oldest_ms: mailbox.oldest().map(|at| now.saturating_sub(at)),
        });
        StatusView {
            connections: connections.collect(),
            mailboxes: rows.collect(),
            more_mailboxes: mailboxes.len().saturating_sub(MAX_ROWS) as u64,
            set_aside: self.set_aside,
        }
    }

    /// Names of subscribed peers in a role, in a stable order.
    pub(crate) fn connected_in_role(&self, role: &str) -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> = self
            .conns
            .values()
            .filter(|conn| conn.subscribed && conn.sender.role.as_deref() == Some(role))
            .map(|conn| Arc::clone(&conn.sender.name))
            .collect();
        names.sort();
        names.dedup();
        names
    }
}
