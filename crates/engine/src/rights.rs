//! Who may send what to whom. Everything a connection asks for passes here first; where identity comes from one secret
//! that all share, nothing is asked.

use crate::engine::Conn;
use crate::ledger::Known;
use crate::{Command, DEAD_LETTER_SUFFIX, Delivery, Engine, Fingerprint, PlantedBug, Refusal, Sender, fingerprint};
use bytestring::ByteString;
use std::sync::Arc;

/// What a connection may do beside using its own mailbox, as its credential says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights {
    /// No rule about who sends what to whom, as in the original.
    pub unrestricted: bool,
    /// May be sent requests, and tell those who called it what goes on.
    pub host: bool,
    /// May see everything and send to everybody.
    pub operator: bool,
}

impl Rights {
    pub const UNRESTRICTED: Self = Self { unrestricted: true, host: true, operator: true };

    /// Whether it is certain from the start that this is a host, which holds many messages at a time.
    pub(crate) fn is_known_host(self) -> bool {
        self.host && !self.unrestricted
    }
}

/// What a message is for, as far as its delivery depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Purpose {
    /// Work for a host.
    Request,
    /// A host's answer: only to a request that it still has.
    HostReply,
    /// An agent's answer, which may come after the question was acknowledged.
    Reply,
    /// What goes on in a call.
    Event,
    #[default]
    Other,
}

/// What the engine has to know of names that are not connected. Asked while it decides, so it has to answer at once.
pub trait Names: Send + Sync {
    fn is_host(&self, mailbox: &str) -> bool;
    /// Whether the rules let this sender write to that mailbox of its own accord.
    fn may_message(&self, from: &Sender, to: &str) -> bool;
}

/// Nobody is a host and nobody may write.
pub(crate) struct NoNames;

impl Names for NoNames {
    fn is_host(&self, _mailbox: &str) -> bool {
        false
    }
    fn may_message(&self, _from: &Sender, _to: &str) -> bool {
        false
    }
}

impl Engine {
    /// Who hosts are and what rules there are. Until it is said, there are none.
    pub fn set_names(&mut self, names: Arc<dyn Names>) {
        self.known_names = names;
    }

    /// Decides about everything but messages, which [`Engine::may_deliver`] decides about once it is clear that they are
    /// no repetition. What is left out here concerns only the connection's own mailbox. Without a refusal nobody is told.
    pub(crate) fn may(&self, conn: &Conn, command: &Command) -> Result<(), Option<Refusal>> {
        if conn.rights.unrestricted {
            return Ok(());
        }
        match command {
            Command::Event { to, .. } => self.may_tell(&conn.sender, conn.rights, to).map_err(Some),
            // Often it only comes too late: the answer is under way.
            Command::Cancel { to, correlation_id } => {
                let any = || self.find(to, correlation_id).filter(|_| conn.rights.operator);
                let found = self.find_of_agent(conn, to, correlation_id).or_else(any);
                if found.is_some_and(|(_, known)| known.pending) { Ok(()) } else { Err(None) }
            }
            Command::Status { .. } if !conn.rights.operator => Err(Some(Refusal::OperatorOnly)),
            Command::Inspect { inspect, .. } if !self.may_inspect(conn, &inspect.peers) => {
                Err(Some(Refusal::OperatorOnly))
            }
            Command::ActAsHost if !conn.rights.host => Err(Some(Refusal::NotAHost)),
            _ => Ok(()),
        }
    }

    pub(crate) fn may_deliver(&self, from: &Sender, rights: Rights, delivery: &Delivery) -> Result<(), Refusal> {
        if rights.unrestricted {
            return Ok(());
        }
        // Whoever could write among the dead letters could take the place of one that is still to come.
        let is_reply = matches!(delivery.purpose, Purpose::HostReply | Purpose::Reply);
        if delivery.to.ends_with(DEAD_LETTER_SUFFIX) && !is_reply && !rights.operator {
            return Err(may_not_send(&delivery.to));
        }
        match delivery.purpose {
            Purpose::Request if self.is_host_mailbox(&delivery.to) => Ok(()),
            Purpose::Request => Err(may_not_send(&delivery.to)),
            Purpose::HostReply | Purpose::Reply => self.may_reply(from, delivery),
            Purpose::Event => self.may_tell(from, rights, &delivery.to),
            Purpose::Other => self.may_message(from, rights, &delivery.to),
        }
    }

    /// A host's mailbox, or one beside it that is there already: requests must not make mailboxes without end.
    fn is_host_mailbox(&self, mailbox: &str) -> bool {
        let known = self.names.contains_key(mailbox);
        self.known_names.is_host(mailbox) || (known && self.known_names.is_host(agent_of(mailbox)))
    }

