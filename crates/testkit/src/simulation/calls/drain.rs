//! The end of every run: faults stop, all peers connect, every call of a live caller must be answered, and no permit may
//! be left.

use super::World;
use super::host::Phase;
use super::network::Owner;
use super::restart::Stop;
use super::wire::{Outcome, Work};
use super::worker::Worker;
use toolbus_engine::ConnId;

const ROUNDS: usize = 4_000;

impl World {
    pub fn drain(&mut self) {
        // Two hosts of one name would displace each other forever.
        if let Some(second) = self.hosts.get(self.plan.hosts).map(|_| self.plan.hosts) {
            self.end_process(second);
        }
        // Otherwise the time limits of many calls would have to pass, one after the other.
        self.plan.hanging = self.plan.hanging.min(10);
        for host in 0..self.plan.hosts {
            self.hosts[host].folder.disk.stop_after(None);
            self.hosts[host].folder.disk.fail_syncs(false);
            self.hosts[host].machine_stops = false;
        }
        self.policy_relaxes();
        self.plan.fail_fast = 0;
        if self.settle() {
            self.query_all_tasks();
            self.oracle.check_ends();
            self.check_mailboxes();
            self.check_servers();
        }
    }

    /// Lets all work end. Returns whether it did.
    fn settle(&mut self) -> bool {
        let mut quiet_rounds = 0;
        for _ in 0..ROUNDS {
            self.now += 40;
            self.tick();
            self.connect_all();
            self.pass_all_frames();
            (0..self.plan.hosts).for_each(|host| self.drain_host(host));
            self.flush_all();
            self.broker.engine.hurry(self.now);
            (0..6).for_each(|_| self.broker_disk_step());
            if self.oracle.violation().is_some() {
                return false;
            }
            quiet_rounds = if self.is_quiescent() { quiet_rounds + 1 } else { 0 };
            if quiet_rounds > 3 {
                return true;
            }
        }
        self.oracle.violated(format!("the drain did not finish: {}", self.remaining_work()));
        false
    }

    fn drain_host(&mut self, host: usize) {
        self.take_received(host);
        let Some(process) = self.process(host) else { return };
        if process.phase != Phase::Running {
            self.terminate_host(host);
        } else if process.journal.failure().is_some() {
            self.restart(host, Stop::Process);
        }
        (0..4).for_each(|_| self.journal_step(host));
        (0..20).for_each(|_| self.host_step(host));
        (0..4).for_each(|_| self.server_step(host));
        self.approve(host);
    }

    fn connect_all(&mut self) {
        (0..self.plan.hosts).for_each(|host| self.connect(Owner::Host(host)));
        for worker in 0..self.workers.len() {
            if self.workers[worker].alive {
                self.connect(Owner::Worker(worker));
            }
        }
    }

    fn flush_all(&mut self) {
        (0..self.plan.hosts).for_each(|host| self.flush(Owner::Host(host), true));
        (0..self.workers.len()).for_each(|worker| self.flush(Owner::Worker(worker), true));
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
        let is_waiting = |worker: &Worker| worker.alive && !worker.client.is_idle();
        let hosts = (0..self.plan.hosts).all(|host| {
            let Some(process) = self.hosts[host].process.as_ref() else { return true };
            let is_idle =
                process.calls.is_empty() && process.client.is_idle() && process.machine.views().next().is_none();
            is_idle && process.phase == Phase::Running && self.journal_is_idle(host)
        });
        links && hosts && self.broker.is_idle() && !self.workers.iter().any(is_waiting)
    }

    fn remaining_work(&self) -> String {
        let processes = self.hosts.iter().filter_map(|host| host.process.as_ref());
        let calls: Vec<String> = processes
            .clone()
            .flat_map(|process| process.machine.views())
            .map(|view| format!("{} {:?}", view.key.id, view.stage))
            .collect();
        let kept: usize = processes.clone().map(|process| process.calls.len()).sum();
        let waiting = processes.filter(|process| !process.client.is_idle());
        let clients: Vec<String> = waiting.map(|process| process.client.remaining_work()).collect();
        format!(
            "calls [{}], {kept} kept by hosts, clients [{}], broker idle: {}",
            calls.join(", "),
            clients.join("; "),
            self.broker.is_idle()
        )
    }

    /// Every request and every answer of a live worker was acknowledged.
    fn check_mailboxes(&mut self) {
        let is_served = |name: &str| {
            name.starts_with("host") || self.workers.iter().any(|worker| worker.alive && *worker.mailbox == *name)
        };
        let status = self.broker.engine.status(self.now);
        if let Some(left) = status.mailboxes.iter().find(|mailbox| mailbox.messages > 0 && is_served(&mailbox.name)) {
            self.oracle.violated(format!("{} messages of {} were never acknowledged", left.messages, left.name));
        }
    }

    /// A last call to every server runs, so no permit is left.
    fn check_servers(&mut self) {
        for host in 0..self.plan.hosts {
            let process = self.hosts[host].process.as_ref();
            if process.is_some_and(|process| !process.machine.is_empty()) {
                return self.oracle.violated("permits or places in a session are left at the end");
            }
        }
        (self.plan.unreachable, self.plan.dying, self.plan.hanging) = (0, 0, 0);
        self.runs.clear();
        self.plan.agents += 1;
        let worker = self.start_worker(self.plan.agents - 1);
        // Circuit breakers close meanwhile.
        self.now += 10_000;
        let first = self.oracle.requests.len();
        for host in 0..self.plan.hosts {
            for server in 0..self.plan.machine.servers.len() {
                let work = Work { server, tool: 0, argument: 1_000, ..Work::default() };
                self.ask(worker, host, work, None, None);
                if !self.settle() {
                    return;
                }
            }
        }
        for no in first..self.oracle.requests.len() {
            let outcome = self.oracle.outcome_of(no);
            if !matches!(outcome, Some(Outcome::Result(_) | Outcome::Failed(_))) {
                self.oracle.violated(format!("a call after all others got {outcome:?}"));
            }
        }
    }
}
