//! The broker, its disk, its clients and their links, and the single events that can happen to them. `steps` and
//! `script` decide which event happens next.

use super::client::{Client, Frame, Link};
use super::forger;
use super::model::Model;
use super::scenario::Scenario;
use super::storage::{PendingFetch, PendingWrite};
use super::trace::Trace;
use bytestring::ByteString;
use std::collections::BTreeMap;
use toolbus_engine::{ConnId, DEAD_LETTER_SUFFIX, Effects, Engine, Millis, Peer};
use toolbus_store::LogStore;
use toolbus_store::sim_disk::{Rng, SimDisk};

pub struct World {
    pub scenario: Scenario,
    pub rng: Rng,
    pub now: Millis,
    pub engine: Engine,
    pub store: LogStore,
    pub disk: SimDisk,
    pub disk_is_small: bool,
    /// Interrupts the next recovery after this many disk operations.
    pub stop_recovery_after: Option<u64>,
    /// How far the clock is set back at the next restart.
    pub clock_falls_back: Millis,
    pub write: Option<PendingWrite>,
    pub fetches: Vec<PendingFetch>,
    /// Consecutive pages after which the engine only requested the same page again.
    pub idle_fetches: usize,
    pub clients: Vec<Client>,
    pub links: BTreeMap<ConnId, Link>,
    pub model: Model,
    pub trace: Trace,
    pub crashes: u64,
    pub forgeries: u64,
}

const NAMES: [&str; 6] = ["ana", "bo", "cy", "di", "eve", "flo"];

impl World {
    pub fn new(scenario: Scenario, mut rng: Rng, trace: Trace) -> Self {
        let clients: Vec<Client> = NAMES[..scenario.clients].iter().map(|name| draw_client(name, &mut rng)).collect();
        let disk = SimDisk::default();
        let model = Model::new(&scenario, clients.iter().map(|client| client.name.clone()).collect());
        let (engine, store) = super::storage::open(&disk, &scenario)
            .map(|(recovered, store)| (recovered.engine, store))
            .expect("an empty disk without faults can be opened");
        Self {
            now: 1_000_000,
            engine,
            store,
            disk,
            disk_is_small: false,
            stop_recovery_after: None,
            clock_falls_back: 0,
            write: None,
            fetches: Vec::new(),
            idle_fetches: 0,
            clients,
            links: BTreeMap::new(),
            model,
            trace,
            crashes: 0,
            forgeries: 0,
            scenario,
            rng,
        }
    }

    pub fn note(&mut self, what: &str, facts: &[(&str, u64)]) {
        self.trace.note(self.now, what, facts);
    }

    pub fn advance(&mut self, by: Millis) {
        self.now += by;
        self.model.latest = self.model.latest.max(self.now);
        if !self.scenario.late_ticks {
            self.tick();
        }
    }

    pub fn tick(&mut self) {
        self.model.tick(self.now);
        let mut effects = Effects::default();
        self.engine.tick(self.now, &mut effects);
        self.apply_effects(effects);
    }

    pub fn connect(&mut self, client: usize) -> ConnId {
        let (name, numbered_receipts) = (self.clients[client].name.clone(), self.clients[client].numbered_receipts);
        let role = Some(ByteString::from_static("worker"));
        let rights = forger::rights(self.scenario.restricted, &name);
        let conn = self.engine.connect(self.now, Peer { name, role, numbered_receipts, rights, incarnation: 0 });
        let link = Link { client, numbers: Vec::new(), to_broker: Default::default(), to_client: Default::default() };
        self.links.insert(conn, link);
        self.note("connect", &[("client", client as u64), ("conn", conn.0)]);
        conn
    }

    pub fn disconnect(&mut self, conn: ConnId) {
        let Some(link) = self.links.remove(&conn) else { return };
        self.note("disconnect", &[("conn", conn.0)]);
        let name = self.clients[link.client].name.clone();
        self.model.unsubscribed(&name, conn);
        self.clients[link.client].link_gone(conn);
        let mut effects = Effects::default();
        self.engine.disconnect(self.now, conn, &mut effects);
        self.apply_effects(effects);
    }

    pub fn queue(&mut self, conn: ConnId, frame: Frame) {
        if let Some(link) = self.links.get_mut(&conn) {
            link.to_broker.push_back(frame);
        }
    }

    /// Adds a client that reads the dead letters of a mailbox, unless there is one.
    pub fn add_dead_letter_reader(&mut self, mailbox: &str) -> usize {
        let name = format!("{mailbox}{DEAD_LETTER_SUFFIX}");
        match self.clients.iter().position(|client| client.name == name) {
            Some(client) => client,
            None => {
                self.clients.push(Client::new(&name));
                self.clients.len() - 1
            }
        }
    }
}

fn draw_client(name: &str, rng: &mut Rng) -> Client {
    let mut client = Client::new(name);
    client.numbered_receipts = rng.chance(50);
    client.slow = rng.chance(25);
    client.rarely_connected = rng.chance(25);
    client
}
