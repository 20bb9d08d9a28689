//! The simulation with credentials: some clients are hosts, and a client or a stranger sends messages that it may not
//! send. None of them may have an effect.

use super::broker_side::cancel_outcome;
use super::messages::MessageNo;
use super::world::World;
use bytes::Bytes;
use bytestring::ByteString;
use toolbus_engine::{
    CancelOutcome, Command, ConnId, DEAD_LETTER_SUFFIX, Delivery, Effect, Effects, Engine, Names, Outgoing, Peer,
    Purpose, Refusal, Rights, Sender,
};

/// Has a credential, but no policy rule lets it send.
const STRANGER: &str = "mallory";

/// Every second client is a host, and every peer except the stranger may send.
pub struct Roles;

impl Names for Roles {
    fn is_host(&self, mailbox: &str) -> bool {
        matches!(mailbox, "ana" | "cy" | "eve")
    }

    fn may_message(&self, from: &Sender, _to: &str) -> bool {
        &*from.name != STRANGER
    }
}

pub fn rights(restricted: bool, name: &str) -> Rights {
    match restricted {
        true => Rights { host: Roles.is_host(name), ..Rights::WORKER },
        false => Rights::UNRESTRICTED,
    }
}

/// The purpose of a message, which matters only with credentials.
pub fn purpose(restricted: bool, no: MessageNo, mailbox: &str, is_reply: bool) -> Purpose {
    match restricted {
        false => Purpose::Other,
        true if is_reply => Purpose::HostReply,
        true if Roles.is_host(mailbox) && no.is_multiple_of(3) => Purpose::Request,
        true => Purpose::Other,
    }
}

impl World {
    pub fn forge(&mut self) {
        if self.model.messages.is_empty() {
            return;
        }
        let about = self.rng.below(self.model.messages.len() as u64) as usize;
        if self.links.is_empty() || self.rng.chance(50) {
            let peer = Peer {
                name: STRANGER.into(),
                role: None,
                numbered_receipts: self.rng.chance(50),
                rights: Rights::WORKER,
                incarnation: 0,
            };
            let conn = self.engine.connect(self.now, peer);
            self.forge_as(conn, None, about);
            self.engine.disconnect(self.now, conn, &mut Effects::default());
        } else {
            let conn = self.random_link();
            self.forge_as(conn, Some(self.links[&conn].client), about);
        }
    }

    /// Forges as the stranger or as one of the clients. The forger knows the ids of all messages.
    fn forge_as(&mut self, conn: ConnId, client: Option<usize>, about: MessageNo) {
        let sent = &self.model.messages[about];
        let (mailbox, id, own) = (sent.mailbox.clone(), sent.id.clone(), client == Some(sent.from));
        let asker = self.clients[sent.from].name.clone();
        // A client that has a message of this id may answer it, also from its dead letters, and its sender may cancel
        // it.
        let holds = client.is_some_and(|client| {
            let name = &*self.clients[client].name;
            let died_in = name.strip_suffix(DEAD_LETTER_SUFFIX);
            [Some(name), died_in].into_iter().flatten().any(|mailbox| self.model.find(mailbox, &id).is_some())
        });
        match self.rng.below(4) {
            0 if !own && client.is_none() => {
                let request_id = Some(ByteString::from_static("none"));
                self.forge_signal(conn, about, Command::Cancel { to: mailbox, correlation_id: id, request_id })
            }
            1 if client.is_none() => {
                let purpose = [Purpose::Request, Purpose::Other, Purpose::Event][self.rng.below(3) as usize];
                let to = if Roles.is_host(&mailbox) && purpose == Purpose::Request { "bo".into() } else { mailbox };
                self.forge_message(conn, None, forged(to, None, purpose));
            }
            2 if client.is_none() => {
                let body = Bytes::from_static(b"1");
                self.forge_signal(conn, about, Command::Event { to: asker, correlation_id: id, body, batch: false });
            }
            _ if !holds => {
                let purpose = if self.rng.chance(70) { Purpose::HostReply } else { Purpose::Reply };
                self.forge_message(conn, client, forged(asker, Some(id), purpose));
            }
            _ => {}
        }
    }

    fn forge_message(&mut self, conn: ConnId, client: Option<usize>, mut delivery: Delivery) {
        self.forgeries += 1;
        delivery.id = ByteString::from(format!("forged-{}", self.forgeries));
        let what = format!("{:?} to '{}' about {:?}", delivery.purpose, delivery.to, delivery.correlation_id);
        self.note("forged message", &[("conn", conn.0), ("number", self.forgeries)]);
        if client.is_some() {
            self.number_forgery(conn);
        }
        let mut effects = Effects::default();
        self.engine.handle(self.now, conn, Command::Deliver(delivery), &mut effects);
        let refused = |effect: &Effect| {
            let Effect::Send { conn: notified, outgoing: Outgoing::Refused { refusal, .. } } = effect else {
                return false;
            };
            *notified == conn && matches!(refusal, Refusal::NotYourRequest { .. } | Refusal::MayNotSend { .. })
        };
        if effects.0.len() != 1 || !effects.0.iter().all(refused) {
            self.model.violated(format!("a forged message was accepted: {what}: {:?}", effects.0));
        }
    }

    fn forge_signal(&mut self, conn: ConnId, about: MessageNo, command: Command) {
        self.note("forged signal", &[("conn", conn.0), ("message", about as u64)]);
        let mut effects = Effects::default();
        self.engine.handle(self.now, conn, command, &mut effects);
        if effects.0.iter().any(|effect| !matches!(effect, Effect::Send { conn: notified, .. } if *notified == conn)) {
            self.model.violated(format!("a forged signal had an effect: {:?}", effects.0));
        }
        if cancel_outcome(&effects).is_some_and(|outcome| outcome != CancelOutcome::Unknown) {
            self.model.violated("a stranger learned the state of a message");
        }
    }
}

fn forged(to: ByteString, correlation_id: Option<ByteString>, purpose: Purpose) -> Delivery {
    let sealed = Bytes::from_static(b"forged");
    Delivery {
        to,
        id: ByteString::new(),
        correlation_id,
        purpose,
        sealed,
        content: 7,
        deadline_ms: None,
        ack: None,
        age_ms: None,
    }
}

/// Installs the roles in an engine.
pub fn set_roles(engine: &mut Engine) {
    engine.set_names(std::sync::Arc::new(Roles));
}
