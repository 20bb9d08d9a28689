//! What a move has moved, on both sides.

use crate::error::MoveError;

/// The counts of one side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// Pending messages.
    pub messages: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Ids of settled messages, which are remembered for deduplication.
    pub ids: u64,
    /// Mailboxes of hosts whose journal is known.
    pub claims: u64,
    /// Those of them that are fenced.
    pub fences: u64,
    /// Names of agents whose generation is known.
    pub generations: u64,
    /// Agents and their keys' records.
    pub agents: u64,
    /// Hosts with manifests.
    pub hosts: u64,
    /// Names of tools, resources and prompts that have an owner.
    pub names: u64,
    /// Checksum over messages, ids and state, comparable between the sides.
    pub checksum: u128,
}

/// The outcome of a move.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MoveReport {
    /// The source.
    pub source: Totals,
    /// The target; `None` if nothing was written.
    pub target: Option<Totals>,
    /// Messages of agents that have ended, and corrupt ones, which were not moved.
    pub left_out: u64,
    /// Messages that this run has written. The others were there from an earlier run.
    pub written: u64,
    /// An earlier run had moved everything, and this one only finished it.
    pub was_complete: bool,
}

impl MoveReport {
    /// Fails unless both sides have the same.
    pub(crate) fn check(&self) -> Result<(), MoveError> {
        match self.target.as_ref() == Some(&self.source) {
            true => Ok(()),
            false => Err(MoveError::Unequal { what: "totals" }),
        }
    }
}
