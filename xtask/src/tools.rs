//! Tools that the checks need, installed by package name where they are missing.

use crate::run::{StepError, cargo};

pub fn cargo_nextest() -> Result<(), StepError> {
    install("nextest", "cargo-nextest")
}

pub fn cargo_deny() -> Result<(), StepError> {
    install("deny", "cargo-deny")
}

fn install(command: &str, package: &str) -> Result<(), StepError> {
    if cargo(package, [command, "--version"]).works() {
        return Ok(());
    }
    cargo(&format!("install {package}"), ["install", "--locked", package]).run()
}
