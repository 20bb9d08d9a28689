//! Draws the next event by weight, as the scenario allows.

use super::client::Frame;
use super::scenario::pick;
use super::world::World;
use bytestring::ByteString;
use toolbus_engine::DEAD_LETTER_SUFFIX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Send,
    Repeat,
    ReuseId,
    Flow,
    Consume,
    Wait,
    Tick,
    Jump,
    Storage,
    Fetch,
    Reclaim,
    Quiesce,
    CheckSpace,
    Cancel,
    Connect,
    Disconnect,
    Displace,
    Crash,
    StopSoon,
    FailSync,
    ShrinkDisk,
    GrowDisk,
    ReadDeadLetters,
    Forge,
}

/// The steps and their weights.
pub fn choices(world: &World) -> Vec<(u64, Step)> {
    let scenario = &world.scenario;
    let if_any = |condition: bool, weight: u64| if condition { weight } else { 0 };
    let rough = !scenario.calm;
    vec![
        (14, Step::Send),
        (5, Step::Repeat),
        (2, Step::ReuseId),
        (60, Step::Flow),
        (20, Step::Consume),
        (5, Step::Wait),
        (2, Step::Tick),
        (1, Step::Jump),
        (if scenario.slow_disk { 6 } else { 25 }, Step::Storage),
        (10, Step::Fetch),
        (4, Step::Reclaim),
        (1, Step::Quiesce),
        (2, Step::CheckSpace),
        (3, Step::Cancel),
        (6, Step::Connect),
        (if_any(rough, 2), Step::Disconnect),
        (if_any(rough, 1), Step::Displace),
        (if_any(scenario.crashes, 1), Step::Crash),
        (if_any(scenario.crashes, 1), Step::StopSoon),
        (if_any(scenario.crashes && scenario.disk_faults, 1), Step::FailSync),
        (if_any(scenario.disk_faults, 3), Step::ShrinkDisk),
        (if_any(scenario.disk_faults, 4), Step::GrowDisk),
        (if_any(scenario.dead_lettering(), 1), Step::ReadDeadLetters),
        (if_any(scenario.restricted, 10), Step::Forge),
    ]
}

pub fn draw(world: &mut World, choices: &[(u64, Step)]) -> Step {
    let total = choices.iter().map(|(weight, _)| weight).sum();
    let mut left = world.rng.below(total);
    for (weight, step) in choices {
        match left.checked_sub(*weight) {
            Some(rest) => left = rest,
            None => return *step,
        }
    }
    Step::Wait
}

impl World {
    pub fn take(&mut self, step: Step) {
        let passed = if self.rng.chance(30) { self.rng.below(3) } else { 0 };
        self.advance(passed);
        match step {
            Step::Send => {
                let sender = self.random_sender();
                self.send_new_message(sender);
            }
            Step::Repeat => {
                let sender = self.random_sender();
                self.repeat(sender);
            }
            Step::ReuseId => self.reuse_id(),
            Step::Flow => self.flow(),
            Step::Consume => {
                let client = self.rng.below(self.clients.len() as u64) as usize;
                self.consume(client);
            }
            Step::Wait => {
                let passed = self.rng.below(250);
                self.advance(passed);
            }
            Step::Tick => self.tick(),
            Step::Jump => {
                let scale = self.rng.below(22);
                let passed = self.rng.below(1 << scale);
                self.advance(passed);
            }
            Step::Storage => self.storage_step(),
            Step::Fetch => self.fetch(),
            Step::Reclaim => self.reclaim(),
            Step::Quiesce => self.quiesce(),
            Step::CheckSpace => self.check_space(),
            Step::Cancel => self.cancel_a_message(),
            Step::Connect => self.connect_a_client(),
            Step::Disconnect => self.disconnect_a_link(),
            Step::Displace => self.displace_a_subscriber(),
            Step::Crash => {
                self.prepare_restart();
                self.crash();
            }
            Step::StopSoon => {
                self.prepare_restart();
                self.disk.stop_after(Some(self.rng.below(12)));
            }
            Step::FailSync => self.disk.fail_syncs(true),
            Step::ShrinkDisk => self.shrink_disk(),
            Step::GrowDisk => self.grow_disk(),
            Step::ReadDeadLetters => self.read_dead_letters(),
            Step::Forge => self.forge(),
        }
        self.check_memory();
    }

    fn random_sender(&mut self) -> usize {
        self.rng.below(self.scenario.clients as u64) as usize
    }

