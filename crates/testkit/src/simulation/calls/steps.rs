//! Draws the next event by weight, as the plan allows.

use super::World;
use super::network::Owner;
use super::plan::Plan;
use super::restart::Stop;
use toolbus_call::{Cause, Event, NotificationNo, SessionKey};
use toolbus_store::sim_disk::Rng;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Call,
    BrokerReads,
    OwnerReads,
    BrokerDisk,
    Journal,
    Host,
    Server,
    Ack,
    Wait,
    Connect,
    Reclaim,
    QueryTask,
    Notification,
    Approve,
    Cancel,
    OperatorCancels,
    Panic,
    PolicyChanges,
    Revoke,
    ClockJumps,
    Disconnect,
    WorkerCrash,
    WorkerStops,
    BrokerCrash,
    BrokerStops,
    HostStops,
    HostEnds(Stop),
    HostDiskStopsSoon,
    HostSyncFails,
    SecondHost,
}

/// The steps and their weights, which sum to several thousand.
pub fn choices(plan: &Plan) -> Vec<(u64, Step)> {
    let (fault_rate, unrest) = (plan.fault_rate, plan.unrest);
    let if_enabled = |enabled: bool, weight: u64| if enabled { weight } else { 0 };
    vec![
        (150, Step::Call),
        (800, Step::BrokerReads),
        (800, Step::OwnerReads),
        (plan.broker_disk, Step::BrokerDisk),
        (500, Step::Journal),
        (1200, Step::Host),
        (350, Step::Server),
        (200, Step::Ack),
        (150, Step::Wait),
        (200, Step::Connect),
        (20, Step::Reclaim),
        (20, Step::QueryTask),
        (20, Step::Notification),
        (if_enabled(plan.approvals, 40), Step::Approve),
        (8 * unrest, Step::Cancel),
        (2 * unrest, Step::OperatorCancels),
        (2 * unrest, Step::Panic),
        (2 * unrest, Step::PolicyChanges),
        (unrest / 2, Step::Revoke),
        (if_enabled(plan.clock_jumps, 20), Step::ClockJumps),
        (8 * fault_rate, Step::Disconnect),
        (6 * fault_rate, Step::WorkerCrash),
        (3 * fault_rate, Step::WorkerStops),
        (2 * fault_rate, Step::BrokerCrash),
        (fault_rate, Step::BrokerStops),
        (3 * fault_rate, Step::HostStops),
        (2 * fault_rate, Step::HostEnds(Stop::Process)),
        (2 * fault_rate, Step::HostEnds(Stop::Machine)),
        (if_enabled(plan.amnesia, 4 * fault_rate), Step::HostEnds(Stop::FolderLost)),
        (if_enabled(plan.amnesia, 4 * fault_rate), Step::HostEnds(Stop::FolderRestored)),
        (if_enabled(plan.corruption, fault_rate), Step::HostEnds(Stop::Corruption)),
        (2 * fault_rate, Step::HostDiskStopsSoon),
        (fault_rate, Step::HostSyncFails),
        (if_enabled(plan.amnesia, fault_rate), Step::SecondHost),
    ]
}

pub fn draw(rng: &mut Rng, choices: &[(u64, Step)]) -> Step {
    let total = choices.iter().map(|(weight, _)| weight).sum();
    let mut left = rng.below(total);
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
        self.now += if self.rng.chance(30) { self.rng.below(4) } else { 0 };
        self.tick();
        match step {
            Step::Call => {
                let worker = self.random_worker();
                self.send_call(worker);
            }
            Step::BrokerReads => self.random_link().into_iter().for_each(|conn| self.broker_reads(conn)),
            Step::OwnerReads => self.random_link().into_iter().for_each(|conn| self.owner_reads(conn)),
            Step::BrokerDisk => self.broker_disk_step(),
            // Orphans are noticed after a second at the earliest.
            Step::Wait if self.rng.chance(self.plan.long_waits) => self.now += self.rng.below(3_000),
            Step::Wait => self.now += self.rng.below(60),
            Step::ClockJumps => {
                let jump = self.rng.below(1_200_000);
                self.wall_offset = self.wall_offset - 600_000 + jump;
            }
            Step::Connect => {
                let owner = self.random_owner();
                self.connect(owner);
            }
            Step::Disconnect => {
                let owner = self.random_owner();
                self.disconnect(owner);
            }
            Step::Ack => {
                let owner = self.random_owner();
                self.flush(owner, true);
            }
            Step::Cancel => {
                let worker = self.random_worker();
                self.cancel_request(worker);
            }
            Step::WorkerCrash => {
                let worker = self.random_worker();
                self.worker_crashes(worker);
            }
            Step::WorkerStops => {
                let worker = self.random_worker();
                self.worker_detaches(worker);
            }
            Step::BrokerCrash => self.broker_crashes(),
            Step::BrokerStops => self.broker_stops(),
            Step::Reclaim => self.broker_reclaims(),
            Step::QueryTask => self.query_a_task(),
            Step::PolicyChanges => self.policy_changes(),
            Step::Revoke => self.revoke(),
            Step::SecondHost => self.toggle_second_host(),
            at_host => {
                let host = self.random_host();
                self.take_at(host, at_host);
            }
        }
    }

    fn take_at(&mut self, host: usize, step: Step) {
        match step {
            Step::Journal => self.journal_step(host),
            Step::Host => {
                if self.rng.chance(10) {
                    self.take_received(host);
                }
                self.host_step(host);
            }
            Step::Server => self.server_step(host),
            Step::Approve => self.approve(host),
            Step::Notification => self.notify_server(host),
            Step::OperatorCancels => {
                if let Some(call) = self.random_call(host) {
                    self.note("operator cancels", &[("host", host as u64), ("call", call.0)]);
                    let id = self.call(host, call).map(|call| {
                        call.cancelled = true;
                        call.key.id.clone()
                    });
                    self.oracle.operator_cancelled.extend(id);
                    self.feed(host, Event::Cancel { call, cause: Cause::Admin, reason: None });
                }
            }
            Step::Panic => self.panic(host),
            Step::HostStops => self.terminate_host(host),
            Step::HostEnds(how) => self.restart(host, how),
            Step::HostDiskStopsSoon => {
                let calls = self.rng.below(6);
                self.hosts[host].machine_stops = true;
                self.hosts[host].folder.disk.stop_after(Some(calls));
            }
            Step::HostSyncFails => self.hosts[host].folder.disk.fail_syncs(true),
            _ => {}
        }
    }

    /// The code that carries out the effects of a call panics.
    fn panic(&mut self, host: usize) {
        let Some(no) = self.random_call(host) else { return };
        self.note("panic", &[("host", host as u64)]);
        let Some(call) = self.call(host, no) else { return };
        call.queue.clear();
        call.is_parked = false;
        call.run.take().into_iter().for_each(|run| self.detach(run));
        self.feed(host, Event::Crashed { call: no });
    }

    /// A client sends a notification in its session.
    fn notify_server(&mut self, host: usize) {
        let worker = self.random_worker();
        let mailbox = self.workers[worker].mailbox.clone();
        let notification = NotificationNo(self.fresh_id());
        let session = SessionKey { server: 0, mailbox, key: "session".into() };
        self.feed(host, Event::Notification { notification, session });
    }

    fn random_host(&mut self) -> usize {
        self.rng.below(self.hosts.len() as u64) as usize
    }

    fn random_owner(&mut self) -> Owner {
        if self.rng.chance(40) { Owner::Host(self.random_host()) } else { Owner::Worker(self.random_worker()) }
    }
}
