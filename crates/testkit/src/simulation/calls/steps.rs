//! Which event happens next: drawn by weight, within what the plan allows.

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
    Paper,
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
    LookAtTask,
}

/// The steps of this world with their weights, out of several thousand.
pub fn choices(plan: &Plan) -> Vec<(u64, Step)> {
    let trouble = plan.trouble;
    vec![
        (150, Step::Call),
        (800, Step::BrokerReads),
        (800, Step::OwnerReads),
        (500, Step::BrokerDisk),
        (350, Step::Paper),
        (40, Step::Tidy),
        (350, Step::Tool),
        (200, Step::Ack),
        (150, Step::Wait),
        (200, Step::Connect),
        (4 * trouble, Step::Disconnect),
        (3 * trouble, Step::WorkerCrash),
        (2 * trouble, Step::HostKilled),
        (2 * trouble, Step::HostMachineStops),
        (2 * trouble, Step::HostDiskStopsSoon),
        (trouble, Step::HostSyncFails),
        (2 * trouble, Step::BrokerCrash),
        (20, Step::Reclaim),
        (20, Step::LookAtTask),
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
            Step::LookAtTask => self.look_at_a_task(),
            at_host => {
                let host = self.rng.below(self.plan.hosts as u64) as usize;
                self.take_at(host, at_host);
            }
        }
    }

    fn take_at(&mut self, host: usize, step: Step) {
        match step {
            Step::Paper => self.paper_step(host),
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
