//! Links deliver frames in order; a broken link loses those in transit. What peers send, and send again on the next link,
//! is decided by the sessions of their clients.

use super::World;
use bytestring::ByteString;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;
use toolbus_broker::simulation as wire;
use toolbus_client::simulation::SimulatedClient;
use toolbus_engine::{Command, ConnId, Effects, Outgoing, Peer, Rights, Seq};
use toolbus_protocol::{AgentRef, Body, ClientFrame, InboxKind, InboxMessage, MsgId, Timestamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Worker(usize),
    Host(usize),
}

pub struct Link {
    pub owner: Owner,
    pub to_broker: VecDeque<ToBroker>,
    pub to_owner: VecDeque<Outgoing>,
    /// The messages behind the tags of this link.
    pushed: BTreeMap<Seq, ByteString>,
    /// How often messages were acknowledged and answered on this link.
    pub acks: BTreeMap<ByteString, (u64, u64)>,
}

pub enum ToBroker {
    Frame(ClientFrame),
    /// A query that does not need the session of a client.
    Command(Command),
}

impl World {
    fn conn_of(&self, owner: Owner) -> Option<ConnId> {
        match owner {
            Owner::Worker(worker) => self.workers[worker].conn,
            Owner::Host(host) => self.hosts[host].conn,
        }
    }

    /// The client of a peer, which gets the time with every use. Absent if the peer is stopped.
    pub fn client(&mut self, owner: Owner) -> Option<&mut SimulatedClient> {
        let now = self.instant();
        let client = match owner {
            Owner::Worker(worker) => &mut self.workers[worker].client,
            Owner::Host(host) => &mut self.hosts[host].process.as_mut()?.client,
        };
        client.set_time(now);
        Some(client)
    }

    pub fn instant(&self) -> Instant {
        self.started + Duration::from_millis(self.now)
    }

    pub fn message(&self, from: &str, kind: InboxKind, id: &str, body: bytes::Bytes) -> InboxMessage {
        InboxMessage {
            id: MsgId::from(id.to_owned()),
            from: AgentRef::new(from),
            kind,
            body: Body::from_trusted(body),
            created_at: Timestamp::from_ms(self.wall()),
            correlation_id: None,
            trace: None,
        }
    }

    /// Opens a link, on which the owner's client subscribes and sends again what has no receipt.
    pub fn connect(&mut self, owner: Owner) {
        if self.conn_of(owner).is_some() || self.client(owner).is_none() {
            return;
        }
        let (name, host) = match owner {
            Owner::Worker(worker) => (self.workers[worker].mailbox.clone(), false),
            Owner::Host(host) => (self.hosts[host].name.clone(), true),
        };
        let rights = Rights { host, ..Rights::default() };
        let conn = self
            .broker
            .engine
            .connect(self.now, Peer { name, role: None, numbered_receipts: true, rights, incarnation: 0 });
        self.note("connect", &[("conn", conn.0), ("host", u64::from(host))]);
        let (to_broker, to_owner) = (VecDeque::new(), VecDeque::new());
        self.links.insert(conn, Link { owner, to_broker, to_owner, pushed: BTreeMap::new(), acks: BTreeMap::new() });
        let mut effects = Effects::default();
        self.broker.engine.notify_followers(&mut effects);
        self.apply_effects(effects);
        match owner {
            Owner::Worker(worker) => self.workers[worker].conn = Some(conn),
            Owner::Host(host) => {
                self.hosts[host].conn = Some(conn);
                self.send(Some(conn), Command::ActAsHost);
            }
        }
        self.client(owner).into_iter().for_each(SimulatedClient::connected);
        self.flush(owner, false);
        if let Owner::Host(host) = owner {
            self.ask_again(host);
        }
    }

    pub fn disconnect(&mut self, owner: Owner) {
        let Some(conn) = self.conn_of(owner) else { return };
        self.links.remove(&conn);
        self.note("disconnect", &[("conn", conn.0)]);
        let mut effects = Effects::default();
        self.broker.engine.disconnect(self.now, conn, &mut effects);
        self.apply_effects(effects);
        self.owner_link_lost(owner);
    }

    pub fn owner_link_lost(&mut self, owner: Owner) {
        self.client(owner).into_iter().for_each(SimulatedClient::disconnected);
        match owner {
            Owner::Worker(worker) => self.workers[worker].conn = None,
            Owner::Host(host) => self.host_link_lost(host),
        }
    }

