//! Defects that tests inject to prove that they would be detected.

use toolbus_wal::PlantedBug as LogBug;

/// A defect that breaks a guarantee. Has no effect without the feature `planted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// A sync does nothing.
    NoSync,
    /// An append of START returns when it is written, before it is durable.
    StartNotSynced,
    /// An append of a task returns when it is written, before it is durable.
    TaskNotSynced,
    /// An append of RESULT that does not wait for a sync returns although it is not written.
    ResultNotWritten,
    /// A corrupt end of the log counts as a torn write, although it was durable.
    CorruptionTakenForTornWrite,
    /// Entries that an earlier process wrote without a sync are not synced when the journal is opened.
    OpenedWithoutSync,
    /// Compaction drops entries that are not in the index yet.
    UnappliedCompacted,
}

impl PlantedBug {
    /// The same defect of the log below.
    pub(crate) fn of_log(self) -> Option<LogBug> {
        match self {
            Self::NoSync => Some(LogBug::NoSync),
            Self::CorruptionTakenForTornWrite => Some(LogBug::CorruptionTakenForTornWrite),
            Self::OpenedWithoutSync => Some(LogBug::OpenedWithoutSync),
            _ => None,
        }
    }
}

impl crate::LogOptions {
    pub(crate) fn has_planted(&self, bug: PlantedBug) -> bool {
        cfg!(feature = "planted") && self.planted == Some(bug)
    }
}
