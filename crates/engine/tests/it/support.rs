//! A test harness that owns an engine, its clock and the synced batches. Tests take batches and report syncs
//! explicitly.

use bytes::Bytes;
use bytestring::ByteString;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use toolbus_engine::{
    AgentEnd, Batch, CancelOutcome, Command, ConnId, Delivery, Effect, Effects, Engine, EngineOptions, FollowView,
    Message, Millis, Outgoing, Page, Peer, Purpose, Refusal, RestoredMessage, Rights, Seq, fingerprint,
};

/// A frame sent to a connection, in a form that can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    Unsure(String),
    AgentsEnded(Vec<AgentEnd>),
    Message { id: String, attempt: u32 },
    Receipt { number: u64, id: String },
    Refused { refusal: Refusal, id: Option<String> },
    AckResult { id: String, request_id: String, refusal: Option<Refusal> },
    Cancel(String),
    CancelResult { id: String, request_id: String, outcome: CancelOutcome },
    Connected(Vec<String>),
    Followed { request_id: String, view: FollowView },
    Event { from: String, correlation_id: String, body: Bytes },
}

pub fn message(id: &str, attempt: u32) -> Received {
    Received::Message { id: id.into(), attempt }
}

pub fn receipt(number: u64, id: &str) -> Received {
    Received::Receipt { number, id: id.into() }
}

pub fn refused(refusal: Refusal, id: &str) -> Received {
    Received::Refused { refusal, id: Some(id.into()) }
}

pub fn ack_result(id: &str, request_id: &str) -> Received {
    Received::AckResult { id: id.into(), request_id: request_id.into(), refusal: None }
}

pub fn conflict(id: &str, mailbox: &str) -> Received {
    refused(Refusal::IdConflict { id: id.into(), mailbox: mailbox.into() }, id)
}

pub fn expired(id: &str, mailbox: &str) -> Received {
    refused(Refusal::Expired { id: id.into(), mailbox: mailbox.into() }, id)
}

/// A delivery of 36 bytes; its size with overhead is 100.
pub fn delivery(to: &str, id: &str) -> Delivery {
    Delivery {
        to: to.into(),
        id: id.into(),
        correlation_id: None,
        purpose: Purpose::Other,
        sealed: Bytes::from_static(&[b'x'; 36]),
        content: 1,
        deadline_ms: None,
        ack: None,
        age_ms: None,
    }
}

/// Ids of the messages that a batch writes.
pub fn puts(batch: &Batch) -> Vec<&str> {
    batch.puts.iter().map(|message| &*message.id).collect()
}

/// Whether a batch settles that message.
pub fn settles(batch: &Batch, mailbox: &str, id: &str) -> bool {
    settled(batch, mailbox, id).is_some()
}

pub fn settled<'a>(batch: &'a Batch, mailbox: &str, id: &str) -> Option<&'a toolbus_engine::Settled> {
    let wanted = fingerprint(0, mailbox, id);
    batch.settled.iter().find(|settled| settled.fingerprint == wanted)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    pub mailbox: String,
    pub from: Seq,
    pub max_messages: usize,
    pub max_bytes: u64,
}

pub struct Harness {
    pub engine: Engine,
    pub now: Millis,
    /// All synced batches.
    pub disk: Vec<Batch>,
    sent: Vec<(ConnId, Outgoing)>,
    fetches: Vec<Fetch>,
    last_pushed: HashMap<String, Arc<Message>>,
}

