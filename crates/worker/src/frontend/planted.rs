//! Defects that tests inject to prove that the simulation detects them.

/// A defect that breaks a guarantee. Has no effect without the feature `planted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted"), allow(dead_code))]
pub enum PlantedBug {
    /// A worker that stops cancels its calls.
    StopCancels,
    /// A fail-fast call is withdrawn although its host may have received it.
    DeliveredWithdrawn,
    /// A withdrawal that the broker did not confirm is reported as final.
    UnconfirmedWithdrawal,
}
