//! The static checks: format, house rules, lints, licences.

use crate::run::{StepError, cargo};
use crate::{tidy, tools};

pub fn all() -> Result<(), StepError> {
    cargo("format", ["fmt", "--all", "--", "--check"]).run()?;
    tidy::all()?;
    cargo("lints", ["clippy", "--workspace", "--all-targets", "--all-features", "--quiet", "--", "-D", "warnings"])
        .run()?;
    tools::cargo_deny()?;
    // `cargo deny` reads the licences of all targets' crates, but builds download only those of this target.
    cargo("fetch the crates of all targets", ["fetch", "--locked", "--quiet"]).run()?;
    cargo("licences and sources", ["deny", "--offline", "--all-features", "check", "bans", "licenses", "sources"]).run()
}
