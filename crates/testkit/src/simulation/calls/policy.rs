//! The policy of all hosts: it changes during a run, and agents are revoked.

use super::World;
use super::wire::{Outcome, Work};
use bytestring::ByteString;
use std::collections::BTreeSet;
use toolbus_call::{Event, Grant, ReplaySetting};
use toolbus_journal::CallKey;

#[derive(Default)]
pub struct Policy {
    /// The tool that is refused.
    refused: Option<u64>,
    revoked: BTreeSet<ByteString>,
}

impl Policy {
    pub fn is_revoked(&self, key: &CallKey) -> bool {
        self.revoked.contains(key.agent())
    }

    pub fn refuses(&self, key: &CallKey, work: Work) -> bool {
        self.refused == Some(work.tool) || self.is_revoked(key)
    }
}

impl World {
    pub fn decide(&self, key: &CallKey, work: Work) -> Result<Grant, Outcome> {
        if self.policy.refuses(key, work) {
            return Err(Outcome::Denied);
        }
        let time_limit = self.plan.time_limit.map(|limit| (limit, "rule".to_owned()));
        let replay = if work.is_replay_safe() { ReplaySetting::Safe } else { ReplaySetting::Never };
        Ok(Grant { ask: self.plan.approvals && work.tool == 2, time_limit, limits: self.plan.limits.clone(), replay })
    }

    pub fn policy_changes(&mut self) {
        let refused = self.rng.below(8);
        self.policy.refused = (refused < 4).then_some(refused);
        self.note("policy changes", &[("refused", refused)]);
        (0..self.hosts.len()).for_each(|host| self.feed(host, Event::PolicyChanged));
    }

    /// Nothing is refused, and no rule limits calls.
    pub fn policy_relaxes(&mut self) {
        self.policy.refused = None;
        (self.plan.approvals, self.plan.time_limit) = (false, None);
        self.plan.limits.clear();
        (0..self.hosts.len()).for_each(|host| self.feed(host, Event::PolicyChanged));
    }

    /// Revokes the credential of an agent. Its workers are disconnected for good.
    pub fn revoke(&mut self) {
        let worker = self.random_worker();
        let number = self.workers[worker].agent;
        let agent = ByteString::from(format!("agent{number}"));
        self.note("revoked", &[("agent", number as u64)]);
        for worker in 0..self.workers.len() {
            if self.workers[worker].agent == number && self.workers[worker].alive {
                self.stop_worker(worker);
            }
        }
        // Another agent takes its place.
        self.plan.agents += 1;
        self.start_worker(self.plan.agents - 1);
        self.policy.revoked.insert(agent.clone());
        self.end_agent(&agent);
        (0..self.hosts.len()).for_each(|host| self.feed(host, Event::Revoked { agent: agent.clone() }));
    }
}
