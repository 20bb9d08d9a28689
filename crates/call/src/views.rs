//! What the machine tells about its calls.

use crate::call::Stage;
use crate::event::{CallNo, Millis};
use crate::machine::CallMachine;
use toolbus_journal::CallKey;

/// A call as shown to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallView {
    /// Its number at this machine.
    pub call: CallNo,
    /// The caller's mailbox and the id.
    pub key: CallKey,
    /// What it waits for.
    pub stage: Stage,
    /// When it arrived.
    pub arrived: Millis,
    /// Number of calls that wait for its answer.
    pub joiners: usize,
    /// Whether it has waited for an earlier equal call, and so left the order of its session.
    pub was_joined: bool,
    /// Whether it is a task.
    pub is_task: bool,
}

impl<A: Clone> CallMachine<A> {
    /// Number of calls in progress.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether no call is in progress, no permit or place in a session is held, and no caller is followed.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.permits.is_empty() && self.orders.is_empty() && self.callers.is_empty()
    }

    /// All calls in progress, in the order of their arrival.
    pub fn views(&self) -> impl Iterator<Item = CallView> + '_ {
        self.calls.keys().filter_map(|no| self.view(*no))
    }

    /// A call in progress.
    pub fn view(&self, no: CallNo) -> Option<CallView> {
        let call = self.calls.get(&no)?;
        let joiners = self.joiners.get(&no).map_or(0, Vec::len);
        let (key, stage, arrived) = (call.request.key.clone(), call.stage(), call.arrived);
        let (was_joined, is_task) = (call.was_joined, call.request.task.is_some());
        Some(CallView { call: no, key, stage, arrived, joiners, was_joined, is_task })
    }

    /// The calls in progress with this id, of different callers.
    pub fn find(&self, id: &str) -> Vec<CallView> {
        let calls = self.by_id.get(id).into_iter().flatten();
        calls.filter_map(|no| self.view(*no)).collect()
    }

    /// The calls that wait for the answer of this one, directly or through others: they get its notifications too.
    pub fn joiners_of(&self, no: CallNo) -> Vec<CallNo> {
        let mut all = self.joiners.get(&no).cloned().unwrap_or_default();
        let mut next = 0;
        while let Some(joiner) = all.get(next).copied() {
            all.extend(self.joiners.get(&joiner).into_iter().flatten());
            next += 1;
        }
        all
    }
}
