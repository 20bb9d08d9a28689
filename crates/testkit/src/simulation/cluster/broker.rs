//! A broker: its clock, its lease, and the engine and store of the partition while it owns it.

use super::World;
use crate::simulation::model::Recovered;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use toolbus_cluster::{
    Entry, Follower, Lease, LeaseEffect, LeaseEvent, LeaseOptions, StreamDisk, TakeoverError, take_over,
};
use toolbus_engine::{Batch, Command, ConnId, Effect, Effects, Engine, Millis, Outgoing, Peer, Rights};
use toolbus_store::sim_disk::Rng;
use toolbus_store::{LogStore, Store, StoreError};
use toolbus_wal::{ChecksumKey, FENCED, MemoryDisk};

const KEY: ChecksumKey = ChecksumKey(9);

pub struct Broker {
    pub name: String,
    pub lease: Lease,
    /// Its clock: ahead of the world's, and faster by so many of a thousand.
    offset: Millis,
    drift: Millis,
    /// Cut off from log, bucket and clients' connections stay.
    pub is_cut_off: bool,
    /// Changes of the record that it has not been told.
    pub watch: VecDeque<LeaseEvent>,
    /// A takeover that was decided and not carried out.
    pub taking_over: Option<u64>,
    /// A takeover that a rival's append was interrupted by.
    pub finished: Arc<Mutex<Option<Takeover>>>,
    pub serving: Option<Serving>,
}

/// The epoch and the result of a takeover.
type Takeover = (u64, Result<StreamDisk, TakeoverError>);

/// The partition at the broker that took it over.
pub struct Serving {
    pub epoch: u64,
    pub engine: Engine,
    pub store: LogStore,
    write: Option<(Batch, Stage)>,
    pub fetches: Vec<Effect>,
    /// When it last knew that it was the owner, by its own clock.
    confirmed: Millis,
    pub is_suspended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Taken,
    Written,
}

impl Broker {
    pub fn new(number: usize, lease: LeaseOptions, rng: &mut Rng) -> Self {
        let name = format!("broker-{number}");
        Self {
            lease: Lease::new(&name, lease),
            name,
            offset: rng.below(10_000),
            drift: rng.below(30),
            is_cut_off: false,
            watch: VecDeque::new(),
            taking_over: None,
            finished: Arc::default(),
            serving: None,
        }
    }

    pub fn clock(&self, now: Millis) -> Millis {
        let passed = now - 1_000_000;
        self.offset + passed + passed * self.drift / 1_000
    }
}

impl World {
    /// Gives an event to a broker's lease and carries out the effects.
    pub fn lease_event(&mut self, broker: usize, event: LeaseEvent) {
        let clock = self.brokers[broker].clock(self.now);
        let effects = self.brokers[broker].lease.handle(clock, event);
        for effect in effects {
            self.note("lease", &[("broker", broker as u64), ("effect", kind_of(&effect))]);
            match effect {
                LeaseEffect::Write { revision, record } => self.write_lease(broker, revision, record),
                LeaseEffect::TakeOver { epoch } => self.brokers[broker].taking_over = Some(epoch),
                LeaseEffect::Suspend => self.set_suspended(broker, true),
                LeaseEffect::Resume => self.set_suspended(broker, false),
                LeaseEffect::Close => self.close(broker),
            }
        }
    }

    fn set_suspended(&mut self, broker: usize, is_suspended: bool) {
        if let Some(serving) = &mut self.brokers[broker].serving {
            serving.is_suspended = is_suspended;
        }
    }

    fn write_lease(&mut self, broker: usize, revision: u64, record: toolbus_cluster::LeaseRecord) {
        if self.brokers[broker].is_cut_off || self.rng.chance(10) {
            return;
        }
        match self.bucket.write(revision, record) {
            true => {
                let seen = self.seen();
                self.brokers.iter_mut().for_each(|broker| broker.watch.push_back(seen.clone()));
            }
            false if self.rng.chance(90) => self.brokers[broker].watch.push_back(LeaseEvent::Conflict),
            false => {}
        }
    }

