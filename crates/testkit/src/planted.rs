//! Known defects, by name, that can be planted in the engine, the store, the simulated client or the simulated host.

use std::fmt;
use std::str::FromStr;
use toolbus_engine::PlantedBug;

/// A defect to plant in a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// A defect of the engine.
    Engine(PlantedBug),
    /// fsync does nothing.
    NoSync,
    /// A reconnecting client retransmits messages without a receipt under new ids.
    NewIdOnRetry,
    /// A host starts the tool before START is durable.
    StartNotSynced,
    /// A host replies before RESULT is written.
    ResultAfterReply,
    /// A host runs calls whose deadline has passed.
    HostIgnoresDeadline,
    /// A host joins calls of the same tool without comparing their arguments.
    JoinWithoutArguments,
    /// A host joins a call to one whose answer was already collected.
    JoinCollected,
    /// A host accepts a task before its journal entry is durable.
    TaskNotSynced,
}

impl Planted {
    /// All defects.
    pub const ALL: [Self; 20] = [
        Self::Engine(PlantedBug::ReceiptBeforeSync),
        Self::Engine(PlantedBug::AckBySuffix),
        Self::Engine(PlantedBug::DedupForgotten),
        Self::Engine(PlantedBug::DeadlineIgnored),
        Self::Engine(PlantedBug::FoldWithoutWaiting),
        Self::Engine(PlantedBug::AckResultBeforeSync),
        Self::Engine(PlantedBug::NoRedelivery),
        Self::Engine(PlantedBug::WindowIgnored),
        Self::Engine(PlantedBug::CancelByAnyone),
        Self::Engine(PlantedBug::CancelForgotten),
        Self::Engine(PlantedBug::WithdrawnBeforeSync),
        Self::Engine(PlantedBug::ReplyByAnyone),
        Self::NoSync,
        Self::NewIdOnRetry,
        Self::StartNotSynced,
        Self::ResultAfterReply,
        Self::HostIgnoresDeadline,
        Self::JoinWithoutArguments,
        Self::JoinCollected,
        Self::TaskNotSynced,
    ];

    pub(crate) fn in_journal(self) -> Option<toolbus_journal::PlantedBug> {
        match self {
            Self::NoSync => Some(toolbus_journal::PlantedBug::NoSync),
            Self::StartNotSynced => Some(toolbus_journal::PlantedBug::StartNotSynced),
            Self::TaskNotSynced => Some(toolbus_journal::PlantedBug::TaskNotSynced),
            Self::ResultAfterReply => Some(toolbus_journal::PlantedBug::ResultNotWritten),
            _ => None,
        }
    }

    pub(crate) fn in_engine(self) -> Option<PlantedBug> {
        match self {
            Self::Engine(bug) => Some(bug),
            _ => None,
        }
    }
}

impl fmt::Display for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(bug) => write!(f, "{bug:?}"),
            other => write!(f, "{other:?}"),
        }
    }
}

/// The name of a planted bug could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownBug;

impl fmt::Display for UnknownBug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = Planted::ALL.iter().map(ToString::to_string).collect();
        write!(f, "unknown planted bug; known bugs: {}", names.join(", "))
    }
}

impl std::error::Error for UnknownBug {}

impl FromStr for Planted {
    type Err = UnknownBug;

    fn from_str(name: &str) -> Result<Self, UnknownBug> {
        Self::ALL.into_iter().find(|bug| bug.to_string() == name).ok_or(UnknownBug)
    }
}
