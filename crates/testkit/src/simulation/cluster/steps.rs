//! Draws the next event.

use super::World;
use toolbus_cluster::sim_log::Faults;

impl World {
    pub fn step(&mut self) {
        if self.rng.chance(30) {
            let passed = 1 + self.rng.below(4);
            self.advance(passed);
        }
        let (broker, client) = (self.any_broker(), self.any_client());
        match self.rng.below(200) {
            0..12 => self.send_new(client),
            12..14 => self.resend(client),
            14..54 => self.broker_reads(client),
            54..84 => self.client_reads(client),
            84..95 => self.acknowledge(client),
            95..125 => self.write_step(broker),
            125..132 => self.fetch(broker),
            132..137 => self.reclaim(broker),
            137..155 => self.watch(broker),
            155..165 => self.take_over(broker),
            165..170 => {
                let passed = self.rng.below(60);
                self.advance(passed);
            }
            170..182 => self.connect_somewhere(client),
            182..184 => self.disconnect(client),
            184..186 => self.crash(broker),
            186..189 => self.set_cut_off(broker, true),
            189..194 => self.set_cut_off(broker, false),
            194..196 => self.draw_faults(),
            196..198 => self.log.deliver_late(),
            198..199 => self.log.forget_ids(),
            _ => self.misplace(),
        }
    }

    pub fn advance(&mut self, by: u64) {
        // Leases are looked at often enough to notice each limit in time.
        for _ in 0..by {
            self.now += 1;
            self.tick_all();
        }
        for broker in 0..self.brokers.len() {
            let is_active = self.brokers[broker].serving.as_ref().is_some_and(|serving| !serving.is_suspended);
            if is_active {
                self.engine_step(broker, |engine, now, effects| engine.tick(now, effects));
            }
        }
    }

    fn any_broker(&mut self) -> usize {
        self.rng.below(self.brokers.len() as u64) as usize
    }

    fn any_client(&mut self) -> usize {
        self.rng.below(self.clients.len() as u64) as usize
    }

    fn connect_somewhere(&mut self, client: usize) {
        if self.clients[client].link.is_none() {
            let broker = self.any_broker();
            self.connect(client, broker);
        }
    }

    pub fn set_cut_off(&mut self, broker: usize, is_cut_off: bool) {
        self.note("cut off", &[("broker", broker as u64), ("is", u64::from(is_cut_off))]);
        self.brokers[broker].is_cut_off = is_cut_off;
        self.log.set_reachable(broker, !is_cut_off);
    }

    fn draw_faults(&mut self) {
        let mut percent = || if self.rng.chance(50) { self.rng.below(30) } else { 0 };
        let faults = Faults { lost_requests: percent(), lost_answers: percent(), late_requests: percent() };
        self.log.set_faults(faults);
    }

    /// A defect of the log: it accepts an append of an earlier owner too late.
    fn misplace(&mut self) {
        if let Some(current) = self.oracle.epochs.last() {
            self.misplaced |= self.log.misplace_late(*current);
        }
    }
}
