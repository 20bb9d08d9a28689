//! The static checks: format, house rules, lints, licences, advisories.

use crate::child::Running;
use crate::run::{StepError, cargo, target_folder};
use crate::{tidy, tools};
use std::fs;
use std::process::Command;
use std::time::Duration;

/// How long fetching the advisory database may take.
const FETCH_LIMIT: Duration = Duration::from_secs(60);

pub fn all() -> Result<(), StepError> {
    cargo("format", ["fmt", "--all", "--", "--check"]).run()?;
    tidy::all()?;
    cargo("lints", ["clippy", "--workspace", "--all-targets", "--all-features", "--quiet", "--", "-D", "warnings"])
        .run()?;
    // The parts of the library, which `--all-features` does not tell apart.
    for part in ["client", "host", "broker"] {
        let args = ["check", "--quiet", "--package", "toolbus", "--lib", "--no-default-features", "--features", part];
        cargo(&format!("the library with `{part}` only"), args).run()?;
    }
    tools::cargo_deny()?;
    // `cargo deny` reads the licences of all targets' crates, but builds download only those of this target.
    cargo("fetch the crates of all targets", ["fetch", "--locked", "--quiet"]).run()?;
    cargo("licences and sources", ["deny", "--offline", "--all-features", "check", "bans", "licenses", "sources"])
        .run()?;
    advisories()
}

/// Checks the dependencies for known vulnerabilities. Without the database, which is not on crates.io, the run goes on
/// and says that this was not checked.
fn advisories() -> Result<(), StepError> {
    let log = target_folder().join("advisories.log");
    let mut fetch = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Git must not wait for somebody who types a password.
    fetch.args(["deny", "fetch", "db"]).env("GIT_TERMINAL_PROMPT", "0");
    let fetched = Running::start("fetch the advisories", &mut fetch, &log)?.wait_for_exit(FETCH_LIMIT);
    if fetched.is_ok_and(|status| status.success()) {
        return cargo("advisories", ["deny", "--offline", "--all-features", "check", "advisories"]).run();
    }
    let output = fs::read_to_string(&log).unwrap_or_default();
    let reason = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("timeout");
    eprintln!("\n── advisories\nNOT CHECKED: the advisory database of RustSec can't be fetched ({reason})");
    Ok(())
}
