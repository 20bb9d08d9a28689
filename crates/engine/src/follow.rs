//! Follows: a connection is notified when peers connect or disconnect, and when its messages are collected. Changes are
//! noted where they happen and evaluated once at the end of each step, so that a step sends at most one frame per follow.

use crate::{ConnId, Effects, Engine, Fingerprint, MessageAt, Outgoing, Refusal, fingerprint};
use bytestring::ByteString;
use hashbrown::HashMap;
use slab::Slab;

/// Peers and messages to follow.
#[derive(Debug, Clone, Default)]
pub struct Follow {
    /// Peers to follow the connections of.
    pub peers: Vec<ByteString>,
    /// Messages of this connection's agent, until they are settled.
    pub messages: Vec<MessageAt>,
}

impl Follow {
    /// Even an empty follow takes memory.
    fn items(&self) -> usize {
        (self.peers.len() + self.messages.len()).max(1)
    }
}

/// The current state of a [`Follow`], in its order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FollowView {
    /// Whether each peer is connected.
    pub peers: Vec<bool>,
    /// Whether each message is pending in its mailbox.
    pub uncollected: Vec<bool>,
}

/// All follows, with an index from names and messages to their followers.
#[derive(Debug, Default)]
pub(crate) struct Follows {
    follows: Slab<ActiveFollow>,
    by_conn: HashMap<ConnId, ConnFollows>,
    peers: HashMap<ByteString, Vec<Item>>,
    messages: HashMap<Fingerprint, Vec<Item>>,
    /// Number of followed messages by mailbox.
    mailboxes: HashMap<ByteString, usize>,
    changed_peers: Vec<ByteString>,
    changed_messages: Vec<Fingerprint>,
}

#[derive(Debug, Default)]
struct ConnFollows {
    keys: HashMap<ByteString, usize>,
    items: usize,
}

/// A peer or message of a follow: the key of the follow, and the position in its list.
type Item = (usize, usize);

#[derive(Debug)]
struct ActiveFollow {
    conn: ConnId,
    request_id: ByteString,
    follow: Box<Follow>,
    reported: FollowView,
}

impl Follows {
    /// Whether messages of that mailbox are followed.
    pub fn follows_mailbox(&self, name: &str) -> bool {
        !self.mailboxes.is_empty() && self.mailboxes.contains_key(name)
    }

    /// Notes that a peer may have connected or disconnected.
    pub fn peer_changed(&mut self, name: &str) {
        if !self.peers.is_empty() && self.peers.contains_key(name) {
            self.changed_peers.push(name.into());
        }
    }

    /// Notes that a message in a followed mailbox may have been accepted or settled.
    pub fn message_changed(&mut self, fingerprint: Fingerprint) {
        self.changed_messages.push(fingerprint);
    }
}

impl Engine {
    /// Starts a follow and reports its state. Replaces an earlier follow with the same request id. The right to follow
    /// `peers` must have been checked by `authorise`; messages of other agents are reported as not pending.
    pub(crate) fn follow(&mut self, conn: ConnId, request_id: ByteString, follow: Box<Follow>, effects: &mut Effects) {
        self.unfollow(conn, &request_id);
        let limit = self.options.followed_items;
        let of_conn = self.follows.by_conn.entry(conn).or_default();
        if of_conn.items + follow.items() > limit {
            let refusal = Refusal::TooManyFollows { limit };
            return effects.send(conn, Outgoing::Refused { refusal, id: Some(request_id) });
        }
        of_conn.items += follow.items();
        let key = self.follows.follows.vacant_key();
        of_conn.keys.insert(request_id.clone(), key);
        for (position, peer) in follow.peers.iter().enumerate() {
            self.follows.peers.entry(peer.clone()).or_default().push((key, position));
        }
        for (position, MessageAt { to, id }) in follow.messages.iter().enumerate() {
            let fingerprint = fingerprint(self.options.fingerprint_seed, to, id);
            self.follows.messages.entry(fingerprint).or_default().push((key, position));
            *self.follows.mailboxes.entry(to.clone()).or_default() += 1;
            if let Some(&index) = self.names.get(&**to) {
                self.boxes[index].followed = true;
            }
        }
        let reported = FollowView {
            peers: follow.peers.iter().map(|peer| self.connection_counts.contains_key(&**peer)).collect(),
            uncollected: follow.messages.iter().map(|message| self.is_uncollected(conn, message)).collect(),
        };
        let active = ActiveFollow { conn, request_id, follow, reported };
        effects.send(conn, active.report());
        self.follows.follows.insert(active);
    }

