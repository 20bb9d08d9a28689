//! The policy in force. It can be replaced while calls run: later decisions use the new policy, and the manifests are
//! announced again. Task owners survive both a replacement and a reconnect to the broker.

use crate::task_owners::TaskOwners;
use std::sync::Arc;
use tokio::sync::watch;
use toolbus_policy::PolicySet;

/// A policy that can be replaced at runtime, with its counters.
pub struct LivePolicy {
    current: watch::Sender<Arc<PolicySet>>,
    pub(crate) task_owners: TaskOwners,
}

impl LivePolicy {
    /// Starts with that policy.
    pub fn new(set: PolicySet) -> Arc<Self> {
        let current = watch::Sender::new(Arc::new(set));
        Arc::new(Self { current, task_owners: TaskOwners::default() })
    }

    /// A policy that allows every role everything.
    pub fn everyone() -> Arc<Self> {
        Self::new(PolicySet::everyone())
    }

    /// The policy in force.
    pub fn current(&self) -> Arc<PolicySet> {
        Arc::clone(&self.current.borrow())
    }

    /// Replaces the policy.
    pub fn replace(&self, set: PolicySet) {
        self.current.send_replace(Arc::new(set));
    }

    /// Notifies of replacements.
    pub fn watch(&self) -> watch::Receiver<Arc<PolicySet>> {
        self.current.subscribe()
    }
}
