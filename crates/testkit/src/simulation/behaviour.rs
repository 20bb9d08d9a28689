//! What clients do of their own accord: they send, repeat themselves after a broken link, read, answer and acknowledge.

use super::client::{Frame, Held};
use super::scenario::pick;
use super::sent::{MessageNo, Phase, SentMessage};
use super::world::World;
use crate::planted::Planted;
use bytes::Bytes;
use bytestring::ByteString;
use toolbus_engine::ConnId;

impl World {
    /// A new message to somebody. Without a link it goes out with the next one.
    pub fn write_message(&mut self, client: usize) {
        let to = self.rng.below(self.scenario.clients as u64) as usize;
        let mut mailbox = self.clients[to].name.clone();
        let no = self.model.sent.len();
        let mut id = ByteString::from(no.to_string());
        if no % 2 == 1 {
            // One id ends like another, often in the same mailbox.
            id = ByteString::from(format!("job-{}", no - 1));
            if self.rng.chance(60) && self.model.sent[no - 1].origin.is_none() {
                mailbox = self.model.sent[no - 1].mailbox.clone();
            }
        } else if no > 0 && self.rng.chance(10) {
            id = self.borrow_id(client, &mailbox).unwrap_or(id);
        }
        let mut sent_message = SentMessage::new(client, mailbox, id, self.body(no));
        sent_message.deadline_ms = self.deadline();
        let no = self.add_message(sent_message);
        self.send_message(client, no, None);
    }

    /// The id of somebody else's message to another mailbox, where it means something else.
    fn borrow_id(&mut self, client: usize, mailbox: &ByteString) -> Option<ByteString> {
        let lent = self.rng.below(self.model.sent.len() as u64) as usize;
        let id = self.model.sent[lent].id.clone();
        let own = self.clients[client].sent.iter().any(|no| self.model.sent[*no].id == id);
        (!own && self.model.find(mailbox, &id).is_none()).then_some(id)
    }

