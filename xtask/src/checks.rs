//! What is checked without running the product.

use crate::run::{StepError, cargo};
use crate::{tidy, tools};

pub fn all() -> Result<(), StepError> {
    cargo("format", ["fmt", "--all", "--", "--check"]).run()?;
    tidy::all()?;
    cargo("lints", ["clippy", "--workspace", "--all-targets", "--all-features", "--quiet", "--", "-D", "warnings"])
        .run()?;
    tools::cargo_deny()?;
    // Licences are read from the crates of all targets, and builds have downloaded only those of this one.
    cargo("fetch the crates of all targets", ["fetch", "--locked", "--quiet"]).run()?;
    cargo("licences and sources", ["deny", "--offline", "--all-features", "check", "bans", "licenses", "sources"]).run()
}
