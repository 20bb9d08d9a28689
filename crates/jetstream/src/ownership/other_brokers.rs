//! How a broker treats the other ones: partitions move to the broker that should own them, and silent owners are probed.

use super::{BETWEEN_MOVES, BETWEEN_MOVES_OF_ONE, Done, FORGOTTEN, Node, PROBE, SETTLED};
use crate::members;
use std::collections::HashSet;
use std::io;
use std::time::Instant;
use tokio::time::timeout;
use toolbus_cluster::{Lease, LeaseEvent, Partition};

impl Node {
    /// Leaves a free partition to the broker that should own it, for a moment.
    pub(super) fn yield_to_preferred(&mut self, partition: Partition, event: &LeaseEvent) {
        let is_free = matches!(event, LeaseEvent::Seen { record, .. } if record.owner.is_none());
        if is_free && !self.is_leaving && self.preferred(partition, Instant::now()).is_some() {
            self.handle(partition, LeaseEvent::Wanted { after: self.options.lease.renewal * 2 });
        }
    }

    /// The live broker that should own the partition, unless it is this one.
    pub(super) fn preferred(&self, partition: Partition, now: Instant) -> Option<&str> {
        let silence = Self::millis(self.options.lease.silence);
        let preferred = self.members.preferred(partition, now, silence, SETTLED);
        preferred.filter(|broker| *broker != self.options.name)
    }

    /// The record of a broker was written. Its earlier process is gone.
    pub(super) fn member_seen(&mut self, key: &str, value: &[u8]) {
        for broker in self.members.seen(key, value, Instant::now()) {
            for partition in self.options.partitions.all() {
                self.handle(partition, LeaseEvent::Gone { broker: broker.clone() });
            }
        }
    }

    /// Probes the owners whose records are late: one whose address refuses connections is gone.
    pub(super) fn probe_silent(&mut self) {
        let clock = self.clock();
        let late = |lease: &Lease| lease.silent_for(clock) > self.options.lease.renewal * 3 / 2;
        let silent: Vec<String> = self
            .machines
            .iter()
            .filter(|lease| late(lease))
            .filter_map(|lease| lease.owner().filter(|owner| *owner != self.options.name))
            .map(str::to_owned)
            .collect();
        for broker in silent {
            let Some(address) = self.members.address_of(&broker).map(str::to_owned) else { continue };
            if self.probing.insert(broker.clone()) {
                self.work.spawn(async move {
                    let connected = timeout(PROBE, tokio::net::TcpStream::connect(address)).await;
                    let is_gone =
                        matches!(connected, Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused);
                    Done::Probed { broker, is_gone }
                });
            }
        }
    }

    /// Releases a partition that another broker should own, one at a time: only while the bucket answers and every partition has
    /// an owner. Otherwise this one could be left without.
    pub(super) fn move_to_preferred(&mut self, now: Instant) {
        let answers = |broker: &str| {
            let limit = Self::millis(self.options.lease.renewal * 2);
            self.members.last_seen(broker).is_some_and(|seen| now - seen < limit)
        };
        let is_calm = answers(&self.options.name) && self.machines.iter().all(|lease| lease.owner().is_some());
        if now - self.moved < BETWEEN_MOVES || self.is_leaving || !is_calm {
            return;
        }
        let mut owned: Vec<Partition> = self.owned.iter().copied().collect();
        owned.sort_unstable();
        // Released, it is free at once; other members leave it to the preferred one for a moment.
        let may_move = |partition: &Partition| {
            let moved = self.moved_each.get(partition);
            moved.is_none_or(|moved| now - *moved > BETWEEN_MOVES_OF_ONE)
                && self.preferred(*partition, now).is_some_and(answers)
        };
        if let Some(partition) = owned.into_iter().find(may_move) {
            self.moved_each.insert(partition, now);
            self.moved = now;
            self.handle(partition, LeaseEvent::Release);
            self.handle(partition, LeaseEvent::Wanted { after: self.options.lease.renewal * 2 });
        }
    }

    /// Removes the records of brokers that have been silent for long and own nothing: every process of a broker has a new name.
    pub(super) fn forget_gone(&mut self, now: Instant) {
        let owners: HashSet<&str> = self.machines.iter().filter_map(Lease::owner).collect();
        let matters = |name: &str| name == self.options.name || owners.contains(name);
        for broker in self.members.forget(now, FORGOTTEN, matters) {
            let (leases, key) = (self.leases.clone(), format!("{}{broker}", members::PREFIX));
            self.work.spawn(async move {
                leases.erase(&key).await.ok();
                Done::Nothing
            });
        }
    }

    /// Gives everything up. Carried out by the next steps.
    pub(super) fn leave(&mut self) {
        if std::mem::replace(&mut self.is_leaving, true) {
            return;
        }
        // Its record is removed first, so that no broker leaves the partitions to this one.
        let (leases, key) = (self.leases.clone(), format!("{}{}", members::PREFIX, self.options.name));
        self.work.spawn(async move {
            leases.remove(&key).await.ok();
            Done::Left
        });
    }

    /// Renews the record of this broker.
    pub(super) fn announce(&mut self, now: Instant) {
        let renewal = Self::millis(self.options.lease.renewal);
        if !self.is_leaving && self.announced.is_none_or(|at| now - at >= renewal) {
            self.announced = Some(now);
            let (leases, options) = (self.leases.clone(), &self.options);
            let (name, address, place) = (options.name.clone(), options.address.clone(), options.place.clone());
            self.work.spawn(async move {
                members::announce(&leases, &name, address, place).await;
                Done::Nothing
            });
        }
    }
}