    /// A few frames are read, in one direction.
    fn flow(&mut self) {
        if self.links.is_empty() {
            return;
        }
        let conn = self.random_link();
        let to_broker = self.rng.chance(50);
        for _ in 0..1 + self.rng.below(4) {
            if to_broker {
                self.broker_reads(conn);
            } else {
                self.client_reads(conn);
            }
        }
    }

    fn fetch(&mut self) {
        let waiting = self.fetches.len() as u64;
        if waiting == 0 {
            return;
        }
        let index = self.rng.below(waiting) as usize;
        let was_read = self.fetches[index].page.is_some();
        if !was_read {
            self.read_page(index);
        }
        // Any event can happen between the read and the answer, or none.
        if was_read || self.rng.chance(60) && index < self.fetches.len() {
            self.answer_fetch(index);
        }
    }

    /// Cancels an own message, a message of another client, or one that was never sent.
    fn cancel_a_message(&mut self) {
        if self.links.is_empty() {
            return;
        }
        let conn = self.random_link();
        let any: Vec<usize> = (0..self.model.messages.len()).collect();
        let own = &self.clients[self.links[&conn].client].sent;
        let choices = if self.rng.chance(70) { own } else { &any };
        let frame = match choices.as_slice() {
            choices if choices.is_empty() || self.rng.chance(5) => {
                let to = self.random_sender();
                Frame::Cancel { to: self.clients[to].name.clone(), id: ByteString::from_static("c") }
            }
            choices => {
                let sent = &self.model.messages[*pick(&mut self.rng, choices)];
                Frame::Cancel { to: sent.mailbox.clone(), id: sent.id.clone() }
            }
        };
        self.queue(conn, frame);
    }

    fn connect_a_client(&mut self) {
        let client = self.rng.below(self.clients.len() as u64) as usize;
        if self.clients[client].rarely_connected && self.rng.chance(85) {
            return;
        }
        match self.clients[client].primary {
            None => {
                let conn = self.connect(client);
                if self.rng.chance(90) {
                    self.queue(conn, Frame::Subscribe);
                }
                self.make_primary(conn);
            }
            Some(conn) if self.rng.chance(20) => {
                let name = self.clients[client].name.clone();
                if self.model.mailbox(&name).subscriber.is_none() {
                    self.queue(conn, Frame::Subscribe);
                }
            }
            Some(_) => {}
        }
    }

    fn disconnect_a_link(&mut self) {
        if !self.links.is_empty() {
            let conn = self.random_link();
            self.disconnect(conn);
        }
    }

    /// A second connection of the same client subscribes. The first one stays open.
    fn displace_a_subscriber(&mut self) {
        let client = self.rng.below(self.clients.len() as u64) as usize;
        let others = self.links.values().filter(|link| link.client == client).count();
        if others == 0 || others > 2 {
            return;
        }
        let conn = self.connect(client);
        self.queue(conn, Frame::Subscribe);
        if self.rng.chance(50) {
            self.make_primary(conn);
        }
    }

    /// Sometimes recovery is interrupted too, or the clock is set back.
    fn prepare_restart(&mut self) {
        self.stop_recovery_after = if self.rng.chance(20) { Some(self.rng.below(8)) } else { None };
        self.clock_falls_back = if self.rng.chance(5) { self.rng.below(500) } else { 0 };
    }

    fn shrink_disk(&mut self) {
        let used: usize = self.disk.files().iter().map(|(_, bytes)| bytes).sum();
        let room = self.rng.below(3_000);
        self.disk.set_capacity(Some(used as u64 + room));
        self.disk_is_small = true;
        self.note("disk shrinks", &[("room", room)]);
    }

    pub fn grow_disk(&mut self) {
        self.disk.set_capacity(None);
        self.disk_is_small = false;
        self.engine.set_disk_low(false);
        self.note("disk grows", &[]);
    }

    fn read_dead_letters(&mut self) {
        let of = self.random_sender();
        let name = self.clients[of].name.clone();
        if !name.ends_with(DEAD_LETTER_SUFFIX) {
            self.add_dead_letter_reader(&name);
        }
    }

    /// The bytes that are neither durable nor settled are limited; one message may exceed the limit.
    fn check_memory(&mut self) {
        let limit = self.scenario.engine.unsettled_bytes + self.scenario.largest_body + 64;
        if !self.scenario.dead_lettering() && self.engine.unsettled_bytes() > limit {
            self.model.violated(format!("{} bytes are unsettled, more than the limit", self.engine.unsettled_bytes()));
        }
    }
}
