//! The policy in force. It can be replaced while calls run: whoever asks next asks the new one, and the manifests are
//! announced anew. What has been counted against limits, and whose tasks there are, outlives both the replacement and the connection to the bus.

use crate::gates::Gates;
use crate::task_owners::TaskOwners;
use std::sync::Arc;
use tokio::sync::watch;
use toolbus_policy::PolicySet;

pub struct LivePolicy {
    current: watch::Sender<Arc<PolicySet>>,
    pub(crate) gates: Gates,
    pub(crate) task_owners: TaskOwners,
}

impl LivePolicy {
    pub fn new(set: PolicySet) -> Arc<Self> {
        let current = watch::Sender::new(Arc::new(set));
        Arc::new(Self { current, gates: Gates::default(), task_owners: TaskOwners::default() })
    }

    /// Every role may use everything.
    pub fn everyone() -> Arc<Self> {
        Self::new(PolicySet::everyone())
    }

    pub fn current(&self) -> Arc<PolicySet> {
        Arc::clone(&self.current.borrow())
    }

    pub fn replace(&self, set: PolicySet) {
        self.gates.keep_only(set.limits().map(|limit| &limit.kind));
        self.current.send_replace(Arc::new(set));
    }

    /// For those who have to do something when it is replaced.
    pub fn watch(&self) -> watch::Receiver<Arc<PolicySet>> {
        self.current.subscribe()
    }
}
