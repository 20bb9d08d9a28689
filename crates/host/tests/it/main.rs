//! A host on a real broker with real children, as workers meet it.

mod catalog;
mod eras;
mod legacy;
mod limits;
mod original;
mod policy;
mod support;
