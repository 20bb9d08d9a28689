//! Known defects, by name, that can be planted in the engine, the logs, the call machine or the simulated client.

use std::fmt;
use std::str::FromStr;
use toolbus_call::PlantedBug as CallBug;
use toolbus_client::simulation::PlantedBug as ClientBug;
use toolbus_cluster::PlantedBug as ClusterBug;
use toolbus_engine::PlantedBug;
use toolbus_journal::PlantedBug as JournalBug;
use toolbus_worker::simulation::PlantedBug as WorkerBug;

/// A defect to plant in a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// A defect of the engine.
    Engine(PlantedBug),
    /// A defect of a host's journal.
    Journal(JournalBug),
    /// A defect of the call machine.
    Call(CallBug),
    /// A defect of the client of hosts and workers.
    Client(ClientBug),
    /// A defect of the worker's side of a call.
    Worker(WorkerBug),
    /// A defect of the code that runs a partition of a cluster.
    Cluster(ClusterBug),
    /// fsync of the broker's log does nothing.
    NoSync,
    /// A reconnecting client retransmits messages without a receipt under new ids.
    NewIdOnRetry,
}

impl Planted {
    /// All defects.
    pub fn all() -> Vec<Self> {
        let engine = ENGINE.into_iter().map(Self::Engine);
        let journal = JOURNAL.into_iter().map(Self::Journal);
        let call = CALL.into_iter().map(Self::Call);
        let client = CLIENT.into_iter().map(Self::Client);
        let worker = WORKER.into_iter().map(Self::Worker);
        let cluster = CLUSTER.into_iter().map(Self::Cluster);
        engine
            .chain(journal)
            .chain(call)
            .chain(client)
            .chain(worker)
            .chain(cluster)
            .chain([Self::NoSync, Self::NewIdOnRetry])
            .collect()
    }

    pub(crate) fn in_engine(self) -> Option<PlantedBug> {
        if let Self::Engine(bug) = self { Some(bug) } else { None }
    }

    pub(crate) fn in_journal(self) -> Option<JournalBug> {
        if let Self::Journal(bug) = self { Some(bug) } else { None }
    }

    pub(crate) fn in_client(self) -> Option<ClientBug> {
        if let Self::Client(bug) = self { Some(bug) } else { None }
    }

    pub(crate) fn in_worker(self) -> Option<WorkerBug> {
        if let Self::Worker(bug) = self { Some(bug) } else { None }
    }

    pub(crate) fn in_cluster(self) -> Option<ClusterBug> {
        if let Self::Cluster(bug) = self { Some(bug) } else { None }
    }

    pub(crate) fn in_machine(self) -> Option<CallBug> {
        if let Self::Call(bug) = self { Some(bug) } else { None }
    }
}

const ENGINE: [PlantedBug; 13] = [
    PlantedBug::ReceiptBeforeSync,
    PlantedBug::AckBySuffix,
    PlantedBug::DedupForgotten,
    PlantedBug::DeadlineIgnored,
    PlantedBug::FoldWithoutWaiting,
    PlantedBug::AckResultBeforeSync,
    PlantedBug::NoRedelivery,
    PlantedBug::WindowIgnored,
    PlantedBug::CancelByAnyone,
    PlantedBug::CancelForgotten,
    PlantedBug::WithdrawnBeforeSync,
    PlantedBug::ReplyByAnyone,
    PlantedBug::RepetitionTakenForNew,
];

const JOURNAL: [JournalBug; 7] = [
    JournalBug::NoSync,
    JournalBug::StartNotSynced,
    JournalBug::TaskNotSynced,
    JournalBug::ResultNotWritten,
    JournalBug::CorruptionTakenForTornWrite,
    JournalBug::OpenedWithoutSync,
    JournalBug::UnappliedCompacted,
];

const CALL: [CallBug; 23] = [
    CallBug::StartNotSynced,
    CallBug::StartNotWritten,
    CallBug::ResultAfterReply,
    CallBug::CancelNotWritten,
    CallBug::DeadlineIgnored,
    CallBug::CancelLost,
    CallBug::InterruptedRuns,
    CallBug::DiedRuns,
    CallBug::AttemptsUnlimited,
    CallBug::UnsureRuns,
    CallBug::RefusedRuns,
    CallBug::JoinConnected,
    CallBug::JoinCollected,
    CallBug::RunningNotJoined,
    CallBug::TaskNotSynced,
    CallBug::TaskAnswerLost,
    CallBug::DrainStarts,
    CallBug::ShutdownAnswers,
    CallBug::PermitsLeak,
    CallBug::OrderIgnored,
    CallBug::OrphanWithJoiner,
    CallBug::CallerBackIgnored,
    CallBug::TimeoutIgnored,
];

const CLIENT: [ClientBug; 8] = [
    ClientBug::StaleTag,
    ClientBug::NeverAcknowledged,
    ClientBug::AcknowledgedTwice,
    ClientBug::AcknowledgedEarly,
    ClientBug::ExpiredResent,
    ClientBug::NewIdOnResend,
    ClientBug::ReplyWithoutRequest,
    ClientBug::NothingResent,
];

const WORKER: [WorkerBug; 3] =
    [WorkerBug::StopCancels, WorkerBug::DeliveredWithdrawn, WorkerBug::UnconfirmedWithdrawal];

const CLUSTER: [ClusterBug; 8] = [
    ClusterBug::NoExpectedSequence,
    ClusterBug::TwoOutstanding,
    ClusterBug::NewIdOnResend,
    ClusterBug::NoEpochFilter,
    ClusterBug::SyncBeforeAck,
    ClusterBug::GoesOnAfterLease,
    ClusterBug::ReplaySkips,
    ClusterBug::TrimBeforeCopy,
];

impl fmt::Display for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(bug) => write!(f, "{bug:?}"),
            Self::Journal(bug) => write!(f, "Journal{bug:?}"),
            Self::Call(bug) => write!(f, "Call{bug:?}"),
            Self::Worker(bug) => write!(f, "Worker{bug:?}"),
            Self::Client(bug) => write!(f, "Client{bug:?}"),
            Self::Cluster(bug) => write!(f, "Cluster{bug:?}"),
            other => write!(f, "{other:?}"),
        }
    }
}

/// The name of a planted bug could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownBug;

impl fmt::Display for UnknownBug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = Planted::all().iter().map(ToString::to_string).collect();
        write!(f, "unknown planted bug; known bugs: {}", names.join(", "))
    }
}

impl std::error::Error for UnknownBug {}

impl FromStr for Planted {
    type Err = UnknownBug;

    fn from_str(name: &str) -> Result<Self, UnknownBug> {
        Self::all().into_iter().find(|bug| bug.to_string() == name).ok_or(UnknownBug)
    }
}