    /// Only whoever has the request in its mailbox may answer it, and only to whoever sent it. What was taken back, has
    /// expired or is among the dead letters is not there any more.
    fn may_reply(&self, from: &Sender, delivery: &Delivery) -> Result<(), Refusal> {
        if self.options.planted(PlantedBug::ReplyByAnyone) {
            return Ok(());
        }
        let request = delivery.correlation_id.as_deref();
        let found = request.and_then(|request| self.find_from(&delivery.to, &from.name, request));
        match found {
            Some((_, known)) if known.pending || delivery.purpose == Purpose::Reply => Ok(()),
            _ => {
                let request = request.map(ByteString::from).unwrap_or_default();
                Err(Refusal::NotYourRequest { request, mailbox: delivery.to.clone() })
            }
        }
    }

    fn may_tell(&self, from: &Sender, rights: Rights, to: &ByteString) -> Result<(), Refusal> {
        if rights.host { Ok(()) } else { self.may_message(from, rights, to) }
    }

    fn may_message(&self, from: &Sender, rights: Rights, to: &ByteString) -> Result<(), Refusal> {
        if rights.operator || self.known_names.may_message(from, to) { Ok(()) } else { Err(may_not_send(to)) }
    }

    /// Whether this connection may know that somebody is connected.
    pub(crate) fn may_see(&self, conn: &Conn, name: &str) -> bool {
        let Conn { rights, sender, .. } = conn;
        rights.unrestricted
            || rights.operator
            || rights.host
            || self.known_names.is_host(name)
            || self.known_names.may_message(sender, name)
    }

    /// Whether this connection may know if those mailboxes have somebody connected.
    fn may_inspect(&self, conn: &Conn, peers: &[ByteString]) -> bool {
        let Conn { rights, sender, .. } = conn;
        let all = rights.unrestricted || rights.operator || rights.host;
        let is_own = |peer: &str| agent_of(peer) == agent_of(&sender.name);
        let is_host = |peer: &str| self.known_names.is_host(peer) || self.known_names.is_host(agent_of(peer));
        all || peers.iter().all(|peer| is_own(peer) || is_host(peer))
    }

    /// Whether this connection may know of a message in that mailbox. The sender is `None` for those that are not known.
    pub(crate) fn may_see_letter(&self, conn: &Conn, mailbox: &str, from: Option<&str>) -> bool {
        let Conn { rights, sender, .. } = conn;
        let agent = agent_of(&sender.name);
        let all = rights.unrestricted || rights.operator || agent_of(mailbox) == agent;
        all || from.is_some_and(|from| agent_of(from) == agent)
    }

    /// What is known of the message of that id in that mailbox, if it is from this sender.
    pub(crate) fn find_from(&self, sender: &str, mailbox: &str, id: &str) -> Option<(Fingerprint, Known)> {
        let (fingerprint, known) = self.find(mailbox, id)?;
        let by_anyone = known.pending && self.options.planted(PlantedBug::CancelByAnyone);
        (known.sender == Some(self.sender_hash(sender)) || by_anyone).then_some((fingerprint, known))
    }

    fn find(&self, mailbox: &str, id: &str) -> Option<(Fingerprint, Known)> {
        let fingerprint = fingerprint(self.options.fingerprint_seed, mailbox, id);
        Some((fingerprint, self.ledger.get(&fingerprint)?))
    }

    /// The same, also if another mailbox of the same agent sent it and it still waits.
    pub(crate) fn find_of_agent(&self, conn: &Conn, mailbox: &str, id: &str) -> Option<(Fingerprint, Known)> {
        let of_agent = || {
            let from = self.sender_of_pending(mailbox, id)?;
            self.find(mailbox, id).filter(|_| agent_of(&from) == agent_of(&conn.sender.name))
        };
        self.find_from(&conn.sender.name, mailbox, id).or_else(of_agent)
    }

    /// In whose name a message is taken back. Any mailbox of the agent does it for the one that sent it, and an operator for
    /// everybody, as far as the sender is known.
    pub(crate) fn canceller(&self, conn: &Conn, to: &str, id: &str) -> Arc<str> {
        let Conn { rights, sender, .. } = conn;
        let for_all = rights.operator && !rights.unrestricted;
        let may_act = |from: &Arc<str>| for_all || agent_of(from) == agent_of(&sender.name);
        self.sender_of_pending(to, id).filter(may_act).unwrap_or_else(|| Arc::clone(&sender.name))
    }

    fn sender_of_pending(&self, mailbox: &str, id: &str) -> Option<Arc<str>> {
        let (_, known) = self.find(mailbox, id).filter(|(_, known)| known.pending)?;
        let index = *self.names.get(mailbox)?;
        Some(self.message(&self.boxes[index], known.seq)?.1)
    }

    /// A sender in 64 bits, keyed by the store's seed so that nobody can choose a name that passes for another.
    pub(crate) fn sender_hash(&self, name: &str) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(name.as_bytes(), self.options.fingerprint_seed)
    }
}

/// NAME#suffix is a mailbox of NAME.
fn agent_of(mailbox: &str) -> &str {
    mailbox.split_once('#').map_or(mailbox, |(agent, _)| agent)
}

fn may_not_send(to: &ByteString) -> Refusal {
    Refusal::MayNotSend { mailbox: to.clone() }
}
