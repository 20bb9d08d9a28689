//! The end of every run: faults stop, everyone connects, everything is answered. Then nobody may still wait.

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
        let mut quiet = 0;
        for _ in 0..ROUNDS {
            self.now += 3;
            self.tick();
            self.connect_everyone();
            self.pass_all_frames();
            for host in 0..self.hosts.len() {
                self.paper_step(host);
                self.tool_step(host);
            }
            (0..self.workers.len()).for_each(|worker| self.worker_acks(worker));
            self.broker.engine.hurry(self.now);
            (0..6).for_each(|_| self.broker_disk_step());
            if self.truth.violation().is_some() {
                return;
            }
            quiet = if self.is_quiet() { quiet + 1 } else { 0 };
            if quiet > 3 {
                self.look_at_all_tasks();
                return self.truth.check_ends();
            }
        }
        self.truth.violated(format!("something goes on for ever: {}", self.what_is_left()));
    }

    fn connect_everyone(&mut self) {
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

    fn is_quiet(&self) -> bool {
        let links = self.links.values().all(|link| link.to_broker.is_empty() && link.to_owner.is_empty());
        let hosts = self.hosts.iter().all(|host| host.paper.is_idle() && host.outbox.is_empty());
        links && hosts && self.broker.is_idle() && self.hosts.iter().all(|host| host.runs.is_empty())
    }

    fn what_is_left(&self) -> String {
        let runs: Vec<String> = (self.hosts.iter().flat_map(|host| host.runs.values()))
            .map(|run| format!("{} {:?}", run.key.id, run.stage))
            .collect();
        let outbox: usize = self.hosts.iter().map(|host| host.outbox.len()).sum();
        format!(
            "runs [{}], {outbox} answers without a receipt, broker idle: {}",
            runs.join(", "),
            self.broker.is_idle()
        )
    }
}
