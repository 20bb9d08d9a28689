//! The public API of the engine: connections, commands in, effects out.

use crate::durability::{OpenBatch, WritingBatch};
use crate::follow::Follows;
use crate::ledger::Ledger;
use crate::mailbox::Mailbox;
use crate::rights::NoNames;
use crate::totals::Totals;
use crate::unsettled::{Unsettled, Waiter};
use crate::{
    AgentEnd, Command, ConnId, EngineOptions, Fence, Message, Millis, Names, Outgoing, Peer, Rights, Sender, Seq,
};
use bytestring::ByteString;
use hashbrown::HashMap;
use slab::Slab;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An action for the shell to carry out.
#[derive(Debug)]
pub enum Effect {
    /// Send a frame to a connection.
    Send {
        /// The connection.
        conn: ConnId,
        /// The frame.
        outgoing: Outgoing,
    },
    /// Read pending messages of a mailbox from the store, in order, and pass them to [`Engine::fetched`].
    Fetch {
        /// The mailbox.
        mailbox: Arc<str>,
        /// First sequence number to read.
        from: Seq,
        /// Maximum number of messages.
        max_messages: usize,
        /// Maximum number of bytes.
        max_bytes: u64,
    },
}

/// Effects, in the order in which the shell carries them out.
#[derive(Debug, Default)]
pub struct Effects(pub Vec<Effect>);

impl Effects {
    pub(crate) fn send(&mut self, conn: ConnId, outgoing: Outgoing) {
        self.0.push(Effect::Send { conn, outgoing });
    }
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub sender: Arc<Sender>,
    pub rights: Rights,
    /// Whether the peer is a host, by its credential or by its announcement.
    pub host: bool,
    pub numbered_receipts: bool,
    pub subscribed: bool,
    /// Number of delivers so far, accepted and refused ones: receipts refer to it.
    pub deliveries: u64,
    pub connected_at: Millis,
}

/// A message that has a deadline, and the sender to notify when it passes.
#[derive(Debug)]
pub(crate) struct DeadlineEntry {
    pub mailbox: Arc<str>,
    pub fingerprint: crate::Fingerprint,
    pub id: ByteString,
    pub from: Arc<str>,
    pub accepted_at: Millis,
}

impl DeadlineEntry {
    pub fn of(message: &Message) -> Self {
        Self {
            mailbox: Arc::clone(&message.mailbox),
            fingerprint: message.fingerprint,
            id: message.id.clone(),
            from: Arc::clone(&message.from.name),
            accepted_at: message.accepted_at,
        }
    }
}

/// The state machine of the broker; see the [crate documentation](crate).
pub struct Engine {
    pub(crate) options: EngineOptions,
    pub(crate) known_names: Arc<dyn Names>,
    pub(crate) conns: HashMap<ConnId, Conn>,
    /// Number of connections by peer name.
    pub(crate) connection_counts: HashMap<Arc<str>, u32>,
    next_conn: u64,
    /// Index into `boxes` by mailbox name.
    pub(crate) names: HashMap<Arc<str>, usize>,
    pub(crate) boxes: Slab<Mailbox>,
    pub(crate) ledger: Ledger,
    pub(crate) follows: Follows,
    pub(crate) unsettled: Unsettled,
    pub(crate) open: OpenBatch,
    pub(crate) writing: Option<WritingBatch>,
    pub(crate) next_batch: u64,
    /// When the batches that were written without an fsync should be durable.
    pub(crate) unsynced_due: Option<Millis>,
    /// Earliest time of the next batch that is written without an fsync: at most one per millisecond.
    pub(crate) next_ack_write: Millis,
    pub(crate) deadlines: BTreeMap<(Millis, Seq), DeadlineEntry>,
    pub(crate) totals: Totals,
    pub(crate) disk_low: bool,
    pub(crate) disk_tight: bool,
    stopping: bool,
    pub(crate) set_aside: u64,
    /// Messages below it were restored from the log.
    pub(crate) restored_until: Seq,
    /// By mailbox.
    pub(crate) fences: HashMap<Box<str>, Fence>,
    /// Agents of which a generation was revoked, or that have no valid credential.
    pub(crate) ended: BTreeMap<ByteString, AgentEnd>,
}

impl Engine {
    /// Creates an empty engine. `restore_*` must rebuild the state of an earlier run before the first connection.
    pub fn new(options: EngineOptions) -> Self {
        Self {
            options,
            known_names: Arc::new(NoNames),
            conns: HashMap::new(),
            connection_counts: HashMap::new(),
            next_conn: 1,
            names: HashMap::new(),
            boxes: Slab::new(),
            ledger: Ledger::default(),
            follows: Follows::default(),
            unsettled: Unsettled::starting_at(1),
            open: OpenBatch::default(),
            writing: None,
            next_batch: 1,
            unsynced_due: None,
            next_ack_write: 0,
            deadlines: BTreeMap::new(),
            totals: Totals::default(),
            disk_low: false,
            disk_tight: false,
            stopping: false,
            set_aside: 0,
            restored_until: 0,
            fences: HashMap::new(),
            ended: BTreeMap::new(),
        }
    }

