//! A partition behind a link in memory, which passes each frame on at once.

use bytes::Bytes;
use std::sync::{Arc, OnceLock, Weak};
use toolbus_cluster::{PartitionServer, RemotePartition, Transport};
use toolbus_engine::{Command, ConnId, Mailboxes, Outbox, Peer};

/// The partition as its front sees it. It owns both ends of the link.
struct Linked {
    front: Arc<RemotePartition>,
    _owner: Arc<PartitionServer>,
}

/// Mailboxes that are reached over a link.
pub fn remote(mailboxes: Arc<dyn Mailboxes>) -> Arc<dyn Mailboxes> {
    let (to_owner, to_front) = (Arc::new(ToOwner::default()), Arc::new(ToFront::default()));
    let front = Arc::new(RemotePartition::new(Arc::clone(&to_owner) as Arc<dyn Transport>));
    let owner = Arc::new(PartitionServer::new(mailboxes, Arc::clone(&to_front) as Arc<dyn Transport>));
    to_owner.0.set(Arc::downgrade(&owner)).ok();
    to_front.0.set(Arc::downgrade(&front)).ok();
    Arc::new(Linked { front, _owner: owner })
}

#[derive(Default)]
struct ToOwner(OnceLock<Weak<PartitionServer>>);

#[derive(Default)]
struct ToFront(OnceLock<Weak<RemotePartition>>);

impl Transport for ToOwner {
    fn send(&self, frame: Bytes) {
        if let Some(owner) = self.0.get().and_then(Weak::upgrade) {
            owner.receive(frame).expect("frames can be decoded");
        }
    }

    fn congested(&self) -> bool {
        false
    }
}

impl Transport for ToFront {
    fn send(&self, frame: Bytes) {
        if let Some(front) = self.0.get().and_then(Weak::upgrade) {
            front.receive(frame).expect("frames can be decoded");
        }
    }

    fn congested(&self) -> bool {
        false
    }
}

impl Mailboxes for Linked {
    fn attach(&self, peer: Peer, outbox: Arc<dyn Outbox>) -> ConnId {
        self.front.attach(peer, outbox)
    }

    fn submit(&self, conn: ConnId, commands: &mut Vec<Command>) {
        self.front.submit(conn, commands);
    }

    fn detach(&self, conn: ConnId) {
        self.front.detach(conn);
    }

    fn congested(&self) -> bool {
        self.front.congested()
    }
}
