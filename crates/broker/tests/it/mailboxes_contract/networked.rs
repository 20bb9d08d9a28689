//! Partitions of which some belong to another broker, over real connections.

use super::{Factory, InPartitions, Limits, PARTITIONS};
use crate::links::background::Background;
use crate::links::owner::{EPOCH, OWNER, Owned, Owner, OwnerSetup, front_options};
use std::sync::Arc;
use toolbus_broker::Links;
use toolbus_cluster::{Partition, Router};
use toolbus_engine::{Command, ConnId, Mailboxes, Outbox, Peer};

/// Every second partition belongs to another broker.
pub struct OverSockets(InPartitions);

impl OverSockets {
    pub fn new() -> Self {
        Self(InPartitions::new())
    }
}

impl Factory for OverSockets {
    type Mailboxes = Networked;

    fn open(&self, limits: Limits) -> Arc<Networked> {
        let owned = Arc::new(Owned::default());
        let is_remote = |number: u16| number % 2 == 1;
        for number in (0..PARTITIONS).filter(|number| is_remote(*number)) {
            owned.insert(Partition(number), self.0.partition(number, limits));
        }
        let background = Background::start();
        let owner = background.run(async { Owner::start(OwnerSetup::new(owned)).await });
        let address = owner.address.to_string();
        let reached = |number: u16| {
            if !is_remote(number) {
                return self.0.partition(number, limits);
            }
            let address = address.clone();
            let opening = async move {
                let links = Links::new(front_options(), Arc::new(Owned::default()));
                links.open(OWNER, &address, Partition(number), EPOCH).await
            };
            background.run(opening).expect("a link").mailboxes
        };
        let router = Router::new((0..PARTITIONS).map(reached).collect()).expect("a number of partitions");
        Arc::new(Networked { router: Some(router), owner: Some(owner), background })
    }
}

/// The router of the front, and the owner.
pub struct Networked {
    router: Option<Router>,
    owner: Option<Owner>,
    background: Background,
}

impl Networked {
    fn router(&self) -> &Router {
        self.router.as_ref().expect("it is there until the end")
    }
}

impl Drop for Networked {
    /// Returns when the partitions can be opened again.
    fn drop(&mut self) {
        self.router = None;
        if let Some(owner) = self.owner.take() {
            self.background.run(owner.stop());
        }
    }
}

impl Mailboxes for Networked {
    fn attach(&self, peer: Peer, outbox: Arc<dyn Outbox>) -> ConnId {
        self.router().attach(peer, outbox)
    }

    fn submit(&self, conn: ConnId, commands: &mut Vec<Command>) {
        self.router().submit(conn, commands);
    }

    fn detach(&self, conn: ConnId) {
        self.router().detach(conn);
    }

    fn congested(&self) -> bool {
        self.router().congested()
    }
}
