//! The engine's front: connections, commands and effects.

use crate::durability::{OpenBatch, WritingBatch};
use crate::ledger::Ledger;
use crate::mailbox::Mailbox;
use crate::rights::NoNames;
use crate::unsettled::{Unsettled, Waiter};
use crate::{
    ConnId, EngineOptions, Inspect, InspectView, Message, Millis, Names, Purpose, Refusal, Rights, Sender, Seq,
    StatusView,
};
use bytes::Bytes;
use bytestring::ByteString;
use hashbrown::HashMap;
use slab::Slab;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Who is at the other end of a connection, as established by its credential.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The name of its mailbox.
    pub name: ByteString,
    pub role: Option<ByteString>,
    /// Whether it takes numbered receipts, and a reply as the receipt of its request.
    pub numbered_receipts: bool,
    pub rights: Rights,
}

/// What a connection asks for.
#[derive(Debug, Clone)]
pub enum Command {
    Subscribe,
    Deliver(Delivery),
    Ack {
        id: ByteString,
    },
    AckTags {
        tags: Vec<Seq>,
    },
    AckWithReceipt {
        id: ByteString,
        request_id: ByteString,
    },
    Cancel {
        to: ByteString,
        correlation_id: ByteString,
    },
    ListConnected {
        role: ByteString,
    },
    Event {
        to: ByteString,
        correlation_id: ByteString,
        body: Bytes,
    },
    Status {
        request_id: ByteString,
    },
    Inspect {
        request_id: ByteString,
        inspect: Box<Inspect>,
    },
    /// The peer has announced itself as a host, and may hold more messages from now on.
    ActAsHost,
    /// The pushed message can't be shown to this peer: it goes to the dead letters.
    Unreadable {
        message: Arc<Message>,
    },
}

#[derive(Debug, Clone)]
pub struct Delivery {
    pub to: ByteString,
    pub id: ByteString,
    pub correlation_id: Option<ByteString>,
    pub purpose: Purpose,
    pub sealed: Bytes,
    /// Hash over what must be repeated when the id is.
    pub content: u64,
    pub deadline_ms: Option<u64>,
    /// The pushed message that this one settles.
    pub ack: Option<Seq>,
}

/// What a connection is sent.
#[derive(Debug, Clone)]
pub enum Outgoing {
    Message { message: Arc<Message>, attempt: u32, deadline_ms: Option<u64> },
    Receipt { number: u64, id: ByteString },
    Refused { refusal: Refusal, id: Option<ByteString> },
    AckResult { id: ByteString, request_id: ByteString, refusal: Option<Refusal> },
    Cancel { correlation_id: ByteString },
    Connected { ids: Vec<Arc<str>> },
    Event { from: Arc<str>, correlation_id: ByteString, body: Bytes },
    Status { request_id: ByteString, view: Box<StatusView> },
    Inspected { request_id: ByteString, view: Box<InspectView> },
}

/// What the shell has to do.
#[derive(Debug)]
pub enum Effect {
    Send {
        conn: ConnId,
        outgoing: Outgoing,
    },
    /// Read pending messages of a mailbox back, in order, and pass them to [`Engine::fetched`].
    Fetch {
        mailbox: Arc<str>,
        from: Seq,
        max_messages: usize,
        max_bytes: u64,
    },
}

/// Effects in the order in which they were decided.
#[derive(Debug, Default)]
pub struct Effects(pub Vec<Effect>);

impl Effects {
    pub(crate) fn send(&mut self, conn: ConnId, outgoing: Outgoing) {
        self.0.push(Effect::Send { conn, outgoing });
    }
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub sender: Arc<Sender>,
    pub rights: Rights,
    /// Known to be a host, by its credential or by what it announced.
    pub host: bool,
    pub numbered_receipts: bool,
    pub subscribed: bool,
    /// Delivers so far; each has its number, whether accepted or refused.
    pub deliveries: u64,
    pub connected_at: Millis,
}

/// A message that expires, and whom to tell.
#[derive(Debug)]
pub(crate) struct DeadlineEntry {
    pub mailbox: Arc<str>,
    pub fingerprint: crate::Fingerprint,
    pub id: ByteString,
    pub from: Arc<str>,
    pub accepted_at: Millis,
}

