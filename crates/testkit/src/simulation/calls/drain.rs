//! The end of every run: faults stop, all peers connect, and every call of a live caller must be answered.

use super::World;
use super::network::Owner;
use toolbus_engine::ConnId;

const ROUNDS: usize = 600;

impl World {
    pub fn drain(&mut self) {
        for host in &self.hosts {
            host.disk.stop_after(None);
            host.disk.fail_syncs(false);
        }
        let mut quiet_rounds = 0;
        for _ in 0..ROUNDS {
            self.now += 3;
            self.tick();
            self.connect_all();
            self.pass_all_frames();
            for host in 0..self.hosts.len() {
                self.journal_step(host);
                self.tool_step(host);
            }
            (0..self.workers.len()).for_each(|worker| self.worker_acks(worker));
            self.broker.engine.hurry(self.now);
            (0..6).for_each(|_| self.broker_disk_step());
            if self.oracle.violation().is_some() {
                return;
            }
            quiet_rounds = if self.is_quiescent() { quiet_rounds + 1 } else { 0 };
            if quiet_rounds > 3 {
                self.query_all_tasks();
                return self.oracle.check_ends();
            }
        }
        self.oracle.violated(format!("the drain did not finish: {}", self.remaining_work()));
    }

    fn connect_all(&mut self) {
        (0..self.hosts.len()).for_each(|host| self.connect(Owner::Host(host)));
        for worker in 0..self.workers.len() {
            if self.workers[worker].alive {
                self.connect(Owner::Worker(worker));
            }
        }
    }

    fn pass_all_frames(&mut self) {
        let conns: Vec<ConnId> = self.links.keys().copied().collect();
        for conn in conns {
            for _ in 0..100 {
                self.broker_reads(conn);
                self.owner_reads(conn);
            }
        }
    }

    fn is_quiescent(&self) -> bool {
        let links = self.links.values().all(|link| link.to_broker.is_empty() && link.to_owner.is_empty());
        let hosts = self.hosts.iter().all(|host| host.journal.is_idle() && host.outbox.is_empty());
        links && hosts && self.broker.is_idle() && self.hosts.iter().all(|host| host.runs.is_empty())
    }

    fn remaining_work(&self) -> String {
        let runs: Vec<String> = (self.hosts.iter().flat_map(|host| host.runs.values()))
            .map(|run| format!("{} {:?}", run.key.id, run.stage))
            .collect();
        let outbox: usize = self.hosts.iter().map(|host| host.outbox.len()).sum();
        format!(
            "runs [{}], {outbox} replies without a receipt, broker idle: {}",
            runs.join(", "),
            self.broker.is_idle()
        )
    }
}