    fn seen(&self) -> LeaseEvent {
        LeaseEvent::Seen { revision: self.bucket.revision, record: self.bucket.record.clone() }
    }

    /// The broker is told of the next change of the record, or of its present state.
    pub fn watch(&mut self, broker: usize) {
        if self.brokers[broker].is_cut_off {
            return;
        }
        let event = self.brokers[broker].watch.pop_front().unwrap_or_else(|| self.seen());
        let is_own = matches!(&event, LeaseEvent::Seen { record, .. }
            if record.owner.as_deref() == Some(&self.brokers[broker].name));
        let clock = self.brokers[broker].clock(self.now);
        if let Some(serving) = self.brokers[broker].serving.as_mut().filter(|_| is_own) {
            serving.confirmed = clock;
        }
        self.lease_event(broker, event);
    }

    pub fn tick_all(&mut self) {
        for broker in 0..self.brokers.len() {
            self.lease_event(broker, LeaseEvent::Tick);
        }
    }

    /// Ends what the broker has of the partition, and its connections.
    pub fn close(&mut self, broker: usize) {
        self.brokers[broker].serving = None;
        self.brokers[broker].taking_over = None;
        for client in &mut self.clients {
            if client.link.as_ref().is_some_and(|link| link.broker == broker) {
                client.disconnected();
            }
        }
    }

    /// The process is killed and started again. The mirror is lost with it.
    pub fn crash(&mut self, broker: usize) {
        self.crashes += 1;
        self.note("crash", &[("broker", broker as u64)]);
        self.close(broker);
        let old = &mut self.brokers[broker];
        old.lease = Lease::new(&old.name, self.lease);
        old.watch.clear();
        old.finished = Arc::default();
    }

    fn follower(&self) -> Follower {
        Follower::new(Arc::new(MemoryDisk::default()), KEY).with_planted(self.planted)
    }

    /// Carries out a takeover that the lease decided, now or while another broker waits for an answer to its append.
    pub fn take_over(&mut self, broker: usize) {
        let finished = self.brokers[broker].finished.lock().expect("one thread").take();
        if let Some((epoch, disk)) = finished {
            return self.taken_over(broker, epoch, disk);
        }
        let Some(epoch) = self.brokers[broker].taking_over.take() else { return self.log.run_interlude() };
        let (log, follower) = (self.log.of_broker(broker), self.follower());
        if self.rng.chance(30) && !self.is_draining {
            let slot = Arc::clone(&self.brokers[broker].finished);
            let act = move || *slot.lock().expect("one thread") = Some((epoch, take_over(log, follower, epoch)));
            return self.log.set_interlude(Some(Box::new(act)));
        }
        self.taken_over(broker, epoch, take_over(log, follower, epoch));
    }

    fn taken_over(&mut self, broker: usize, epoch: u64, disk: Result<StreamDisk, TakeoverError>) {
        self.note("taken over", &[("broker", broker as u64), ("epoch", epoch), ("ok", u64::from(disk.is_ok()))]);
        let opened = match disk {
            Ok(disk) => {
                self.oracle.taken_over(epoch);
                self.open(disk)
            }
            Err(TakeoverError::Follow(toolbus_cluster::FollowError::Log(_))) => None,
            Err(TakeoverError::Follow(error)) => {
                self.oracle.violated(format!("the log can't be replayed: {error}"));
                None
            }
            Err(_) => None,
        };
        let ok = opened.is_some();
        if let Some((engine, store)) = opened {
            let confirmed = self.brokers[broker].clock(self.now);
            let serving =
                Serving { epoch, engine, store, write: None, fetches: Vec::new(), confirmed, is_suspended: false };
            self.brokers[broker].serving = Some(serving);
        }
        self.lease_event(broker, LeaseEvent::TakenOver { epoch, ok });
        if self.brokers[broker].lease.serving() != Some(epoch) {
            self.close(broker);
        }
    }

