//! Links deliver frames in order; a broken link loses those in transit.

use super::World;
use std::collections::VecDeque;
use toolbus_engine::{Command, ConnId, Effects, Outgoing, Peer, Rights};
use toolbus_protocol::JournalClaim;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Worker(usize),
    Host(usize),
}

pub struct Link {
    pub owner: Owner,
    pub to_broker: VecDeque<ToBroker>,
    pub to_owner: VecDeque<Outgoing>,
}

pub enum ToBroker {
    /// A host names its journal, which the engine does not know.
    Claim(JournalClaim),
    Command(Command),
}

impl World {
    fn conn_of(&self, owner: Owner) -> Option<ConnId> {
        match owner {
            Owner::Worker(worker) => self.workers[worker].conn,
            Owner::Host(host) => self.hosts[host].conn,
        }
    }

    /// Opens a link, on which the owner subscribes and retransmits what has no receipt.
    pub fn connect(&mut self, owner: Owner) {
        if self.conn_of(owner).is_some() {
            return;
        }
        let mut to_broker = VecDeque::new();
        let (name, host) = match owner {
            Owner::Worker(worker) => (self.workers[worker].mailbox.clone(), false),
            Owner::Host(host) => {
                let Some(process) = self.hosts[host].process.as_ref() else { return };
                let claim = ToBroker::Claim(process.claim.clone());
                to_broker.extend([ToBroker::Command(Command::ActAsHost), claim]);
                (self.hosts[host].name.clone(), true)
            }
        };
        to_broker.push_back(ToBroker::Command(Command::Subscribe));
        let numbered_receipts = self.rng.chance(50);
        let rights = Rights { host, ..Rights::default() };
        let peer = Peer { name, role: None, numbered_receipts, rights };
        let conn = self.broker.engine.connect(self.now, peer);
        self.note("connect", &[("conn", conn.0), ("host", u64::from(host))]);
        self.links.insert(conn, Link { owner, to_broker, to_owner: VecDeque::new() });
        let mut effects = Effects::default();
        self.broker.engine.notify_followers(&mut effects);
        self.apply_effects(effects);
        match owner {
            Owner::Worker(worker) => self.worker_is_connected(worker, conn),
            Owner::Host(host) => self.host_is_connected(host, conn),
        }
    }

    pub fn disconnect(&mut self, owner: Owner) {
        let Some(conn) = self.conn_of(owner) else { return };
        self.links.remove(&conn);
        self.note("disconnect", &[("conn", conn.0)]);
        self.owner_link_lost(owner);
        let mut effects = Effects::default();
        self.broker.engine.disconnect(self.now, conn, &mut effects);
        self.apply_effects(effects);
    }

    pub fn owner_link_lost(&mut self, owner: Owner) {
        match owner {
            Owner::Worker(worker) => self.workers[worker].link_lost(),
            Owner::Host(host) => self.host_link_lost(host),
        }
    }

    pub fn send(&mut self, conn: Option<ConnId>, command: Command) {
        if let Some(link) = conn.and_then(|conn| self.links.get_mut(&conn)) {
            link.to_broker.push_back(ToBroker::Command(command));
        }
    }

    pub fn broker_reads(&mut self, conn: ConnId) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        let owner = link.owner;
        let command = match (link.to_broker.pop_front(), owner) {
            (Some(ToBroker::Command(command)), _) => command,
            (Some(ToBroker::Claim(claim)), Owner::Host(host)) => {
                let mailbox = self.hosts[host].name.clone();
                self.claim(&mailbox, claim);
                // In one step with the subscription: otherwise another host could be pushed calls in between.
                return self.broker_reads(conn);
            }
            _ => return,
        };
        match (&command, owner) {
            (Command::AckTags { tags }, Owner::Worker(worker)) => {
                self.oracle.acked(&self.workers[worker].mailbox, tags);
            }
            (Command::Inspect { request_id, inspect }, _) => {
                let workers = &self.workers;
                let is_connected =
                    |peer: &_| workers.iter().any(|worker| worker.mailbox == *peer && worker.conn.is_some());
                self.oracle.inspected(request_id, inspect, is_connected);
            }
            _ => {}
        }
        let mut effects = Effects::default();
        self.broker.engine.handle(self.now, conn, command, &mut effects);
        self.apply_effects(effects);
    }

    pub fn owner_reads(&mut self, conn: ConnId) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        let owner = link.owner;
        let Some(outgoing) = link.to_owner.pop_front() else { return };
        match owner {
            Owner::Worker(worker) => self.worker_reads(worker, outgoing),
            Owner::Host(host) => self.host_reads(host, outgoing),
        }
    }

    pub fn random_link(&mut self) -> Option<ConnId> {
        let links: Vec<ConnId> = self.links.keys().copied().collect();
        (!links.is_empty()).then(|| *crate::simulation::scenario::pick(&mut self.rng, &links))
    }
}
