//! Actions of clients: send, retransmit after a broken link, read, reply and acknowledge.

use super::client::{Frame, Unacked};
use super::messages::{MessageNo, Phase, SentMessage};
use super::scenario::pick;
use super::world::World;
use crate::planted::Planted;
use bytes::Bytes;
use bytestring::ByteString;
use toolbus_engine::ConnId;

impl World {
    /// Sends a new message to a random client. Without a link it is sent on the next one.
    pub fn send_new_message(&mut self, client: usize) {
        let to = self.rng.below(self.scenario.clients as u64) as usize;
        let mut mailbox = self.clients[to].name.clone();
        let no = self.model.messages.len();
        let mut id = ByteString::from(no.to_string());
        if no % 2 == 1 {
            // An id with the previous message's id as its suffix, often in the same mailbox.
            id = ByteString::from(format!("job-{}", no - 1));
            if self.rng.chance(60) && self.model.messages[no - 1].origin.is_none() {
                mailbox = self.model.messages[no - 1].mailbox.clone();
            }
        } else if no > 0 && self.rng.chance(10) {
            id = self.id_from_another_mailbox(client, &mailbox).unwrap_or(id);
        }
        let mut sent = SentMessage::new(client, mailbox, id, self.body(no));
        sent.deadline_ms = self.deadline();
        let no = self.add_message(sent);
        self.send_message(client, no, None);
    }

