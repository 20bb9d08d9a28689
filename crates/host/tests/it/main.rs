//! A host on a real broker with real children, as workers meet it.

mod approvals;
mod audit;
mod catalog;
mod eras;
mod legacy;
mod limits;
mod original;
mod pins;
mod policy;
mod support;