    /// Returns the options that the engine was created with.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Registers a connection. Followers of the peer are notified by [`Engine::notify_followers`].
    pub fn connect(&mut self, now: Millis, peer: Peer) -> ConnId {
        let conn = ConnId(self.next_conn);
        self.next_conn += 1;
        let sender = Arc::new(Sender { name: Arc::from(&*peer.name), role: peer.role.as_deref().map(Arc::from) });
        let Peer { numbered_receipts, rights, .. } = peer;
        let state = Conn {
            sender,
            rights,
            host: rights.is_known_host(),
            numbered_receipts,
            subscribed: false,
            deliveries: 0,
            connected_at: now,
        };
        *self.connection_counts.entry(Arc::clone(&state.sender.name)).or_default() += 1;
        self.follows.peer_changed(&state.sender.name);
        self.conns.insert(conn, state);
        conn
    }

    /// Removes a connection and ends its subscription. Does nothing if the connection is unknown.
    pub fn disconnect(&mut self, now: Millis, conn: ConnId, effects: &mut Effects) {
        let Some(gone) = self.conns.remove(&conn) else { return };
        self.unfollow_all(conn);
        self.count_disconnect(&gone.sender.name);
        self.follows.peer_changed(&gone.sender.name);
        if gone.subscribed
            && let Some(&index) = self.names.get(&gone.sender.name)
        {
            self.end_subscription(now, index, effects);
            self.drop_if_idle(index);
        }
        self.notify_followers(effects);
    }

    fn count_disconnect(&mut self, name: &Arc<str>) {
        if let Some(connections) = self.connection_counts.get_mut(name) {
            *connections -= 1;
            if *connections == 0 {
                self.connection_counts.remove(name);
            }
        }
    }