    fn body(&mut self, no: MessageNo) -> Bytes {
        let largest = self.scenario.largest_body;
        let length = match self.rng.below(10) {
            0 => largest,
            1..=3 => self.rng.below(largest),
            _ => self.rng.below(100),
        };
        let mut state = no as u64;
        let byte = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..length).map(byte).collect::<Vec<u8>>().into()
    }

    fn deadline(&mut self) -> Option<u64> {
        match self.rng.below(20) {
            0 => Some(0),
            1 | 2 => Some(1 + self.rng.below(40)),
            3 | 4 => Some(self.rng.below(5_000)),
            _ => None,
        }
    }

    pub fn add_message(&mut self, mut sent_message: SentMessage) -> MessageNo {
        let client = sent_message.from;
        sent_message.order = self.clients[client].sent.len() as u64 + 1;
        let no = self.model.add(sent_message);
        self.clients[client].sent.push(no);
        no
    }

    pub fn send_message(&mut self, client: usize, no: MessageNo, ack: Option<u64>) {
        if let Some(conn) = self.clients[client].primary {
            self.queue(conn, Frame::Deliver { no, ack });
        }
    }

    /// From now on the client sends by this link, beginning with all that it has no receipt for.
    pub fn make_primary(&mut self, conn: ConnId) {
        let client = self.links[&conn].client;
        self.clients[client].primary = Some(conn);
        for no in self.letters_in(client, Phase::Outstanding) {
            if self.scenario.planted == Some(Planted::NewIdOnRetry) {
                let id = ByteString::from(format!("retry-{}", self.model.sent[no].id));
                self.model.name(no, self.model.sent[no].mailbox.clone(), id);
            }
            self.send_message(client, no, None);
        }
    }

    pub fn letters_in(&self, client: usize, phase: Phase) -> Vec<MessageNo> {
        let sent = self.clients[client].sent.iter().copied();
        sent.filter(|no| self.model.sent[*no].phase == phase).collect()
    }

    /// Sends something again that was sent before, though nobody asked for it.
    pub fn repeat(&mut self, client: usize) {
        let sent = &self.clients[client].sent;
        if sent.is_empty() {
            return;
        }
        let no = *pick(&mut self.rng, sent);
        match self.model.sent[no].phase {
            Phase::Outstanding | Phase::Receipted => self.send_message(client, no, None),
            Phase::Refused if self.rng.chance(80) => self.retry(client, no, None),
            Phase::Refused => self.model.sent[no].phase = Phase::GivenUp,
            Phase::GivenUp => {}
        }
    }

    pub fn retry(&mut self, client: usize, no: MessageNo, ack: Option<u64>) {
        self.model.sent[no].phase = Phase::Outstanding;
        self.send_message(client, no, ack);
    }

    /// Somebody uses an id that is taken.
    pub fn pretend(&mut self) {
        if self.model.sent.is_empty() || self.links.is_empty() {
            return;
        }
        let no = self.rng.below(self.model.sent.len() as u64) as usize;
        let conn = self.random_link();
        let own = self.links[&conn].client == self.model.sent[no].from;
        let other_content = own || self.rng.chance(50);
        self.queue(conn, Frame::Impostor { no, other_content });
    }

    pub fn random_link(&mut self) -> ConnId {
        let links: Vec<ConnId> = self.links.keys().copied().collect();
        *pick(&mut self.rng, &links)
    }

    /// A client deals with one of the messages in its hands.
    pub fn consume(&mut self, client: usize) {
        let held = self.clients[client].held.len() as u64;
        if held == 0 || (self.clients[client].slow && self.rng.chance(85)) {
            return;
        }
        let index = self.rng.below(held) as usize;
        let held = self.clients[client].held.remove(index);
        let can_answer = self.clients[client].primary == Some(held.conn) && client < self.scenario.clients;
        let reply = self.clients[client].replies.get(&held.no).copied();
        match (reply, self.rng.below(100)) {
            (Some(reply), _) => self.answer_again(client, held, reply, can_answer),
            (None, 0..30) if can_answer && self.depth(held.no) < 3 => self.answer(client, held),
            (None, 0..60) => self.acknowledge_several(client, held),
            (None, 60..75) => self.queue(held.conn, Frame::Ack { no: held.no }),
            (None, 75..90) => self.queue(held.conn, Frame::AckWithReceipt { no: held.no }),
            (None, 90..93) if self.scenario.deaths() => {
                self.queue(held.conn, Frame::Unreadable { no: held.no, message: held.message });
            }
            _ => self.clients[client].hold(held),
        }
    }

    fn depth(&self, no: MessageNo) -> usize {
        std::iter::successors(Some(no), |no| self.model.sent[*no].answers).count()
    }

    fn acknowledge_several(&mut self, client: usize, held: Held) {
        let mut tags = vec![held.message.seq];
        let more = self.rng.below(4) as usize;
        for _ in 0..more {
            let replies = &self.clients[client].replies;
            let other = self.clients[client]
                .held
                .iter()
                .position(|other| other.conn == held.conn && !replies.contains_key(&other.no));
            tags.extend(other.map(|other| self.clients[client].held.remove(other).message.seq));
        }
        self.queue(held.conn, Frame::AckTags { tags });
    }

    /// Replies, and settles the request with the reply.
    fn answer(&mut self, client: usize, held: Held) {
        let to = self.clients[self.model.sent[held.no].from].name.clone();
        let no = self.model.sent.len();
        let mut reply = SentMessage::new(client, to, ByteString::from(format!("re-{no}")), self.body(no));
        reply.correlation_id = Some(self.model.sent[held.no].id.clone());
        reply.answers = Some(held.no);
        reply.deadline_ms = self.deadline();
        let reply = self.add_message(reply);
        self.clients[client].replies.insert(held.no, reply);
        self.send_message(client, reply, Some(held.message.seq));
        self.clients[client].settling.insert(reply, held);
    }

    /// A request came again that was answered before. It is not acknowledged while its reply is not safe.
    fn answer_again(&mut self, client: usize, held: Held, reply: MessageNo, can_answer: bool) {
        match self.model.sent[reply].phase {
            Phase::Receipted | Phase::GivenUp => self.queue(held.conn, Frame::Ack { no: held.no }),
            Phase::Outstanding | Phase::Refused if can_answer => {
                self.retry(client, reply, Some(held.message.seq));
                self.clients[client].settling.insert(reply, held);
            }
            _ => self.clients[client].hold(held),
        }
    }
}