    /// Ends a follow. Does nothing if the connection has none with that request id.
    pub(crate) fn unfollow(&mut self, conn: ConnId, request_id: &str) {
        let Some(of_conn) = self.follows.by_conn.get_mut(&conn) else { return };
        let Some(key) = of_conn.keys.remove(request_id) else { return };
        let ActiveFollow { follow, .. } = self.follows.follows.remove(key);
        of_conn.items -= follow.items();
        if of_conn.keys.is_empty() {
            self.follows.by_conn.remove(&conn);
        }
        for peer in &follow.peers {
            remove_items(&mut self.follows.peers, peer, key);
        }
        for MessageAt { to, id } in &follow.messages {
            remove_items(&mut self.follows.messages, &fingerprint(self.options.fingerprint_seed, to, id), key);
            self.forget_followed_mailbox(to);
        }
    }

    fn forget_followed_mailbox(&mut self, name: &ByteString) {
        let Some(count) = self.follows.mailboxes.get_mut(name) else { return };
        *count -= 1;
        if *count == 0 {
            self.follows.mailboxes.remove(name);
            if let Some(&index) = self.names.get(&**name) {
                self.boxes[index].followed = false;
            }
        }
    }

    /// Ends all follows of a connection.
    pub(crate) fn unfollow_all(&mut self, conn: ConnId) {
        let Some(of_conn) = self.follows.by_conn.get(&conn) else { return };
        let request_ids: Vec<ByteString> = of_conn.keys.keys().cloned().collect();
        request_ids.iter().for_each(|request_id| self.unfollow(conn, request_id));
        self.follows.by_conn.remove(&conn);
    }

    /// Reports the follows whose state changed since the last call. Every method that takes effects calls it; the shell
    /// has to call it after [`Engine::connect`].
    pub fn notify_followers(&mut self, effects: &mut Effects) {
        if self.follows.changed_peers.is_empty() && self.follows.changed_messages.is_empty() {
            return;
        }
        let mut changed = Vec::new();
        for name in std::mem::take(&mut self.follows.changed_peers) {
            let is_connected = self.connection_counts.contains_key(&*name);
            for &(key, position) in self.follows.peers.get(&name).into_iter().flatten() {
                let reported = &mut self.follows.follows[key].reported.peers[position];
                if std::mem::replace(reported, is_connected) != is_connected {
                    changed.push(key);
                }
            }
        }
        for fingerprint in std::mem::take(&mut self.follows.changed_messages) {
            let items = self.follows.messages.get(&fingerprint).cloned().unwrap_or_default();
            for (key, position) in items {
                let ActiveFollow { conn, follow, .. } = &self.follows.follows[key];
                let is_uncollected = self.is_uncollected(*conn, &follow.messages[position]);
                let reported = &mut self.follows.follows[key].reported.uncollected[position];
                if std::mem::replace(reported, is_uncollected) != is_uncollected {
                    changed.push(key);
                }
            }
        }
        changed.sort_unstable();
        changed.dedup();
        for key in changed {
            let active = &self.follows.follows[key];
            effects.send(active.conn, active.report());
        }
    }

    fn is_uncollected(&self, conn: ConnId, MessageAt { to, id }: &MessageAt) -> bool {
        let found = self.conns.get(&conn).and_then(|requester| self.find_of_agent(requester, to, id));
        found.is_some_and(|(_, known)| known.pending)
    }
}

impl ActiveFollow {
    fn report(&self) -> Outgoing {
        Outgoing::Followed { request_id: self.request_id.clone(), view: Box::new(self.reported.clone()) }
    }
}

fn remove_items<K: std::hash::Hash + Eq>(index: &mut HashMap<K, Vec<Item>>, name: &K, key: usize) {
    if let Some(items) = index.get_mut(name) {
        items.retain(|(follow, _)| *follow != key);
        if items.is_empty() {
            index.remove(name);
        }
    }
}