    /// Carries out a command. Does nothing if the connection is unknown.
    pub fn handle(&mut self, now: Millis, conn: ConnId, command: Command, effects: &mut Effects) {
        let Some(peer) = self.conns.get(&conn) else { return };
        let name = Arc::clone(&peer.sender.name);
        if let Err(refusal) = self.authorise(peer, &command) {
            let id = match command {
                Command::Status { request_id }
                | Command::Inspect { request_id, .. }
                | Command::Follow { request_id, .. } => Some(request_id),
                _ => None,
            };
            return effects.send(conn, Outgoing::Refused { refusal, id });
        }
        match command {
            Command::Deliver(delivery) => self.deliver(now, conn, delivery, effects),
            Command::AckTags { tags } => self.ack_tags(now, &name, &tags, effects),
            Command::Passed { tags } => self.passed(now, &name, &tags, effects),
            Command::Subscribe => self.subscribe(now, conn, effects),
            // The shell compares claims.
            Command::Claim { .. } => {}
            Command::RefusedRequests { tags } => {
                let senders = self.refused(&name, &tags);
                if !senders.is_empty() {
                    effects.send(conn, Outgoing::RefusedSenders { senders });
                }
            }
            Command::Numbered { next } => {
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.deliveries = next.saturating_sub(1);
                }
            }
            Command::Ack { id } => self.ack(now, conn, &name, id, effects),
            Command::AckWithReceipt { id, request_id } => {
                self.ack_with_receipt(now, conn, &name, id, request_id, effects);
            }
            Command::Cancel { to, correlation_id, request_id } => {
                let outcome = self.cancel(now, conn, &to, &correlation_id, effects);
                if let Some(request_id) = request_id {
                    self.answer_cancel(
                        now,
                        conn,
                        Outgoing::CancelResult { request_id, correlation_id, outcome },
                        effects,
                    );
                }
            }
            Command::Event { to, correlation_id, body, batch } => {
                self.to_subscriber(&to, Outgoing::Event { from: name, correlation_id, body, batch }, effects);
            }
            Command::ListConnected { role } => {
                effects.send(conn, Outgoing::Connected { ids: self.connected_in_role(peer, &role) });
            }
            Command::Status { request_id } => {
                let view = Box::new(self.status(now));
                effects.send(conn, Outgoing::Status { request_id, view });
            }
            Command::Inspect { request_id, inspect } => {
                let view = Box::new(self.inspect(now, conn, &inspect));
                effects.send(conn, Outgoing::Inspected { request_id, view });
            }
            Command::Follow { request_id, follow } => self.follow(conn, request_id, follow, effects),
            Command::Unfollow { request_id } => self.unfollow(conn, &request_id),
            Command::ActAsHost => self.act_as_host(now, conn, effects),
            Command::Unreadable { message } => self.unreadable(now, conn, &message, effects),
        }
        self.notify_followers(effects);
    }

    /// The mailbox of a connection that may claim it for a journal, as a host.
    pub fn claimant(&self, conn: ConnId) -> Option<Arc<str>> {
        let conn = self.conns.get(&conn)?;
        (conn.rights.host || conn.rights.unrestricted).then(|| Arc::clone(&conn.sender.name))
    }

    /// Expires the messages whose deadline has passed. To be called at [`Engine::next_wakeup`] or later.
    pub fn tick(&mut self, now: Millis, effects: &mut Effects) {
        while let Some(entry) = self.deadlines.first_entry() {
            let (at, seq) = *entry.key();
            if at > now {
                break;
            }
            let entry = entry.remove();
            self.expire(now, seq, entry, effects);
        }
        self.notify_followers(effects);
    }

    /// Returns when the next batch is due or the next deadline passes.
    pub fn next_wakeup(&self) -> Option<Millis> {
        let batch = if self.writing.is_none() { self.batch_due() } else { None };
        let deadline = self.deadlines.first_key_value().map(|((at, _), _)| *at);
        [batch, deadline].into_iter().flatten().min()
    }

    /// Refuses new messages from now on. Pending messages are still pushed and acknowledged.
    pub fn stop_accepting(&mut self) {
        self.stopping = true;
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stopping
    }

    /// Sets whether the disk is nearly full; new messages are refused while it is.
    pub fn set_disk_low(&mut self, low: bool) {
        self.disk_low = low;
    }

    /// Sets whether the rest of the disk is reserved; only hosts and operators may send messages while it is.
    pub fn set_disk_tight(&mut self, tight: bool) {
        self.disk_tight = tight;
    }

    /// Limits the shares to what the disk can hold. Call it after the recovery.
    pub fn set_capacity(&mut self, free_bytes: u64) {
        self.totals.capacity = self.totals.all.bytes.saturating_add(free_bytes);
    }

    /// Returns whether new messages are refused because the disk is nearly full.
    pub fn disk_low(&self) -> bool {
        self.disk_low
    }

    /// Backpressure: whether connections should stop reading until the disk has caught up.
    pub fn congested(&self) -> bool {
        self.unsettled.bytes > self.options.unsettled_bytes
    }

    /// Returns the size of all messages that are accepted but neither durable nor settled.
    pub fn unsettled_bytes(&self) -> u64 {
        self.unsettled.bytes
    }

    pub(crate) fn receipt(&self, waiter: Waiter, effects: &mut Effects) {
        if self.conns.contains_key(&waiter.conn) {
            effects.send(waiter.conn, Outgoing::Receipt { number: waiter.number, id: waiter.id });
        }
    }

    pub(crate) fn to_subscriber(&self, mailbox: &str, outgoing: Outgoing, effects: &mut Effects) {
        if let Some(conn) = self.names.get(mailbox).and_then(|&index| self.boxes[index].subscriber) {
            effects.send(conn, outgoing);
        }
    }

    /// Returns the index of the mailbox of that name, and creates the mailbox if it does not exist.
    /// It uses the share of its owner.
    pub(crate) fn mailbox(&mut self, name: &str) -> usize {
        self.mailbox_paid_by(name, self.owner_key(name))
    }

    /// The same, for a mailbox that uses the share of the agent with that key.
    pub(crate) fn mailbox_paid_by(&mut self, name: &str, payer: u64) -> usize {
        if let Some(&index) = self.names.get(name) {
            return index;
        }
        let name: Arc<str> = Arc::from(name);
        let (owner, window) = (self.owner_key(&name), self.options.window(false));
        let index = self.boxes.insert(Mailbox::new(Arc::clone(&name), (owner, payer), window));
        self.totals.add_mailbox(payer);
        self.boxes[index].followed = self.follows.follows_mailbox(&name);
        self.names.insert(name, index);
        index
    }

    /// Notes a change of a message for its followers.
    pub(crate) fn message_changed(&mut self, index: usize, fingerprint: crate::Fingerprint) {
        if self.boxes[index].followed {
            self.follows.message_changed(fingerprint);
        }
    }

    /// Frees an empty mailbox that has no subscriber.
    pub(crate) fn drop_if_idle(&mut self, index: usize) {
        if self.boxes[index].is_idle() {
            let gone = self.boxes.remove(index);
            self.names.remove(&gone.name);
            self.totals.remove_mailbox(gone.payer);
        }
    }
}