    /// Sends what the client of a peer has to send, and passes on the ends of a host's replies.
    pub fn flush(&mut self, owner: Owner, acks: bool) {
        if self.conn_of(owner).is_some() {
            let frames = self.client(owner).map(|client| client.frames(acks)).unwrap_or_default();
            for frame in frames {
                self.check_sent(owner, &frame);
                let link = self.conn_of(owner).and_then(|conn| self.links.get_mut(&conn));
                link.into_iter().for_each(|link| link.to_broker.push_back(ToBroker::Frame(frame.clone())));
            }
        }
        if let Owner::Host(host) = owner {
            self.replies_settled(host);
        }
    }

    /// A client sends a request under the id that it got, and not after its deadline.
    fn check_sent(&mut self, owner: Owner, frame: &ClientFrame) {
        let (Owner::Worker(worker), ClientFrame::Deliver(deliver)) = (owner, frame) else { return };
        let id = &deliver.envelope.id;
        if id.starts_with("cancel-") {
            return;
        }
        match self.oracle.find(&self.workers[worker].mailbox, id) {
            None => self.oracle.violated(format!("a request was sent under the new id {id}")),
            Some(no) if self.oracle.requests[no].deadline.is_some_and(|at| at < self.now) => {
                self.oracle.violated(format!("{id} was sent again after its deadline"));
            }
            Some(_) => {}
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
            (Some(ToBroker::Frame(ClientFrame::Claim(claim))), Owner::Host(host)) => {
                let mailbox = self.hosts[host].name.clone();
                self.claim(&mailbox, wire::claim(claim));
                // In one step with the subscription: otherwise another host could be pushed calls in between.
                return self.broker_reads(conn);
            }
            (Some(ToBroker::Frame(frame)), _) => match wire::command(frame) {
                Some(command) => command,
                None => return self.oracle.violated("a frame that the broker does not know"),
            },
            (None, _) => return,
        };
        self.check_acks(conn, &command);
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

    /// A message is acknowledged once, or as often as it was answered.
    fn check_acks(&mut self, conn: ConnId, command: &Command) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        let (tags, id) = match command {
            Command::Deliver(delivery) => {
                if let Some(id) = &delivery.correlation_id {
                    link.acks.entry(id.clone()).or_default().1 += 1;
                    if delivery.ack.is_none() && self.oracle.unrecorded.contains(&delivery.id) {
                        let what = format!("the unrecorded answer to {id} was sent without its acknowledgement");
                        return self.oracle.violated(what);
                    }
                }
                (delivery.ack.as_slice(), None)
            }
            Command::AckTags { tags } => (tags.as_slice(), None),
            Command::Ack { id } => (&[] as &[Seq], Some(id)),
            _ => return,
        };
        for tag in tags {
            if !link.pushed.contains_key(tag) {
                return self.oracle.violated("a message was acknowledged by the tag of another connection");
            }
        }
        for id in tags.iter().filter_map(|tag| link.pushed.get(tag)).chain(id) {
            let (acks, replies) = link.acks.entry(id.clone()).or_default();
            *acks += 1;
            if *acks > (*replies).max(1) {
                return self.oracle.violated(format!("{id} was acknowledged twice"));
            }
        }
    }

    pub fn owner_reads(&mut self, conn: ConnId) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        let owner = link.owner;
        let Some(outgoing) = link.to_owner.pop_front() else { return };
        if let Outgoing::Message { message, .. } = &outgoing {
            link.pushed.insert(message.seq, message.id.clone());
        }
        match owner {
            Owner::Worker(worker) => self.worker_reads(worker, &outgoing),
            Owner::Host(host) => self.host_reads(host, outgoing),
        }
    }

    /// The client of a peer receives a frame.
    pub fn receive_frame(&mut self, owner: Owner, outgoing: &Outgoing) {
        if let Some(client) = self.client(owner) {
            client.receive(wire::frame(outgoing));
            self.flush(owner, false);
        }
    }

    pub fn random_link(&mut self) -> Option<ConnId> {
        let links: Vec<ConnId> = self.links.keys().copied().collect();
        (!links.is_empty()).then(|| *crate::simulation::scenario::pick(&mut self.rng, &links))
    }
}
