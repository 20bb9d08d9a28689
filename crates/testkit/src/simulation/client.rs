//! Simulated clients and the links between them and the broker. Frames on a link arrive in order or, when the link
//! breaks, not at all.

use super::sent::MessageNo;
use bytestring::ByteString;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use toolbus_engine::{ConnId, Message, Outgoing, Seq};

pub struct Client {
    pub name: ByteString,
    pub numbered_receipts: bool,
    /// Acknowledges seldom.
    pub slow: bool,
    /// Is seldom there.
    pub shy: bool,
    /// Where it sends; others of its links only receive and acknowledge.
    pub primary: Option<ConnId>,
    /// All it ever sent, in order.
    pub sent: Vec<MessageNo>,
    /// Received and not yet answered or acknowledged.
    pub held: Vec<Held>,
    /// Replies by their requests, so that a request that comes again gets the same reply.
    pub replies: BTreeMap<MessageNo, MessageNo>,
    /// What a reply on its way settles, in case it is refused.
    pub settling: BTreeMap<MessageNo, Held>,
}

/// A message in the hands of its reader. The tag is good on the connection it came by.
#[derive(Debug, Clone)]
pub struct Held {
    pub no: MessageNo,
    pub message: Arc<Message>,
    pub conn: ConnId,
}

pub struct Link {
    pub client: usize,
    /// What each deliver on this link was about and its id, by number; nothing for those that are meant to be refused.
    pub numbers: Vec<Option<(MessageNo, ByteString)>>,
    pub to_broker: VecDeque<Frame>,
    pub to_client: VecDeque<Outgoing>,
}

#[derive(Debug, Clone)]
pub enum Frame {
    Subscribe,
    Deliver {
        no: MessageNo,
        ack: Option<Seq>,
    },
    /// The id of a message with something else in it, or from someone else.
    Impostor {
        no: MessageNo,
        other_content: bool,
    },
    Ack {
        no: MessageNo,
    },
    AckTags {
        tags: Vec<Seq>,
    },
    AckWithReceipt {
        no: MessageNo,
    },
    Unreadable {
        no: MessageNo,
        message: Arc<Message>,
    },
    Cancel {
        to: ByteString,
        id: ByteString,
    },
}

impl Client {
    pub fn new(name: &str) -> Self {
        Self {
            name: ByteString::from(name),
            numbered_receipts: false,
            slow: false,
            shy: false,
            primary: None,
            sent: Vec::new(),
            held: Vec::new(),
            replies: BTreeMap::new(),
            settling: BTreeMap::new(),
        }
    }

    /// Takes a message into its hands, in place of an older copy by the same connection.
    pub fn hold(&mut self, held: Held) {
        let is_copy = |other: &Held| other.no == held.no && other.conn == held.conn;
        if self.held.iter().any(|other| is_copy(other) && other.message.seq > held.message.seq) {
            return;
        }
        self.held.retain(|other| !is_copy(other));
        self.held.push(held);
    }

    pub fn link_gone(&mut self, conn: ConnId) {
        self.held.retain(|held| held.conn != conn);
        self.settling.retain(|_, held| held.conn != conn);
        if self.primary == Some(conn) {
            self.primary = None;
        }
    }
}