    /// The id of another client's message to another mailbox. Ids are unique only per mailbox.
    fn id_from_another_mailbox(&mut self, client: usize, mailbox: &ByteString) -> Option<ByteString> {
        let lent = self.rng.below(self.model.messages.len() as u64) as usize;
        let id = self.model.messages[lent].id.clone();
        let own = self.clients[client].sent.iter().any(|no| self.model.messages[*no].id == id);
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

    pub fn add_message(&mut self, mut sent: SentMessage) -> MessageNo {
        let client = sent.from;
        sent.order = self.clients[client].sent.len() as u64 + 1;
        let no = self.model.add(sent);
        self.clients[client].sent.push(no);
        no
    }

    pub fn send_message(&mut self, client: usize, no: MessageNo, ack: Option<u64>) {
        if let Some(conn) = self.clients[client].primary {
            self.queue(conn, Frame::Deliver { no, ack });
        }
    }

    /// Makes this the link on which the client sends, and retransmits everything without a receipt.
    pub fn make_primary(&mut self, conn: ConnId) {
        let client = self.links[&conn].client;
        self.clients[client].primary = Some(conn);
        for no in self.messages_in(client, Phase::Outstanding) {
            if self.scenario.planted == Some(Planted::NewIdOnRetry) {
                let id = ByteString::from(format!("retry-{}", self.model.messages[no].id));
                self.model.name(no, self.model.messages[no].mailbox.clone(), id);
            }
            self.send_message(client, no, None);
        }
    }

    pub fn messages_in(&self, client: usize, phase: Phase) -> Vec<MessageNo> {
        let sent = self.clients[client].sent.iter().copied();
        sent.filter(|no| self.model.messages[*no].phase == phase).collect()
    }

    /// Retransmits a random message without need.
    pub fn repeat(&mut self, client: usize) {
        let sent = &self.clients[client].sent;
        if sent.is_empty() {
            return;
        }
        let no = *pick(&mut self.rng, sent);
        match self.model.messages[no].phase {
            Phase::Outstanding | Phase::Receipted => self.send_message(client, no, None),
            Phase::Refused if self.rng.chance(80) => self.retry(client, no, None),
            Phase::Refused => self.model.messages[no].phase = Phase::GivenUp,
            Phase::GivenUp => {}
        }
    }

    pub fn retry(&mut self, client: usize, no: MessageNo, ack: Option<u64>) {
        self.model.messages[no].phase = Phase::Outstanding;
        self.send_message(client, no, ack);
    }

    /// Sends another message under a known id.
    pub fn reuse_id(&mut self) {
        if self.model.messages.is_empty() || self.links.is_empty() {
            return;
        }
        let no = self.rng.below(self.model.messages.len() as u64) as usize;
        let conn = self.random_link();
        let own = self.links[&conn].client == self.model.messages[no].from;
        let other_content = own || self.rng.chance(50);
        self.queue(conn, Frame::ReusedId { no, other_content });
    }

    pub fn random_link(&mut self) -> ConnId {
        let links: Vec<ConnId> = self.links.keys().copied().collect();
        *pick(&mut self.rng, &links)
    }

    /// A client processes one of its unacknowledged messages.
    pub fn consume(&mut self, client: usize) {
        let unacked = self.clients[client].unacked.len() as u64;
        if unacked == 0 || (self.clients[client].slow && self.rng.chance(85)) {
            return;
        }
        let index = self.rng.below(unacked) as usize;
        let unacked = self.clients[client].unacked.remove(index);
        let can_answer = self.clients[client].primary == Some(unacked.conn) && client < self.scenario.clients;
        let reply = self.clients[client].replies.get(&unacked.no).copied();
        match (reply, self.rng.below(100)) {
            (Some(reply), _) => self.answer_again(client, unacked, reply, can_answer),
            (None, 0..30) if can_answer && self.depth(unacked.no) < 3 => self.answer(client, unacked),
            (None, 0..60) => self.acknowledge_several(client, unacked),
            (None, 60..75) => self.queue(unacked.conn, Frame::Ack { no: unacked.no }),
            (None, 75..90) => self.queue(unacked.conn, Frame::AckWithReceipt { no: unacked.no }),
            (None, 90..93) if self.scenario.dead_lettering() => {
                self.queue(unacked.conn, Frame::Unreadable { no: unacked.no, message: unacked.message });
            }
            _ => self.clients[client].hold(unacked),
        }
    }

    fn depth(&self, no: MessageNo) -> usize {
        std::iter::successors(Some(no), |no| self.model.messages[*no].answers).count()
    }

    fn acknowledge_several(&mut self, client: usize, unacked: Unacked) {
        let mut tags = vec![unacked.message.seq];
        let more = self.rng.below(4) as usize;
        for _ in 0..more {
            let replies = &self.clients[client].replies;
            let other = self.clients[client]
                .unacked
                .iter()
                .position(|other| other.conn == unacked.conn && !replies.contains_key(&other.no));
            tags.extend(other.map(|other| self.clients[client].unacked.remove(other).message.seq));
        }
        self.queue(unacked.conn, Frame::AckTags { tags });
    }

    /// Replies, and settles the request with the reply.
    fn answer(&mut self, client: usize, unacked: Unacked) {
        let to = self.clients[self.model.messages[unacked.no].from].name.clone();
        let no = self.model.messages.len();
        let mut reply = SentMessage::new(client, to, ByteString::from(format!("re-{no}")), self.body(no));
        reply.correlation_id = Some(self.model.messages[unacked.no].id.clone());
        reply.answers = Some(unacked.no);
        reply.deadline_ms = self.deadline();
        let reply = self.add_message(reply);
        self.clients[client].replies.insert(unacked.no, reply);
        self.send_message(client, reply, Some(unacked.message.seq));
        self.clients[client].settling.insert(reply, unacked);
    }

    /// An answered request was redelivered. It is not acknowledged until its reply is receipted or abandoned.
    fn answer_again(&mut self, client: usize, unacked: Unacked, reply: MessageNo, can_answer: bool) {
        match self.model.messages[reply].phase {
            Phase::Receipted | Phase::GivenUp => self.queue(unacked.conn, Frame::Ack { no: unacked.no }),
            Phase::Outstanding | Phase::Refused if can_answer => {
                self.retry(client, reply, Some(unacked.message.seq));
                self.clients[client].settling.insert(reply, unacked);
            }
            _ => self.clients[client].hold(unacked),
        }
    }
}
