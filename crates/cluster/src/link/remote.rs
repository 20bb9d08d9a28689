//! The front's side of a link.

use super::frames::{ToFront, ToOwner, decode, encode};
use super::{BadFrame, Transport};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use toolbus_engine::{Command, ConnId, Mailboxes, Outbox, Peer};

/// The mailboxes of a partition that another broker owns.
pub struct RemotePartition {
    transport: Arc<dyn Transport>,
    outboxes: Mutex<HashMap<u64, Arc<dyn Outbox>>>,
    next: AtomicU64,
    is_congested: AtomicBool,
}

impl RemotePartition {
    /// The partition at the other end of the transport.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport, outboxes: Mutex::default(), next: AtomicU64::new(1), is_congested: AtomicBool::new(false) }
    }

    /// A frame of the owner has arrived.
    pub fn receive(&self, frame: Bytes) -> Result<(), BadFrame> {
        match decode(frame)? {
            ToFront::Deliver { conn, mut outgoing } => {
                // The client may have left while the frame was on its way.
                let outbox = self.outboxes().get(&conn).cloned();
                if let Some(outbox) = outbox {
                    outbox.deliver(&mut outgoing);
                }
            }
            ToFront::Congested { is_congested } => self.is_congested.store(is_congested, Ordering::Relaxed),
        }
        Ok(())
    }

    fn outboxes(&self) -> MutexGuard<'_, HashMap<u64, Arc<dyn Outbox>>> {
        self.outboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, frame: &ToOwner) {
        self.transport.send(encode(frame));
    }
}

impl Mailboxes for RemotePartition {
    fn attach(&self, peer: Peer, outbox: Arc<dyn Outbox>) -> ConnId {
        let conn = self.next.fetch_add(1, Ordering::Relaxed);
        self.outboxes().insert(conn, outbox);
        self.send(&ToOwner::Attach { conn, peer });
        ConnId(conn)
    }

    fn submit(&self, conn: ConnId, commands: &mut Vec<Command>) {
        self.send(&ToOwner::Submit { conn: conn.0, commands: std::mem::take(commands) });
    }

    fn detach(&self, conn: ConnId) {
        if self.outboxes().remove(&conn.0).is_some() {
            self.send(&ToOwner::Detach { conn: conn.0 });
        }
    }

    fn congested(&self) -> bool {
        self.is_congested.load(Ordering::Relaxed) || self.transport.congested()
    }
}
