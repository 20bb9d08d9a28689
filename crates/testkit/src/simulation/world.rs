//! The broker, its disk, its clients and the links between them, and the single events that can happen to them. Which
//! of them happens next is decided elsewhere.

use super::client::{Client, Frame, Held, Link};
use super::letters::{How, LetterNo, Phase};
use super::model::Model;
use super::scenario::Scenario;
use super::storage::{PendingFetch, PendingWrite};
use super::trace::Trace;
use bytestring::ByteString;
use std::collections::BTreeMap;
use std::sync::Arc;
use toolbus_engine::{
    Command, ConnId, DEAD_LETTER_SUFFIX, Delivery, Effect, Effects, Engine, Message, Millis, Outgoing, Peer, Refusal,
};
use toolbus_store::LogStore;
use toolbus_store::sim_disk::{Rng, SimDisk};

pub struct World {
    pub scenario: Scenario,
    pub rng: Rng,
    pub now: Millis,
    pub engine: Engine,
    pub store: LogStore,
    pub disk: SimDisk,
    pub disk_is_small: bool,
    pub write: Option<PendingWrite>,
    pub fetches: Vec<PendingFetch>,
    /// Pages in a row that brought nothing but the wish to read the same again.
    pub idle_fetches: usize,
    pub clients: Vec<Client>,
    pub links: BTreeMap<ConnId, Link>,
    pub model: Model,
    pub trace: Trace,
    pub crashes: u64,
}

const NAMES: [&str; 6] = ["ana", "bo", "cy", "di", "eve", "flo"];

impl World {
    pub fn new(scenario: Scenario, mut rng: Rng, trace: Trace) -> Self {
        let clients: Vec<Client> =
            NAMES[..scenario.clients].iter().map(|name| Client::new(name, rng.chance(50), rng.chance(25))).collect();
        let disk = SimDisk::default();
        let model = Model::new(&scenario, clients.iter().map(|client| client.name.clone()).collect());
        let (engine, store) = super::storage::open(&disk, &scenario)
            .map(|(recovered, store)| (recovered.engine, store))
            .expect("an empty disk without faults can be opened");
        Self {
            now: 1_000_000,
            engine,
            store,
            disk,
            disk_is_small: false,
            write: None,
            fetches: Vec::new(),
            idle_fetches: 0,
            clients,
            links: BTreeMap::new(),
            model,
            trace,
            crashes: 0,
            scenario,
            rng,
        }
    }

    pub fn note(&mut self, what: &str, facts: &[(&str, u64)]) {
        self.trace.note(self.now, what, facts);
    }

    pub fn advance(&mut self, by: Millis) {
        self.now += by;
        self.model.latest = self.model.latest.max(self.now);
        if !self.scenario.late_ticks {
            self.tick();
        }
    }

    pub fn tick(&mut self) {
        self.model.tick(self.now);
        let mut effects = Effects::default();
        self.engine.tick(self.now, &mut effects);
        self.carry_out(effects);
    }

    pub fn connect(&mut self, client: usize) -> ConnId {
        let (name, numbered_receipts) = (self.clients[client].name.clone(), self.clients[client].numbered_receipts);
        let role = Some(ByteString::from_static("worker"));
        let conn = self.engine.connect(self.now, Peer { name, role, numbered_receipts });
        let link = Link { client, numbers: Vec::new(), to_broker: Default::default(), to_client: Default::default() };
        self.links.insert(conn, link);
        self.note("connect", &[("client", client as u64), ("conn", conn.0)]);
        conn
    }

    pub fn disconnect(&mut self, conn: ConnId) {
        let Some(link) = self.links.remove(&conn) else { return };
        self.note("disconnect", &[("conn", conn.0)]);
        let name = self.clients[link.client].name.clone();
        self.model.unsubscribed(&name, conn);
        self.clients[link.client].link_gone(conn);
        self.engine.disconnect(self.now, conn);
    }

    pub fn queue(&mut self, conn: ConnId, frame: Frame) {
        if let Some(link) = self.links.get_mut(&conn) {
            link.to_broker.push_back(frame);
        }
    }

