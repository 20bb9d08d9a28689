//! Draws the next event by weight, as the plan allows.

use super::World;
use super::network::Owner;
use super::plan::Plan;
use toolbus_store::sim_disk::Rng;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Call,
    BrokerReads,
    OwnerReads,
    BrokerDisk,
    Journal,
    Tidy,
    Tool,
    Ack,
    Wait,
    Connect,
    Disconnect,
    WorkerCrash,
    HostKilled,
    HostMachineStops,
    HostDiskStopsSoon,
    HostSyncFails,
    BrokerCrash,
    Reclaim,
    QueryTask,
}

/// The steps and their weights, which sum to several thousand.
pub fn choices(plan: &Plan) -> Vec<(u64, Step)> {
    let fault_rate = plan.fault_rate;
    vec![
        (150, Step::Call),
        (800, Step::BrokerReads),
        (800, Step::OwnerReads),
        (500, Step::BrokerDisk),
        (350, Step::Journal),
        (40, Step::Tidy),
        (350, Step::Tool),
        (200, Step::Ack),
        (150, Step::Wait),
        (200, Step::Connect),
        (4 * fault_rate, Step::Disconnect),
        (3 * fault_rate, Step::WorkerCrash),
        (2 * fault_rate, Step::HostKilled),
        (2 * fault_rate, Step::HostMachineStops),
        (2 * fault_rate, Step::HostDiskStopsSoon),
        (fault_rate, Step::HostSyncFails),
        (2 * fault_rate, Step::BrokerCrash),
        (20, Step::Reclaim),
        (20, Step::QueryTask),
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
                self.call(worker);
            }
            Step::BrokerReads => {
                if let Some(conn) = self.random_link() {
                    self.broker_reads(conn);
                }
            }
            Step::OwnerReads => {
                if let Some(conn) = self.random_link() {
                    self.owner_reads(conn);
                }
            }
            Step::BrokerDisk => self.broker_disk_step(),
            Step::Wait => self.now += self.rng.below(60),
            Step::Connect => {
                let owner = self.random_owner();
                self.connect(owner);
            }
            Step::Disconnect => {
                let owner = self.random_owner();
                self.disconnect(owner);
            }
            Step::Ack => {
                let worker = self.random_worker();
                self.worker_acks(worker);
            }
            Step::WorkerCrash => {
                let worker = self.random_worker();
                self.worker_crashes(worker);
            }
            Step::BrokerCrash => self.broker_crashes(),
            Step::Reclaim => self.broker_reclaims(),
            Step::QueryTask => self.query_a_task(),
            at_host => {
                let host = self.rng.below(self.plan.hosts as u64) as usize;
                self.take_at(host, at_host);
            }
        }
    }

    fn take_at(&mut self, host: usize, step: Step) {
        match step {
            Step::Journal => self.journal_step(host),
            Step::Tidy => self.tidy_step(host),
            Step::Tool => self.tool_step(host),
            Step::HostKilled => self.host_crashes(host, false),
            Step::HostMachineStops => self.host_crashes(host, true),
            Step::HostDiskStopsSoon => {
                let calls = self.rng.below(6);
                self.hosts[host].disk.stop_after(Some(calls));
            }
            Step::HostSyncFails => self.hosts[host].disk.fail_syncs(true),
            _ => {}
        }
    }

    fn random_owner(&mut self) -> Owner {
        if self.rng.chance(40) {
            Owner::Host(self.rng.below(self.plan.hosts as u64) as usize)
        } else {
            Owner::Worker(self.random_worker())
        }
    }
}