impl DeadlineEntry {
    pub fn of(message: &Message) -> Self {
        Self {
            mailbox: Arc::clone(&message.mailbox),
            fingerprint: message.fingerprint,
            id: message.id.clone(),
            from: Arc::clone(&message.from.name),
            accepted_at: message.accepted_at,
        }
    }
}

/// See the crate's documentation.
pub struct Engine {
    pub(crate) options: EngineOptions,
    pub(crate) known_names: Arc<dyn Names>,
    pub(crate) conns: HashMap<ConnId, Conn>,
    /// How many connections each name has.
    pub(crate) present: HashMap<Arc<str>, u32>,
    next_conn: u64,
    pub(crate) names: HashMap<Arc<str>, usize>,
    pub(crate) boxes: Slab<Mailbox>,
    pub(crate) ledger: Ledger,
    pub(crate) unsettled: Unsettled,
    pub(crate) open: OpenBatch,
    pub(crate) writing: Option<WritingBatch>,
    pub(crate) next_batch: u64,
    pub(crate) deadlines: BTreeMap<(Millis, Seq), DeadlineEntry>,
    pub(crate) total_messages: u64,
    pub(crate) total_bytes: u64,
    pub(crate) disk_low: bool,
    stopping: bool,
    pub(crate) set_aside: u64,
}

impl Engine {
    /// An empty engine. Pending state of an earlier run is put back by `restore_*` before the first connection.
    pub fn new(options: EngineOptions) -> Self {
        Self {
            options,
            known_names: Arc::new(NoNames),
            conns: HashMap::new(),
            present: HashMap::new(),
            next_conn: 1,
            names: HashMap::new(),
            boxes: Slab::new(),
            ledger: Ledger::default(),
            unsettled: Unsettled::starting_at(1),
            open: OpenBatch::default(),
            writing: None,
            next_batch: 1,
            deadlines: BTreeMap::new(),
            total_messages: 0,
            total_bytes: 0,
            disk_low: false,
            stopping: false,
            set_aside: 0,
        }
    }

    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    pub fn connect(&mut self, now: Millis, peer: Peer) -> ConnId {
        let conn = ConnId(self.next_conn);
        self.next_conn += 1;
        let sender = Arc::new(Sender { name: Arc::from(&*peer.name), role: peer.role.as_deref().map(Arc::from) });
        let Peer { numbered_receipts, rights, .. } = peer;
        let state = Conn {
            sender,
            rights,
            host: rights.is_known_host(),
            numbered_receipts,
            subscribed: false,
            deliveries: 0,
            connected_at: now,
        };
        *self.present.entry(Arc::clone(&state.sender.name)).or_default() += 1;
        self.conns.insert(conn, state);
        conn
    }

    pub fn disconnect(&mut self, now: Millis, conn: ConnId, effects: &mut Effects) {
        let Some(gone) = self.conns.remove(&conn) else { return };
        self.note_absence(&gone.sender.name);
        if gone.subscribed
            && let Some(&index) = self.names.get(&gone.sender.name)
        {
            self.end_subscription(now, index, effects);
            self.drop_if_idle(index);
        }
    }

    fn note_absence(&mut self, name: &Arc<str>) {
        if let Some(connections) = self.present.get_mut(name) {
            *connections -= 1;
            if *connections == 0 {
                self.present.remove(name);
            }
        }
    }