    /// The broker reads the next frame of a link, unless the disk is so far behind that it must not.
    pub fn broker_reads(&mut self, conn: ConnId) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        let waits = matches!(link.to_broker.front(), Some(Frame::Deliver { .. } | Frame::Impostor { .. }));
        if waits && self.engine.congested() {
            return;
        }
        let client = link.client;
        match link.to_broker.pop_front() {
            None => {}
            Some(Frame::Subscribe) => self.subscribe(conn, client),
            Some(Frame::Deliver { no, ack }) => self.deliver(conn, client, no, ack),
            Some(Frame::Impostor { no, other_content }) => self.impostor(conn, no, other_content),
            Some(Frame::Ack { no }) => self.ack(conn, no, false),
            Some(Frame::AckWithReceipt { no }) => self.ack(conn, no, true),
            Some(Frame::AckTags { tags }) => self.ack_tags(conn, client, tags),
            Some(Frame::Unreadable { no, message }) => self.unreadable(conn, no, message),
            Some(Frame::Cancel { to }) => self.cancel(conn, to),
        }
    }

    fn handle(&mut self, conn: ConnId, command: Command) -> Effects {
        let mut effects = Effects::default();
        self.engine.handle(self.now, conn, command, &mut effects);
        effects
    }

    fn subscribe(&mut self, conn: ConnId, client: usize) {
        self.note("subscribe", &[("conn", conn.0)]);
        let name = self.clients[client].name.clone();
        let previous = self.model.mailbox(&name).subscriber.filter(|previous| *previous != conn);
        self.model.subscribed(&name, conn);
        let effects = self.handle(conn, Command::Subscribe);
        let told = |effect: &Effect| {
            matches!(effect, Effect::Send { conn, outgoing: Outgoing::Refused { refusal: Refusal::Displaced { .. }, .. } }
                if Some(*conn) == previous)
        };
        if previous.is_some() && !effects.0.iter().any(told) {
            self.model.violated("a subscriber was displaced and not told");
        }
        self.carry_out(effects);
    }

    fn deliver(&mut self, conn: ConnId, client: usize, no: LetterNo, ack: Option<u64>) {
        let letter = &self.model.letters[no];
        let id = letter.id.clone();
        let delivery = Delivery {
            to: letter.mailbox.clone(),
            id: id.clone(),
            correlation_id: letter.correlation_id.clone(),
            sealed: letter.sealed.clone(),
            content: letter.content,
            deadline_ms: letter.deadline_ms,
            ack,
        };
        self.note("deliver", &[("conn", conn.0), ("letter", no as u64), ("ack", ack.unwrap_or_default())]);
        self.number(conn, Some(no));
        let effects = self.handle(conn, Command::Deliver(delivery));
        match refusal_of(&effects, conn, &id) {
            Some(refusal) => self.model.refused(no, refusal),
            None => {
                self.model.taken_in(self.now, no);
                let name = self.clients[client].name.clone();
                if let Some(settled) = ack.and_then(|ack| self.model.mailbox(&name).leases.get(&ack).copied()) {
                    self.model.answered(settled, no);
                }
            }
        }
        self.carry_out(effects);
    }

    fn number(&mut self, conn: ConnId, no: Option<LetterNo>) {
        if let Some(link) = self.links.get_mut(&conn) {
            link.numbers.push(no);
        }
    }

    /// Uses an id that stands for another message. Only where the broker can't but know it.
    fn impostor(&mut self, conn: ConnId, no: LetterNo, other_content: bool) {
        if !self.model.is_certainly_known(no) {
            return;
        }
        let letter = &self.model.letters[no];
        let (id, content) = (letter.id.clone(), letter.content ^ u64::from(other_content));
        let delivery = Delivery {
            to: letter.mailbox.clone(),
            id: id.clone(),
            correlation_id: None,
            sealed: letter.sealed.clone(),
            content,
            deadline_ms: None,
            ack: None,
        };
        self.note("impostor", &[("conn", conn.0), ("letter", no as u64)]);
        self.number(conn, None);
        let effects = self.handle(conn, Command::Deliver(delivery));
        if !matches!(refusal_of(&effects, conn, &id), Some(Refusal::IdConflict { .. })) {
            self.model.violated(format!("another message took the id of {}", self.model.describe(no)));
        }
    }

    fn ack(&mut self, conn: ConnId, no: LetterNo, with_receipt: bool) {
        self.note("ack", &[("conn", conn.0), ("letter", no as u64)]);
        let id = self.model.letters[no].id.clone();
        let command = match with_receipt {
            true => Command::AckWithReceipt { id, request_id: ByteString::from(no.to_string()) },
            false => Command::Ack { id },
        };
        let effects = self.handle(conn, command);
        let unknown = effects.0.iter().any(|effect| match effect {
            Effect::Send { outgoing: Outgoing::Refused { refusal, .. }, .. } => {
                matches!(refusal, Refusal::UnknownMessage { .. })
            }
            Effect::Send { outgoing: Outgoing::AckResult { refusal, .. }, .. } => refusal.is_some(),
            _ => false,
        });
        match unknown {
            true if self.model.is_certainly_known(no) => {
                self.model.violated(format!("the broker does not know {}", self.model.describe(no)));
            }
            true => {}
            false => self.model.acked(no),
        }
        self.carry_out(effects);
    }

    fn ack_tags(&mut self, conn: ConnId, client: usize, tags: Vec<u64>) {
        self.note("ack tags", &[("conn", conn.0), ("tags", tags.len() as u64)]);
        let name = self.clients[client].name.clone();
        for tag in &tags {
            if let Some(no) = self.model.mailbox(&name).leases.get(tag).copied() {
                self.model.settle(no, How::Acked);
            }
        }
        let effects = self.handle(conn, Command::AckTags { tags });
        self.carry_out(effects);
    }

    fn unreadable(&mut self, conn: ConnId, no: LetterNo, message: Arc<Message>) {
        self.note("unreadable", &[("conn", conn.0), ("letter", no as u64)]);
        self.tick();
        if self.model.letters[no].pending() && self.model.letters[no].seq == Some(message.seq) {
            self.model.died(no, message.accepted_at);
        }
        let effects = self.handle(conn, Command::Unreadable { message });
        self.carry_out(effects);
    }

    fn cancel(&mut self, conn: ConnId, to: ByteString) {
        let subscriber = self.model.mailbox(&to).subscriber;
        let effects = self.handle(conn, Command::Cancel { to, correlation_id: ByteString::from_static("c") });
        let told: Vec<ConnId> = effects
            .0
            .iter()
            .filter_map(|effect| match effect {
                Effect::Send { conn, outgoing: Outgoing::Cancel { .. } } => Some(*conn),
                _ => None,
            })
            .collect();
        if told != Vec::from_iter(subscriber) {
            self.model.violated("a cancel must reach the live subscriber and nobody else");
        }
    }

    /// Checks what the engine decided and puts it on its way.
    pub fn carry_out(&mut self, effects: Effects) {
        for effect in effects.0 {
            match effect {
                Effect::Send { conn, outgoing } => self.send(conn, outgoing),
                Effect::Fetch { mailbox, from, max_messages, max_bytes } => {
                    self.note("fetch", &[("from", from), ("messages", max_messages as u64), ("bytes", max_bytes)]);
                    self.fetches.push(PendingFetch { mailbox, from, max_messages, max_bytes, page: None });
                }
            }
        }
    }

    fn send(&mut self, conn: ConnId, outgoing: Outgoing) {
        let now = self.now;
        let Some(link) = self.links.get(&conn) else {
            return self.model.violated(format!("{conn:?} is gone and was sent {outgoing:?}"));
        };
        match &outgoing {
            Outgoing::Message { message, attempt, .. } => {
                let no = self.model.pushed(now, conn, message, *attempt);
                let no = no.map_or(u64::MAX, |no| no as u64);
                self.note(
                    "push",
                    &[("conn", conn.0), ("letter", no), ("seq", message.seq), ("attempt", u64::from(*attempt))],
                );
            }
            Outgoing::Receipt { number, id } => {
                let no = link.numbers.get(*number as usize - 1).copied().flatten();
                match no {
                    Some(no) if self.model.letters[no].id == *id => self.model.receipted(now, no),
                    _ => self.model.violated(format!("receipt {number} names '{id}'")),
                }
                self.note("receipt", &[("conn", conn.0), ("letter", no.map_or(u64::MAX, |no| no as u64))]);
            }
            Outgoing::AckResult { request_id, refusal: None, .. } => {
                let no = request_id.parse().expect("the request id is the letter's number");
                self.model.ack_confirmed(no);
                self.note("ack result", &[("conn", conn.0), ("letter", no as u64)]);
            }
            Outgoing::Refused { refusal, id } => {
                let client = link.client;
                self.note("refused", &[("conn", conn.0)]);
                self.check_refusal(client, refusal, id.as_ref());
            }
            _ => {}
        }
        if let Some(link) = self.links.get_mut(&conn) {
            link.to_client.push_back(outgoing);
        }
    }

    /// A refusal must be about a letter of this client and true of it.
    fn check_refusal(&mut self, client: usize, refusal: &Refusal, id: Option<&ByteString>) {
        let Some(id) = id else { return };
        let own = self.clients[client].sent.iter().copied().find(|no| self.model.letters[*no].id == *id);
        let lie = match (refusal, own) {
            (Refusal::IdConflict { .. }, _) => false,
            (Refusal::Expired { mailbox, .. }, Some(no)) => {
                let letter = &self.model.letters[no];
                letter.mailbox != *mailbox || !(letter.deadline_ms == Some(0) || letter.expired_once(self.now))
            }
            (Refusal::DiskFull, Some(no)) => self.model.letters[no].pending() && self.model.has_one_life(no),
            (_, own) => own.is_none(),
        };
        if lie {
            self.model.violated(format!("'{id}' is not what was refused: {refusal}"));
        }
    }

    /// The client reads the next frame of a link.
    pub fn client_reads(&mut self, conn: ConnId) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        let index = link.client;
        let Some(outgoing) = link.to_client.pop_front() else { return };
        match outgoing {
            Outgoing::Message { message, .. } => {
                if let Some(no) = self.model.find(&message.mailbox, &message.id) {
                    self.model.letters[no].seen = true;
                    self.reply_implies_receipt(index, message.correlation_id.as_ref());
                    self.clients[index].hold(Held { no, message, conn });
                }
            }
            Outgoing::Receipt { number, .. } => {
                if let Some(no) = self.links[&conn].numbers[number as usize - 1] {
                    self.model.letters[no].phase = Phase::Receipted;
                    self.clients[index].settling.remove(&no);
                }
            }
            Outgoing::Refused { refusal, id: Some(id) } => self.client_is_refused(index, &refusal, &id),
            _ => {}
        }
    }

    fn reply_implies_receipt(&mut self, client: usize, correlation_id: Option<&ByteString>) {
        if !self.clients[client].numbered_receipts {
            return;
        }
        let Some(id) = correlation_id else { return };
        let own = self.clients[client].sent.iter().copied().find(|no| self.model.letters[*no].id == *id);
        if let Some(no) = own.filter(|no| self.model.letters[*no].phase == Phase::Outstanding) {
            self.model.letters[no].phase = Phase::Receipted;
            // It need not be this sending of it that was answered, so what this one settles is acknowledged again.
            self.take_back(client, no);
        }
    }

    /// The request that a reply was to settle is in its reader's hands again.
    fn take_back(&mut self, client: usize, reply: LetterNo) {
        if let Some(held) = self.clients[client].settling.remove(&reply)
            && self.links.contains_key(&held.conn)
        {
            self.clients[client].hold(held);
        }
    }

    fn client_is_refused(&mut self, client: usize, refusal: &Refusal, id: &ByteString) {
        let own = self.clients[client].sent.iter().copied().find(|no| self.model.letters[*no].id == *id);
        let Some(no) = own.filter(|no| self.model.letters[*no].phase == Phase::Outstanding) else { return };
        self.model.letters[no].phase = match refusal {
            Refusal::IdConflict { .. } => return,
            Refusal::Expired { .. } => Phase::GivenUp,
            _ => Phase::Refused,
        };
        self.take_back(client, no);
    }

    /// Somebody who reads the dead letters of a mailbox.
    pub fn add_reader_of_dead_letters(&mut self, mailbox: &str) -> usize {
        let name = format!("{mailbox}{DEAD_LETTER_SUFFIX}");
        match self.clients.iter().position(|client| client.name == name) {
            Some(client) => client,
            None => {
                self.clients.push(Client::new(&name, false, false));
                self.clients.len() - 1
            }
        }
    }
}

fn refusal_of<'a>(effects: &'a Effects, to: ConnId, about: &str) -> Option<&'a Refusal> {
    effects.0.iter().find_map(|effect| match effect {
        Effect::Send { conn, outgoing: Outgoing::Refused { refusal, id: Some(id) } } if *conn == to && id == about => {
            Some(refusal)
        }
        _ => None,
    })
}
