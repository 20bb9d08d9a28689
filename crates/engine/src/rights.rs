//! Authorisation: which commands and deliveries a connection may issue. Every command passes here first. Connections
//! that authenticated with the shared token are unrestricted.

use crate::engine::Conn;
use crate::ledger::{KnownId, SenderKey};
use crate::totals::Charge;
use crate::{Command, DEAD_LETTER_SUFFIX, Delivery, Engine, Fingerprint, PlantedBug, Refusal, Sender, fingerprint};
use bytestring::ByteString;
use std::sync::Arc;
use toolbus_base::{Rights, Share, principal_of};

/// The purpose of a message, from which the right needed to send it follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Purpose {
    /// A request to a host.
    Request,
    /// A host's reply, allowed only while the request is pending in its mailbox.
    HostReply,
    /// An agent's reply, allowed also after the request was acknowledged.
    Reply,
    /// An event of a running call.
    Event,
    /// Any other message.
    #[default]
    Other,
}

/// Facts and rules about names that need not be connected. Called synchronously by the engine: must not block.
pub trait Names: Send + Sync {
    /// Whether the mailbox belongs to a host.
    fn is_host(&self, mailbox: &str) -> bool;
    /// Whether the rules permit this sender to send unsolicited messages to that mailbox.
    fn may_message(&self, from: &Sender, to: &str) -> bool;
    /// Whether certainly no agent has the name of the mailbox.
    fn is_unknown(&self, _mailbox: &str) -> bool {
        false
    }
    /// How much of the storage an agent of the role may use.
    fn share(&self, _role: Option<&str>) -> Share {
        Share::DEFAULT
    }
}