    fn open(&mut self, disk: StreamDisk) -> Option<(Engine, LogStore)> {
        let mut recovered = Recovered::replaying_into(Engine::new(self.engine.clone()));
        match LogStore::open(Arc::new(disk), self.store.clone(), &mut recovered) {
            Ok((store, recovery)) => {
                recovered.engine.finish_restore(recovery.next_seq, 1, recovery.damaged);
                if recovery.damaged > 0 {
                    self.oracle.violated("the log has corrupt records although none was corrupted");
                }
                Some((recovered.engine, store))
            }
            Err(_) => None,
        }
    }

    /// The broker reads the next frame of a client.
    pub fn broker_reads(&mut self, client: usize) {
        let Some(link) = &mut self.clients[client].link else { return };
        let (broker, conn) = (link.broker, link.conn);
        if self.brokers[broker].serving.as_ref().is_none_or(|serving| serving.is_suspended) {
            return;
        }
        if let Some(command) = link.to_broker.pop_front() {
            self.check_lease(broker);
            self.engine_step(broker, |engine, now, effects| engine.handle(now, conn, command, effects));
        }
    }

    /// An owner that acts knew recently that it is the owner.
    fn check_lease(&mut self, broker: usize) {
        let Some(serving) = &self.brokers[broker].serving else { return };
        let silent = self.brokers[broker].clock(self.now).saturating_sub(serving.confirmed);
        if silent > self.lease.suspension {
            self.oracle.violated("a broker serves although its ownership was not confirmed for too long");
        }
    }

    pub fn engine_step(&mut self, broker: usize, step: impl FnOnce(&mut Engine, Millis, &mut Effects)) {
        let now = self.now;
        let Some(serving) = &mut self.brokers[broker].serving else { return };
        let mut effects = Effects::default();
        step(&mut serving.engine, now, &mut effects);
        let epoch = serving.epoch;
        for effect in effects.0 {
            match effect {
                Effect::Send { conn, outgoing } => self.sent(broker, epoch, conn, outgoing),
                fetch => {
                    if let Some(serving) = &mut self.brokers[broker].serving {
                        serving.fetches.push(fetch);
                    }
                }
            }
        }
    }

    fn sent(&mut self, broker: usize, epoch: u64, conn: ConnId, outgoing: Outgoing) {
        let number = |id: &str| id.parse::<usize>().expect("ids are numbers of messages");
        match &outgoing {
            Outgoing::Message { message, .. } => self.oracle.pushed(number(&message.id), epoch),
            Outgoing::Receipt { id, .. } => self.oracle.messages[number(id)].receipted = true,
            Outgoing::AckResult { id, refusal: None, .. } => {
                self.oracle.messages[number(id)].confirmed.get_or_insert(epoch);
            }
            _ => {}
        }
        let is_open = |link: &&mut super::client::Link| link.broker == broker && link.conn == conn;
        if let Some(link) = self.clients.iter_mut().find_map(|client| client.link.as_mut().filter(is_open)) {
            link.to_client.push_back(outgoing);
        }
    }

    /// One step of the writer thread.
    pub fn write_step(&mut self, broker: usize) {
        let now = self.now;
        let Some(serving) = &mut self.brokers[broker].serving else { return };
        match serving.write.take() {
            None if serving.is_suspended => {}
            None => serving.write = serving.engine.take_batch(now).map(|batch| (batch, Stage::Taken)),
            Some((batch, Stage::Taken)) => match serving.store.write(&batch) {
                Ok(()) => serving.write = Some((batch, Stage::Written)),
                Err(error) => self.failed(broker, &error),
            },
            Some((batch, Stage::Written)) if batch.sync => match serving.store.sync() {
                Ok(()) => self.synced(broker, batch.number),
                Err(error) => self.failed(broker, &error),
            },
            Some((batch, Stage::Written)) => {
                self.engine_step(broker, |engine, _, effects| engine.synced(batch.number, effects));
            }
        }
    }

