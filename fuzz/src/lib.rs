//! Fuzz targets: functions that take any bytes and panic if a property of the shipped code does not hold.
//!
//! `cargo xtask fuzz` runs them with libFuzzer. Each target has seeds in `corpus/TARGET`, which every test run checks.

mod input;
mod json;
mod memory;
mod targets;

pub use targets::TARGETS;

/// The environment variable with the name of the target. All targets are in one program, which is built once.
pub const TARGET_VARIABLE: &str = "TOOLBUS_FUZZ_TARGET";

/// A target's function.
pub type Target = fn(&[u8]);

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, target)| *target)
}
