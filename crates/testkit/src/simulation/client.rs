//! Simulated clients and their links. Links deliver frames in order; a broken link loses those in transit.

use super::messages::MessageNo;
use bytestring::ByteString;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use toolbus_engine::{ConnId, Message, Outgoing, Seq};

pub struct Client {
    pub name: ByteString,
    pub numbered_receipts: bool,
    /// Acknowledges rarely.
    pub slow: bool,
    /// Connects rarely.
    pub rarely_connected: bool,
    /// The link on which it sends; its other links only receive and acknowledge.
    pub primary: Option<ConnId>,
    /// All messages it ever sent, in order.
    pub sent: Vec<MessageNo>,
    /// Received and neither answered nor acknowledged yet.
    pub unacked: Vec<Unacked>,
    /// Replies by request, so that a redelivered request gets the same reply.
    pub replies: BTreeMap<MessageNo, MessageNo>,
    /// Requests that an outstanding reply settles, by reply, in case the reply is refused.
    pub settling: BTreeMap<MessageNo, Unacked>,
}

/// A received message that is not settled. Its tag is valid only on the connection that delivered it.
#[derive(Debug, Clone)]
pub struct Unacked {
    pub no: MessageNo,
    pub message: Arc<Message>,
    pub conn: ConnId,
}

pub struct Link {
    pub client: usize,
    /// Message and id of each deliver on this link, by number; `None` for those that must be refused.
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
    /// A deliver with the id of another message, from another sender or with other content.
    ReusedId {
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
            rarely_connected: false,
            primary: None,
            sent: Vec::new(),
            unacked: Vec::new(),
            replies: BTreeMap::new(),
            settling: BTreeMap::new(),
        }
    }

    /// Keeps a received message, in place of an older copy from the same connection.
    pub fn hold(&mut self, unacked: Unacked) {
        let is_copy = |other: &Unacked| other.no == unacked.no && other.conn == unacked.conn;
        if self.unacked.iter().any(|other| is_copy(other) && other.message.seq > unacked.message.seq) {
            return;
        }
        self.unacked.retain(|other| !is_copy(other));
        self.unacked.push(unacked);
    }

    pub fn link_gone(&mut self, conn: ConnId) {
        self.unacked.retain(|unacked| unacked.conn != conn);
        self.settling.retain(|_, unacked| unacked.conn != conn);
        if self.primary == Some(conn) {
            self.primary = None;
        }
    }
}