impl Harness {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut EngineOptions)) -> Self {
        let mut options = EngineOptions { version1_window_messages: None, ..EngineOptions::default() };
        change(&mut options);
        let engine = Engine::new(options);
        let (disk, sent, fetches) = Default::default();
        Self { engine, now: 1_000, disk, sent, fetches, last_pushed: HashMap::new() }
    }

    /// Simulates a crash: a new engine is restored from the synced batches.
    pub fn restart(self) -> Self {
        self.restart_with(|_| {})
    }

    /// The same, with something to restore before the messages.
    pub fn restart_with(self, before: impl FnOnce(&mut Engine)) -> Self {
        let mut engine = Engine::new(self.engine.options().clone());
        before(&mut engine);
        for batch in &self.disk {
            batch.puts.iter().for_each(|message| engine.restore_message(restored(message)));
            batch.settled.iter().for_each(|settled| engine.restore_settled(settled));
            batch.attempts.iter().for_each(|note| engine.restore_attempts(note));
        }
        let (next_seq, number) = self.disk.last().map_or((1, 0), |batch| (batch.next_seq, batch.number));
        engine.finish_restore(next_seq, number + 1, 0);
        Self { engine, sent: Vec::new(), fetches: Vec::new(), ..self }
    }

    pub fn connect_as(&mut self, name: &str, role: Option<&str>, numbered_receipts: bool) -> ConnId {
        self.connect_with(name, role, numbered_receipts, Rights::UNRESTRICTED)
    }

    pub fn connect_with(&mut self, name: &str, role: Option<&str>, numbered_receipts: bool, rights: Rights) -> ConnId {
        let peer =
            Peer { name: name.into(), role: role.map(ByteString::from), numbered_receipts, rights, incarnation: 0 };
        self.engine.connect(self.now, peer)
    }

    pub fn connect(&mut self, name: &str) -> ConnId {
        self.connect_as(name, None, false)
    }

    /// Connects and subscribes.
    pub fn subscribe(&mut self, name: &str) -> ConnId {
        let conn = self.connect(name);
        self.handle(conn, Command::Subscribe);
        conn
    }

    pub fn disconnect(&mut self, conn: ConnId) {
        self.step(|engine, now, effects| engine.disconnect(now, conn, effects));
    }

    pub fn handle(&mut self, conn: ConnId, command: Command) {
        self.step(|engine, now, effects| engine.handle(now, conn, command, effects));
    }

    pub fn send(&mut self, conn: ConnId, to: &str, id: &str) {
        self.deliver(conn, delivery(to, id));
    }

    pub fn deliver(&mut self, conn: ConnId, delivery: Delivery) {
        self.handle(conn, Command::Deliver(delivery));
    }

    pub fn ack(&mut self, conn: ConnId, id: &str) {
        self.handle(conn, Command::Ack { id: id.into() });
    }

    pub fn ack_with_receipt(&mut self, conn: ConnId, id: &str, request_id: &str) {
        self.handle(conn, Command::AckWithReceipt { id: id.into(), request_id: request_id.into() });
    }

    pub fn notify_followers(&mut self) {
        self.step(|engine, _, effects| engine.notify_followers(effects));
    }

    pub fn tick(&mut self) {
        self.step(|engine, now, effects| engine.tick(now, effects));
    }

    pub fn fetched(&mut self, mailbox: &str, page: Page) {
        self.step(|engine, now, effects| engine.fetched(now, mailbox, page, effects));
    }

    /// Takes the batch that is due now.
    pub fn take(&mut self) -> Option<Batch> {
        self.engine.take_batch(self.now)
    }

    /// Takes everything that is open in one batch.
    pub fn take_all(&mut self) -> Batch {
        self.engine.hurry(self.now);
        self.take().expect("a batch is open")
    }

    pub fn synced(&mut self, batch: Batch) {
        let number = batch.number;
        self.disk.push(batch);
        self.step(|engine, _, effects| engine.synced(number, effects));
    }

    pub fn refuse(&mut self, batch: Batch, retry_at: Millis) {
        self.step(|engine, now, effects| engine.batch_refused(now, batch, retry_at, effects));
    }

    /// Writes and syncs until nothing is open.
    pub fn sync_all(&mut self) {
        while self.engine.anything_to_write() {
            let batch = self.take_all();
            self.synced(batch);
        }
    }

    pub fn step(&mut self, act: impl FnOnce(&mut Engine, Millis, &mut Effects)) {
        let mut effects = Effects::default();
        act(&mut self.engine, self.now, &mut effects);
        for effect in effects.0 {
            match effect {
                Effect::Send { conn, outgoing } => {
                    if let Outgoing::Message { message, .. } = &outgoing {
                        self.last_pushed.insert(message.id.to_string(), Arc::clone(message));
                    }
                    self.sent.push((conn, outgoing));
                }
                Effect::Fetch { mailbox, from, max_messages, max_bytes } => {
                    self.fetches.push(Fetch { mailbox: mailbox.to_string(), from, max_messages, max_bytes });
                }
            }
        }
    }

    /// Returns the frames sent to a connection since the last call.
    pub fn outgoing(&mut self, conn: ConnId) -> Vec<Outgoing> {
        let (wanted, rest) = std::mem::take(&mut self.sent).into_iter().partition(|(to, _)| *to == conn);
        self.sent = rest;
        let wanted: Vec<(ConnId, Outgoing)> = wanted;
        wanted.into_iter().map(|(_, outgoing)| outgoing).collect()
    }

    pub fn received(&mut self, conn: ConnId) -> Vec<Received> {
        self.outgoing(conn).into_iter().map(received).collect()
    }

    /// Returns the message with this id as it was last pushed.
    pub fn pushed(&self, id: &str) -> Arc<Message> {
        Arc::clone(&self.last_pushed[id])
    }

    pub fn tag(&self, id: &str) -> Seq {
        self.last_pushed[id].seq
    }

    pub fn fetches(&mut self) -> Vec<Fetch> {
        std::mem::take(&mut self.fetches)
    }

    /// Returns the page that a store would read from the synced batches.
    pub fn page(&self, fetch: &Fetch) -> Page {
        let stored = |batch: &Batch| batch.settled.iter().filter_map(|it| it.stored.clone()).collect::<Vec<_>>();
        let settled: HashSet<(Arc<str>, Seq)> = self.disk.iter().flat_map(stored).collect();
        let puts = self.disk.iter().flat_map(|batch| &batch.puts);
        let live = puts.filter(|it| *it.mailbox == *fetch.mailbox && it.seq >= fetch.from);
        let live = live.filter(|it| !settled.contains(&(Arc::clone(&it.mailbox), it.seq)));
        let messages = live.take(fetch.max_messages.max(1)).cloned().collect();
        Page { from: fetch.from, messages, damaged: Vec::new() }
    }

    /// Returns the page for the one fetch that is in progress.
    pub fn requested_page(&mut self) -> Page {
        let fetches = self.fetches();
        assert_eq!(fetches.len(), 1, "one fetch is in progress");
        self.page(&fetches[0])
    }

    /// Answers fetches until the engine issues no more.
    pub fn serve_fetches(&mut self) {
        while let Some(fetch) = (!self.fetches.is_empty()).then(|| self.fetches.remove(0)) {
            let page = self.page(&fetch);
            self.fetched(&fetch.mailbox, page);
        }
    }
}