    pub fn handle(&mut self, now: Millis, conn: ConnId, command: Command, effects: &mut Effects) {
        let Some(peer) = self.conns.get(&conn) else { return };
        let name = Arc::clone(&peer.sender.name);
        if let Err(refusal) = self.may(peer, &command) {
            let id = match command {
                Command::Status { request_id } | Command::Inspect { request_id, .. } => Some(request_id),
                _ => None,
            };
            refusal.into_iter().for_each(|refusal| effects.send(conn, Outgoing::Refused { refusal, id: id.clone() }));
            return;
        }
        match command {
            Command::Deliver(delivery) => self.deliver(now, conn, delivery, effects),
            Command::AckTags { tags } => self.ack_tags(now, &name, &tags, effects),
            Command::Subscribe => self.subscribe(now, conn, effects),
            Command::Ack { id } => self.ack(now, conn, &name, id, effects),
            Command::AckWithReceipt { id, request_id } => {
                self.ack_with_receipt(now, conn, &name, id, request_id, effects);
            }
            Command::Cancel { to, correlation_id } => {
                let canceller = self.canceller(peer, &to, &correlation_id);
                self.cancel(now, &canceller, &to, correlation_id, effects);
            }
            Command::Event { to, correlation_id, body } => {
                self.to_subscriber(&to, Outgoing::Event { from: name, correlation_id, body }, effects);
            }
            Command::ListConnected { role } => {
                effects.send(conn, Outgoing::Connected { ids: self.connected_in_role(peer, &role) });
            }
            Command::Status { request_id } => {
                let view = Box::new(self.status(now));
                effects.send(conn, Outgoing::Status { request_id, view });
            }
            Command::Inspect { request_id, inspect } => {
                let view = Box::new(self.inspect(now, conn, &inspect));
                effects.send(conn, Outgoing::Inspected { request_id, view });
            }
            Command::ActAsHost => self.act_as_host(now, conn, effects),
            Command::Unreadable { message } => self.unreadable(now, conn, &message, effects),
        }
    }

    /// Lets deadlines pass. Call it at [`Engine::next_wakeup`] or later.
    pub fn tick(&mut self, now: Millis, effects: &mut Effects) {
        while let Some(entry) = self.deadlines.first_entry() {
            let (at, seq) = *entry.key();
            if at > now {
                break;
            }
            let entry = entry.remove();
            self.expire(now, seq, entry, effects);
        }
    }

    /// When the engine next has something to do by itself.
    pub fn next_wakeup(&self) -> Option<Millis> {
        let batch = if self.writing.is_none() { self.batch_due() } else { None };
        let deadline = self.deadlines.first_key_value().map(|((at, _), _)| *at);
        [batch, deadline].into_iter().flatten().min()
    }

    /// No new messages from now on; what is there is still served and acknowledged.
    pub fn stop_accepting(&mut self) {
        self.stopping = true;
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stopping
    }

    /// The shell found that the disk is nearly full, or no longer is.
    pub fn set_disk_low(&mut self, low: bool) {
        self.disk_low = low;
    }

    pub fn disk_low(&self) -> bool {
        self.disk_low
    }

    /// Whether so much waits for the disk that connections should stop reading.
    pub fn congested(&self) -> bool {
        self.unsettled.bytes > self.options.unsettled_bytes
    }

    /// Bytes of messages that were accepted and are neither durable nor settled.
    pub fn unsettled_bytes(&self) -> u64 {
        self.unsettled.bytes
    }

    pub(crate) fn receipt(&self, waiter: Waiter, effects: &mut Effects) {
        if self.conns.contains_key(&waiter.conn) {
            effects.send(waiter.conn, Outgoing::Receipt { number: waiter.number, id: waiter.id });
        }
    }

    pub(crate) fn to_subscriber(&self, mailbox: &str, outgoing: Outgoing, effects: &mut Effects) {
        if let Some(conn) = self.names.get(mailbox).and_then(|&index| self.boxes[index].subscriber) {
            effects.send(conn, outgoing);
        }
    }

    /// The mailbox of that name, made if there is none.
    pub(crate) fn mailbox(&mut self, name: &str) -> usize {
        if let Some(&index) = self.names.get(name) {
            return index;
        }
        let name: Arc<str> = Arc::from(name);
        let index = self.boxes.insert(Mailbox::new(Arc::clone(&name), self.options.window(false)));
        self.names.insert(name, index);
        index
    }

    /// An empty mailbox without a subscriber needs no memory.
    pub(crate) fn drop_if_idle(&mut self, index: usize) {
        if self.boxes[index].is_idle() {
            let gone = self.boxes.remove(index);
            self.names.remove(&gone.name);
        }
    }
}
