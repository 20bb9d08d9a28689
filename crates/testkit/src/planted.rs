//! Known defects, by name, wherever they are planted: in the engine, the store, the simulated client or the simulated host.

use std::fmt;
use std::str::FromStr;
use toolbus_engine::PlantedBug;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    Engine(PlantedBug),
    /// Syncs do nothing.
    NoSync,
    /// A client that reconnects sends what was not receipted under a new id.
    NewIdOnRetry,
    /// A host tells the tool before it is safe that the call begins.
    StartNotSynced,
    /// A host tells the caller before the answer is safe.
    ResultAfterReply,
    /// A host runs what comes too late.
    HostIgnoresDeadline,
    /// A host joins calls of the same tool, whatever their arguments.
    JoinWithoutArguments,
    /// A host joins a call to one whose answer was collected.
    JoinCollected,
    /// A host says that it has a task before that is safe.
    TaskNotSynced,
}

impl Planted {
    pub const ALL: [Self; 19] = [
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownBug;

impl fmt::Display for UnknownBug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = Planted::ALL.iter().map(ToString::to_string).collect();
        write!(f, "there is no such planted bug; known are {}", names.join(", "))
    }
}

impl std::error::Error for UnknownBug {}

impl FromStr for Planted {
    type Err = UnknownBug;

    fn from_str(name: &str) -> Result<Self, UnknownBug> {
        Self::ALL.into_iter().find(|bug| bug.to_string() == name).ok_or(UnknownBug)
    }
}
