//! Known defects, to check that the simulation finds them.

/// A defect of the code that runs a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// Appends don't name the position that they expect.
    NoExpectedSequence,
    /// The next append is sent before the outcome of the previous one is known.
    TwoOutstanding,
    /// An append that is sent again has another id.
    NewIdOnResend,
    /// Entries of deposed owners are replayed.
    NoEpochFilter,
    /// An append without an answer counts as durable.
    SyncBeforeAck,
    /// An owner serves on although nothing was confirmed for the time after which it has to stop.
    GoesOnAfterLease,
    /// Replay skips an entry.
    ReplaySkips,
    /// A segment is purged when the next one is created, before its live records were copied.
    TrimBeforeCopy,
}

/// True if the defect is planted. Always false without the feature `planted`.
pub(crate) fn has(planted: Option<PlantedBug>, bug: PlantedBug) -> bool {
    cfg!(feature = "planted") && planted == Some(bug)
}
