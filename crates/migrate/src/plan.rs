//! Decides which log and sequence number each message gets, and what is kept beside it. Without I/O: the same contents give
//! the same plan, so that an interrupted move goes on with what is missing.
//!
//! In a partition, every sequence number is that of the folder plus the first number of the partition, so that fences and the
//! ends of agents are moved by addition. In a folder, the messages of all partitions are numbered anew in the order of their
//! acceptance; those of one partition keep their order.

use crate::digest;
use crate::error::MoveError;
use crate::survey::{Contents, Item};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use toolbus_broker::MovedState;
use toolbus_cluster::{Partition, Partitions};
use toolbus_engine::{Millis, Seq, Settled};

/// What one log of the target is to have.
pub struct LogPlan<'a> {
    /// The messages with their new sequence numbers, by mailbox and in order.
    pub messages: Vec<(&'a Item, Seq)>,
    pub ids: Vec<Settled>,
    /// The first sequence number that is not assigned.
    pub next_seq: Seq,
    pub state: MovedState,
}

/// How many settled ids a log remembers, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct IdLimits {
    pub count: usize,
    pub age: Millis,
}

/// Sequence numbers of a folder fit into those of a partition.
const MAX_FOLDER_SEQ: Seq = 1 << 48;

/// The plans of all partitions for the contents of a folder, whose items have their partitions as routes. Ids of settled
/// messages go to every partition: only their fingerprints are kept, which don't tell the mailbox.
pub fn to_partitions<'a>(
    contents: &'a Contents,
    next_seq: Seq,
    state: &MovedState,
    partitions: Partitions,
    limits: IdLimits,
) -> Result<Vec<LogPlan<'a>>, MoveError> {
    if next_seq >= MAX_FOLDER_SEQ {
        return Err(MoveError::TooManyMessages);
    }
    let ids = limits.newest(contents.ids.concat());
    let mut plans: Vec<LogPlan<'a>> = partitions
        .all()
        .map(|partition| LogPlan {
            messages: Vec::new(),
            ids: ids.clone(),
            next_seq: partition.first_seq() + next_seq,
            state: state.of_partition(partition.first_seq(), |mailbox| partitions.of(mailbox) == partition),
        })
        .collect();
    for item in &contents.messages {
        let seq = Partition(item.route).first_seq() + item.seq;
        plans[usize::from(item.route)].messages.push((item, seq));
    }
    Ok(plans)
}

/// The plan of a folder for the contents of all partitions.
pub fn to_folder<'a>(contents: &'a Contents, states: &[MovedState], limits: IdLimits) -> LogPlan<'a> {
    let mut logs: Vec<Vec<&Item>> = states.iter().map(|_| Vec::new()).collect();
    contents.messages.iter().for_each(|item| logs[item.log].push(item));
    logs.iter_mut().for_each(|items| items.sort_unstable_by_key(|item| item.seq));
    let head = |log: usize, at: usize| logs[log].get(at).map(|item| Reverse((item.accepted_at, log, at)));
    let mut heads: BinaryHeap<_> = (0..logs.len()).filter_map(|log| head(log, 0)).collect();
    let mut messages = Vec::with_capacity(contents.messages.len());
    // The new numbers of each log, in the order of its items.
    let mut renumbered: Vec<Vec<Seq>> = logs.iter().map(|items| Vec::with_capacity(items.len())).collect();
    let mut next_seq = 1;
    while let Some(Reverse((_, log, at))) = heads.pop() {
        messages.push((logs[log][at], next_seq));
        renumbered[log].push(next_seq);
        next_seq += 1;
        heads.extend(head(log, at + 1));
    }
    let fence = |log: usize, _: &str, before: Seq| {
        let first_after = logs[log].partition_point(|item| item.seq < before);
        renumbered[log].get(first_after).copied().unwrap_or(next_seq)
    };
    let state = MovedState::joined(states, fence);
    messages.sort_by(|(a, a_seq), (b, b_seq)| (&a.mailbox, a_seq).cmp(&(&b.mailbox, b_seq)));
    LogPlan { messages, ids: limits.newest(contents.ids.concat()), next_seq, state }
}

impl LogPlan<'_> {
    /// The checksum over the messages of several logs.
    pub fn digest(plans: &[Self]) -> u128 {
        digest::of_messages(plans.iter().flat_map(|plan| &plan.messages).map(|(item, _)| (item.lane, item.hash)))
    }
}

impl IdLimits {
    /// The ids that a log remembers of these, oldest first.
    pub fn newest(self, ids: Vec<Settled>) -> Vec<Settled> {
        let by_time: BTreeMap<_, _> = ids.into_iter().map(|id| ((id.at, id.fingerprint), id)).collect();
        let newest = by_time.last_key_value().map_or(0, |((at, _), _)| *at);
        let too_many = by_time.len().saturating_sub(self.count);
        let kept = by_time.into_values().skip(too_many);
        kept.filter(|id| newest.saturating_sub(id.at) <= self.age).collect()
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
