//! Shipping of audit lines: nothing is lost, order is kept, and a target that is away costs nothing.

mod progress;
mod support;
mod targets;
