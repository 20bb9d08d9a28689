//! The owner's side of a link.

use super::frames::{ToFront, ToOwner, decode, encode};
use super::{BadFrame, Transport};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use toolbus_engine::{ConnId, Mailboxes, Outbox, Outgoing};

/// Serves one partition to one front. Dropping it disconnects the clients of that front.
pub struct PartitionServer {
    mailboxes: Arc<dyn Mailboxes>,
    transport: Arc<dyn Transport>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The connections of the front, by its own numbers.
    conns: HashMap<u64, ConnId>,
    /// The front was told that the mailboxes are congested.
    is_congested: bool,
}

/// The outbox of a client at the front.
struct LinkOutbox {
    conn: u64,
    transport: Arc<dyn Transport>,
}

impl Outbox for LinkOutbox {
    fn deliver(&self, outgoing: &mut Vec<Outgoing>) {
        let outgoing = std::mem::take(outgoing);
        self.transport.send(encode(&ToFront::Deliver { conn: self.conn, outgoing }));
    }
}

impl PartitionServer {
    /// Serves the mailboxes to the other end of the transport.
    pub fn new(mailboxes: Arc<dyn Mailboxes>, transport: Arc<dyn Transport>) -> Self {
        Self { mailboxes, transport, state: Mutex::default() }
    }

    /// A frame of the front has arrived.
    pub fn receive(&self, frame: Bytes) -> Result<(), BadFrame> {
        match decode(frame)? {
            ToOwner::Attach { conn, peer } => {
                let outbox = LinkOutbox { conn, transport: Arc::clone(&self.transport) };
                let attached = self.mailboxes.attach(peer, Arc::new(outbox));
                if let Some(earlier) = self.state().conns.insert(conn, attached) {
                    // The front never uses a number twice.
                    self.mailboxes.detach(earlier);
                    return Err(BadFrame);
                }
            }
            ToOwner::Submit { conn, mut commands } => {
                let conn = self.state().conns.get(&conn).copied();
                if let Some(conn) = conn {
                    self.mailboxes.submit(conn, &mut commands);
                }
                self.report_congestion();
            }
            ToOwner::Detach { conn } => {
                let conn = self.state().conns.remove(&conn);
                if let Some(conn) = conn {
                    self.mailboxes.detach(conn);
                }
            }
        }
        Ok(())
    }

    /// Tells the front if the mailboxes have become congested, or are no longer. To be called from time to time: they recover
    /// without a frame of the front.
    pub fn report_congestion(&self) {
        let is_congested = self.mailboxes.congested();
        let mut state = self.state();
        if std::mem::replace(&mut state.is_congested, is_congested) != is_congested {
            self.transport.send(encode(&ToFront::Congested { is_congested }));
        }
    }

    /// Whether the front was told last that the mailboxes are congested.
    pub fn is_congested(&self) -> bool {
        self.state().is_congested
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PartitionServer {
    fn drop(&mut self) {
        let conns = std::mem::take(&mut self.state().conns);
        conns.into_values().for_each(|conn| self.mailboxes.detach(conn));
    }
}
