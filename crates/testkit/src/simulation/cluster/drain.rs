//! The end of every run: faults stop, one broker takes over, all clients connect, read and acknowledge. Then every message
//! has its receipt and was read.

use super::World;
use toolbus_cluster::sim_log::Faults;

const ROUNDS: usize = 3_000;

impl World {
    pub fn drain(&mut self) {
        self.log.set_faults(Faults::default());
        self.log.lose_late();
        self.log.set_interlude(None);
        self.is_draining = true;
        (0..self.brokers.len()).for_each(|broker| self.set_cut_off(broker, false));
        // Every run ends with a takeover: what only the last owner's memory had must not matter.
        (0..self.brokers.len()).for_each(|broker| self.crash(broker));
        for round in 0..ROUNDS {
            self.advance(1);
            for broker in 0..self.brokers.len() {
                self.watch(broker);
                self.take_over(broker);
                (0..3).for_each(|_| self.write_step(broker));
                self.fetch(broker);
            }
            for client in 0..self.clients.len() {
                self.serve(client, round);
            }
            if self.oracle.violation().is_some() || self.is_done() {
                break;
            }
        }
        self.oracle.check_end();
    }

    fn serve(&mut self, client: usize, round: usize) {
        if self.clients[client].link.is_none() {
            let broker = round % self.brokers.len();
            self.connect(client, broker);
        }
        (0..8).for_each(|_| self.broker_reads(client));
        (0..8).for_each(|_| self.client_reads(client));
        self.acknowledge(client);
    }

    fn is_done(&self) -> bool {
        let is_idle = |client: &super::Client| {
            client.unacked.is_empty()
                && client.link.as_ref().is_some_and(|link| link.to_broker.is_empty() && link.to_client.is_empty())
        };
        let is_written = |broker: &super::Broker| {
            broker.serving.as_ref().is_none_or(|serving| {
                let is_empty = || serving.engine.status(self.now).mailboxes.iter().all(|row| row.messages == 0);
                !serving.engine.anything_to_write() && serving.fetches.is_empty() && is_empty()
            })
        };
        self.clients.iter().all(is_idle) && self.brokers.iter().all(is_written)
    }
}
