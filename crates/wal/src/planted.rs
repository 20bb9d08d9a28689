//! Defects that tests inject to prove that they would be detected.

/// A defect of a log. Has no effect without the feature `planted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// A sync does nothing.
    NoSync,
    /// A corrupt end of the log counts as a torn write, although it was durable.
    CorruptionTakenForTornWrite,
    /// Records that an earlier process wrote without a sync are not synced when the log is opened.
    OpenedWithoutSync,
}

impl crate::LogOptions {
    pub(crate) fn has_planted(&self, bug: PlantedBug) -> bool {
        cfg!(feature = "planted") && self.planted == Some(bug)
    }
}