/// The default: there are no hosts, and unsolicited messages are forbidden.
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
    /// Sets the source of hosts and rules. Without one, there are no hosts, and unsolicited messages are forbidden.
    pub fn set_names(&mut self, names: Arc<dyn Names>) {
        self.known_names = names;
    }

    /// Authorises all commands except deliveries: [`Engine::may_deliver`] checks those after deduplication. Commands
    /// not listed here concern only the connection's own mailbox. A cancel is authorised by
    /// [`Engine::find_cancellable`] instead: it often races with the reply, so it is not refused with an error.
    pub(crate) fn authorise(&self, conn: &Conn, command: &Command) -> Result<(), Refusal> {
        if conn.rights.unrestricted {
            return Ok(());
        }
        match command {
            Command::Event { to, .. } => self.may_send_event(&conn.sender, conn.rights, to),
            Command::Status { .. } if !conn.rights.operator => Err(Refusal::OperatorOnly),
            Command::Inspect { inspect, .. } if !self.may_inspect(conn, &inspect.peers) => Err(Refusal::OperatorOnly),
            Command::Follow { follow, .. } if !self.may_inspect(conn, &follow.peers) => Err(Refusal::OperatorOnly),
            Command::RefusedRequests { .. } if !conn.rights.host => Err(Refusal::NotAHost),
            Command::ActAsHost if !conn.rights.host => Err(Refusal::NotAHost),
            _ => Ok(()),
        }
    }

    pub(crate) fn may_deliver(&self, from: &Sender, rights: Rights, delivery: &Delivery) -> Result<(), Refusal> {
        if rights.unrestricted {
            return Ok(());
        }
        // Otherwise a peer could occupy an id in a dead-letter mailbox and block the dead letter with that id.
        let is_reply = matches!(delivery.purpose, Purpose::HostReply | Purpose::Reply);
        if delivery.to.ends_with(DEAD_LETTER_SUFFIX) && !is_reply && !rights.operator {
            return Err(may_not_send(&delivery.to));
        }
        match delivery.purpose {
            Purpose::Request if self.is_host_mailbox(&delivery.to) => Ok(()),
            Purpose::Request => Err(may_not_send(&delivery.to)),
            Purpose::HostReply | Purpose::Reply => self.may_reply(from, delivery),
            Purpose::Event => self.may_send_event(from, rights, &delivery.to),
            Purpose::Other => self.may_message(from, rights, &delivery.to),
        }
    }

    /// Whether the mailbox is a host's, or an existing `HOST#suffix`: requests must not create unlimited mailboxes.
    pub(crate) fn is_host_mailbox(&self, mailbox: &str) -> bool {
        let known = self.names.contains_key(mailbox);
        self.known_names.is_host(mailbox) || (known && self.known_names.is_host(principal_of(mailbox)))
    }

    /// A reply is allowed only from the mailbox that holds the request, and only to the sender of the request. A
    /// withdrawn, expired or dead-lettered request is no longer in the mailbox.
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

    fn may_send_event(&self, from: &Sender, rights: Rights, to: &ByteString) -> Result<(), Refusal> {
        if rights.host { Ok(()) } else { self.may_message(from, rights, to) }
    }

    fn may_message(&self, from: &Sender, rights: Rights, to: &ByteString) -> Result<(), Refusal> {
        if rights.operator || self.known_names.may_message(from, to) { Ok(()) } else { Err(may_not_send(to)) }
    }

    /// Whether this connection may learn that a peer of that name is connected.
    pub(crate) fn may_see(&self, conn: &Conn, name: &str) -> bool {
        let Conn { rights, sender, .. } = conn;
        rights.unrestricted
            || rights.operator
            || rights.host
            || self.known_names.is_host(name)
            || self.known_names.may_message(sender, name)
    }

    /// Whether this connection may inspect the presence of these peers.
    fn may_inspect(&self, conn: &Conn, peers: &[ByteString]) -> bool {
        let Conn { rights, sender, .. } = conn;
        let all = rights.unrestricted || rights.operator || rights.host;
        let is_own = |peer: &str| principal_of(peer) == principal_of(&sender.name);
        let is_host = |peer: &str| self.known_names.is_host(peer) || self.known_names.is_host(principal_of(peer));
        all || peers.iter().all(|peer| is_own(peer) || is_host(peer))
    }

    /// Whether this connection may see a message in that mailbox. `from` is `None` if the sender is not known.
    pub(crate) fn may_see_message(&self, conn: &Conn, mailbox: &str, from: Option<&str>) -> bool {
        let Conn { rights, sender, .. } = conn;
        let agent = principal_of(&sender.name);
        let all = rights.unrestricted || rights.operator || principal_of(mailbox) == agent;
        all || from.is_some_and(|from| principal_of(from) == agent)
    }

    /// Returns the ledger entry of the message with that id in that mailbox, if it is from this sender.
    pub(crate) fn find_from(&self, sender: &str, mailbox: &str, id: &str) -> Option<(Fingerprint, KnownId)> {
        let (fingerprint, known) = self.find(mailbox, id)?;
        let by_anyone = known.pending && self.options.planted(PlantedBug::CancelByAnyone);
        (known.sender == Some(self.sender_hash(sender)) || by_anyone).then_some((fingerprint, known))
    }

    fn find(&self, mailbox: &str, id: &str) -> Option<(Fingerprint, KnownId)> {
        let fingerprint = fingerprint(self.options.fingerprint_seed, mailbox, id);
        Some((fingerprint, self.ledger.get(&fingerprint)?))
    }

    /// Like [`Engine::find_from`], and also finds a pending message that another mailbox of the same agent sent.
    pub(crate) fn find_of_agent(&self, conn: &Conn, mailbox: &str, id: &str) -> Option<(Fingerprint, KnownId)> {
        let of_agent = || {
            let from = self.sender_of_pending(mailbox, id)?;
            self.find(mailbox, id).filter(|_| principal_of(&from) == principal_of(&conn.sender.name))
        };
        self.find_from(&conn.sender.name, mailbox, id).or_else(of_agent)
    }

    /// Whether a message that this connection sent is settled. The sender of an id that was settled before the last
    /// restart is not known: such ids are reported to those who may see all peers.
    pub(crate) fn is_settled(&self, conn: &Conn, mailbox: &str, id: &str) -> bool {
        let Conn { rights, sender, .. } = conn;
        let by_unknown = rights.unrestricted || rights.operator || rights.host;
        let may_see = |from: Option<u64>| from.map_or(by_unknown, |from| from == self.sender_hash(&sender.name));
        self.find(mailbox, id).is_some_and(|(_, known)| !known.pending && may_see(known.sender))
    }

    /// Returns the message that this connection may cancel, pending or settled. Permission comes before state: nothing
    /// is learned about the messages of other agents.
    pub(crate) fn find_cancellable(&self, conn: &Conn, mailbox: &str, id: &str) -> Option<KnownId> {
        let by_operator = || self.find(mailbox, id).filter(|_| conn.rights.operator && !conn.rights.unrestricted);
        self.find_of_agent(conn, mailbox, id).or_else(by_operator).map(|(_, known)| known)
    }

    /// Returns the sender on whose behalf a message is withdrawn. Any mailbox of the sending agent may withdraw it, and
    /// an operator any message, if the sender is known.
    pub(crate) fn canceller(&self, conn: &Conn, to: &str, id: &str) -> Arc<str> {
        let Conn { rights, sender, .. } = conn;
        let for_all = rights.operator && !rights.unrestricted;
        let may_act = |from: &Arc<str>| for_all || principal_of(from) == principal_of(&sender.name);
        self.sender_of_pending(to, id).filter(may_act).unwrap_or_else(|| Arc::clone(&sender.name))
    }

    fn sender_of_pending(&self, mailbox: &str, id: &str) -> Option<Arc<str>> {
        let (_, known) = self.find(mailbox, id).filter(|(_, known)| known.pending)?;
        let index = *self.names.get(mailbox)?;
        Some(self.metadata(&self.boxes[index], known.seq)?.1)
    }

    pub(crate) fn sender_key(&self, name: &str) -> SenderKey {
        SenderKey { mailbox: self.sender_hash(name), agent: self.sender_hash(principal_of(name)) }
    }

    /// What a pending message uses of whose share.
    pub(crate) fn charge(&self, fingerprint: &Fingerprint, owner: u64, size: u64) -> Charge {
        Charge { sender: self.ledger.sender(fingerprint), payer: self.ledger.payer(fingerprint), owner, size }
    }

    /// Hashes the agent that a mailbox belongs to.
    pub(crate) fn owner_key(&self, mailbox: &str) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(principal_of(mailbox).as_bytes(), self.options.fingerprint_seed)
    }

    /// Hashes the name of a sender, keyed with the store's seed so that a peer can't construct a collision, and with the
    /// generation of its agent, so that a later agent of the same name is another sender.
    pub(crate) fn sender_hash(&self, name: &str) -> u64 {
        let seed = self.options.fingerprint_seed.wrapping_add(self.generation(principal_of(name)));
        xxhash_rust::xxh3::xxh3_64_with_seed(name.as_bytes(), seed)
    }
}

fn may_not_send(to: &ByteString) -> Refusal {
    Refusal::MayNotSend { mailbox: to.clone() }
}