    fn synced(&mut self, broker: usize, number: u64) {
        let clock = self.brokers[broker].clock(self.now);
        let Some(serving) = &mut self.brokers[broker].serving else { return };
        let epoch = serving.epoch;
        // A planted defect reports syncs that were never confirmed.
        if self.planted.is_none() {
            serving.confirmed = clock;
            self.lease_event(broker, LeaseEvent::Confirmed { epoch });
        }
        self.engine_step(broker, |engine, _, effects| engine.synced(number, effects));
    }

    pub fn reclaim(&mut self, broker: usize) {
        let Some(serving) = &mut self.brokers[broker].serving else { return };
        if serving.write.is_none()
            && let Err(error) = serving.store.reclaim()
        {
            self.failed(broker, &error);
        }
    }

    /// The store of a partition failed: it is closed at this broker.
    fn failed(&mut self, broker: usize, error: &StoreError) {
        let Some(serving) = &self.brokers[broker].serving else { return };
        let epoch = serving.epoch;
        let is_fenced = matches!(error, StoreError::Io { source, .. } if source.kind() == FENCED);
        self.note("closed", &[("broker", broker as u64), ("fenced", u64::from(is_fenced))]);
        if is_fenced && !self.misplaced && !self.has_later_epoch(epoch) {
            self.oracle.violated("a broker was fenced although no other one took the partition over");
        }
        self.close(broker);
        self.lease_event(broker, LeaseEvent::Closed { epoch });
    }

    /// Whether the log has an entry of a later epoch. Its owner need not know it, if the answer was lost.
    fn has_later_epoch(&self, than: u64) -> bool {
        let epoch_of = |message| Entry::decode(KEY, message).map_or(0, |(epoch, _)| epoch);
        self.log.messages().into_iter().any(|(_, message)| epoch_of(message) > than)
    }

    pub fn fetch(&mut self, broker: usize) {
        let Some(serving) = &mut self.brokers[broker].serving else { return };
        let Some(Effect::Fetch { mailbox, from, max_messages, max_bytes }) = serving.fetches.pop() else { return };
        match serving.store.read(&mailbox, from, max_messages, max_bytes) {
            Ok(page) => self.engine_step(broker, |engine, now, effects| engine.fetched(now, &mailbox, page, effects)),
            Err(error) => self.failed(broker, &error),
        }
    }

    /// The client connects to a broker that serves, and subscribes.
    pub fn connect(&mut self, client: usize, broker: usize) {
        let now = self.now;
        let name = self.clients[client].name.clone();
        let Some(serving) = self.brokers[broker].serving.as_mut().filter(|serving| !serving.is_suspended) else {
            return;
        };
        let peer = Peer { name, role: None, numbered_receipts: false, rights: Rights::UNRESTRICTED, incarnation: 0 };
        let conn = serving.engine.connect(now, peer);
        let to_broker = [Command::Subscribe].into();
        self.clients[client].link = Some(super::client::Link { broker, conn, to_broker, to_client: VecDeque::new() });
        self.resend(client);
    }

    pub fn disconnect(&mut self, client: usize) {
        let Some(link) = self.clients[client].link.take() else { return };
        self.clients[client].disconnected();
        self.engine_step(link.broker, |engine, now, effects| engine.disconnect(now, link.conn, effects));
    }
}

fn kind_of(effect: &LeaseEffect) -> u64 {
    match effect {
        LeaseEffect::Write { .. } => 0,
        LeaseEffect::TakeOver { .. } => 1,
        LeaseEffect::Suspend => 2,
        LeaseEffect::Resume => 3,
        LeaseEffect::Close => 4,
    }
}
