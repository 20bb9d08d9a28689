//! A host on a real broker with real server processes, driven by workers over the bus.

mod admin;
mod approvals;
mod approvals_shown;
mod audit;
mod catalog;
mod crashing;
mod eras;
mod first_process;
mod gated_disk;
mod joins;
mod journal;
mod journal_failures;
mod legacy;
mod limits;
mod original;
mod orphans;
mod pins;
mod pins_per_process;
mod policy;
mod refusals;
mod support;
mod task_limits;
mod tasks;
mod vendor;
