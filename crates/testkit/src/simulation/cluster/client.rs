//! Clients of the cluster. Each is connected to at most one broker, sends messages again until they are receipted, and
//! acknowledges what it reads.

use super::World;
use bytes::Bytes;
use bytestring::ByteString;
use std::collections::{BTreeSet, VecDeque};
use toolbus_engine::{Command, ConnId, Delivery, Outgoing, Purpose};

pub struct Client {
    pub name: ByteString,
    pub link: Option<Link>,
    /// Messages without a receipt.
    pub open: BTreeSet<usize>,
    /// Read and not acknowledged on this link: message and tag.
    pub unacked: Vec<(usize, u64)>,
}

pub struct Link {
    pub broker: usize,
    pub conn: ConnId,
    pub to_broker: VecDeque<Command>,
    pub to_client: VecDeque<Outgoing>,
}

impl Client {
    pub fn new(number: usize) -> Self {
        let name = ByteString::from(["ana", "bo", "cy", "di", "eve"][number]);
        Self { name, link: None, open: BTreeSet::new(), unacked: Vec::new() }
    }

    pub fn disconnected(&mut self) {
        self.link = None;
        self.unacked.clear();
    }

    fn queue(&mut self, command: Command) {
        if let Some(link) = &mut self.link {
            link.to_broker.push_back(command);
        }
    }
}

impl World {
    /// The client sends a new message.
    pub fn send_new(&mut self, client: usize) {
        let to = self.rng.below(self.clients.len() as u64) as usize;
        let no = self.oracle.messages.len();
        self.oracle.messages.push(super::oracle::Sent { to, ..Default::default() });
        self.clients[client].open.insert(no);
        self.note("send", &[("message", no as u64)]);
        self.send(client, no);
    }

    /// The client sends a message that has no receipt, again or for the first time.
    pub fn send(&mut self, client: usize, no: usize) {
        let to = self.clients[self.oracle.messages[no].to].name.clone();
        let length = [20, 200, 900][no % 3];
        let delivery = Delivery {
            to,
            id: ByteString::from(no.to_string()),
            correlation_id: None,
            purpose: Purpose::Other,
            sealed: Bytes::from(vec![no as u8; length]),
            content: no as u64,
            deadline_ms: None,
            ack: None,
            age_ms: None,
        };
        self.clients[client].queue(Command::Deliver(delivery));
    }

    /// Sends the messages without a receipt again, as after a reconnect.
    pub fn resend(&mut self, client: usize) {
        let open: Vec<usize> = self.clients[client].open.iter().copied().collect();
        open.into_iter().for_each(|no| self.send(client, no));
    }

    /// The client acknowledges one of the messages that it has read.
    pub fn acknowledge(&mut self, client: usize) {
        let count = self.clients[client].unacked.len() as u64;
        if count == 0 {
            return;
        }
        let (no, tag) = self.clients[client].unacked.remove(self.rng.below(count) as usize);
        let id = ByteString::from(no.to_string());
        let command = match self.rng.below(3) {
            0 => Command::Ack { id },
            1 => Command::AckTags { tags: vec![tag] },
            _ => Command::AckWithReceipt { request_id: id.clone(), id },
        };
        self.clients[client].queue(command);
    }

    /// The client reads the next frame.
    pub fn client_reads(&mut self, client: usize) {
        let Some(link) = &mut self.clients[client].link else { return };
        let Some(outgoing) = link.to_client.pop_front() else { return };
        match outgoing {
            Outgoing::Message { message, .. } => {
                let no: usize = message.id.parse().expect("ids are numbers of messages");
                let is_intact = message.sealed.len() == [20, 200, 900][no % 3]
                    && message.sealed.iter().all(|byte| *byte == no as u8)
                    && self.oracle.messages[no].to == client;
                if !is_intact {
                    self.oracle.violated(format!("message {no} arrived changed or at another client"));
                }
                self.oracle.messages[no].received = true;
                self.clients[client].unacked.push((no, message.seq));
            }
            Outgoing::Receipt { id, .. } => {
                let no: usize = id.parse().expect("ids are numbers of messages");
                self.clients[client].open.remove(&no);
            }
            Outgoing::Refused { refusal, id: Some(id) } => {
                self.oracle.violated(format!("message {id} was refused: {refusal}"));
            }
            _ => {}
        }
    }
}