fn received(outgoing: Outgoing) -> Received {
    match outgoing {
        Outgoing::Message { message, attempt, .. } => Received::Message { id: message.id.to_string(), attempt },
        Outgoing::Unsure { id } => Received::Unsure(id.to_string()),
        Outgoing::AgentsEnded { agents } => Received::AgentsEnded(agents),
        Outgoing::Receipt { number, id } => Received::Receipt { number, id: id.to_string() },
        Outgoing::Refused { refusal, id } => Received::Refused { refusal, id: id.map(|id| id.to_string()) },
        Outgoing::AckResult { id, request_id, refusal } => {
            Received::AckResult { id: id.to_string(), request_id: request_id.to_string(), refusal }
        }
        Outgoing::Cancel { correlation_id, from: None } => Received::Cancel(correlation_id.to_string()),
        Outgoing::Cancel { correlation_id, from: Some(from) } => {
            Received::Cancel(format!("{correlation_id} from {from}"))
        }
        Outgoing::CancelResult { request_id, correlation_id, outcome } => {
            let (id, request_id) = (correlation_id.to_string(), request_id.to_string());
            Received::CancelResult { id, request_id, outcome }
        }
        Outgoing::Connected { ids } => Received::Connected(ids.iter().map(|id| id.to_string()).collect()),
        Outgoing::Event { from, correlation_id, body, .. } => {
            Received::Event { from: from.to_string(), correlation_id: correlation_id.to_string(), body }
        }
        Outgoing::Followed { request_id, view } => {
            Received::Followed { request_id: request_id.to_string(), view: *view }
        }
        Outgoing::Status { .. } | Outgoing::Inspected { .. } | Outgoing::RefusedSenders { .. } | Outgoing::Moved => {
            unreachable!("tests call the engine directly")
        }
    }
}

fn restored(message: &Message) -> RestoredMessage<'_> {
    RestoredMessage {
        seq: message.seq,
        mailbox: &message.mailbox,
        id: &message.id,
        from: &message.from.name,
        fingerprint: message.fingerprint,
        content: message.content,
        size: message.size(),
        accepted_at: message.accepted_at,
        expires_at: message.expires_at,
    }
}
