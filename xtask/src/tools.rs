//! Installs the tools that the checks need if they are missing.

use crate::run::{Step, StepError, cargo, target_folder};
use std::path::PathBuf;

pub fn cargo_nextest() -> Result<(), StepError> {
    install("nextest", "cargo-nextest")
}

pub fn cargo_deny() -> Result<(), StepError> {
    install("deny", "cargo-deny")
}

/// Installs cargo-mutants into the target folder and returns its path: it is needed rarely, and by no other project.
pub fn cargo_mutants() -> Result<PathBuf, StepError> {
    let folder = target_folder().join("tools");
    let program = folder.join("bin/cargo-mutants");
    if !Step::new("cargo-mutants", &program).args(["mutants", "--version"]).works() {
        let install = ["install", "--locked", "cargo-mutants", "--root"];
        cargo("install cargo-mutants", install).arg(&folder).run()?;
    }
    Ok(program)
}

fn install(command: &str, package: &str) -> Result<(), StepError> {
    if cargo(package, [command, "--version"]).works() {
        return Ok(());
    }
    cargo(&format!("install {package}"), ["install", "--locked", package]).run()
}

pub fn python_with_venv() -> Result<(), StepError> {
    // Debian's python3 lacks `ensurepip`, which installs pip into a virtual environment.
    let works = || Step::new("python3", "python3").args(["-c", "import venv, ensurepip"]).works();
    from_debian("python3 with venv", works, &["python3", "python3-venv"])
}

/// libFuzzer is compiled from the sources in its crate.
pub fn cpp_compiler() -> Result<(), StepError> {
    from_debian("a C++ compiler", || Step::new("c++", "c++").arg("--version").works(), &["g++"])
}

pub fn npm() -> Result<(), StepError> {
    from_debian("npm", || Step::new("npm", "npm").arg("--version").works(), &["npm"])
}

pub fn valgrind() -> Result<(), StepError> {
    from_debian("valgrind", || Step::new("valgrind", "valgrind").arg("--version").works(), &["valgrind"])
}

/// Checks unit files; systemd itself need not run.
pub fn systemd_analyze() -> Result<(), StepError> {
    let works = || Step::new("systemd-analyze", "systemd-analyze").arg("--version").works();
    from_debian("systemd-analyze", works, &["systemd"])
}

/// Installs Debian packages as root on a Debian system; elsewhere the error names the missing packages.
fn from_debian(tool: &'static str, works: impl Fn() -> bool, packages: &[&str]) -> Result<(), StepError> {
    if works() {
        return Ok(());
    }
    let apt = |action: &str| {
        let install = Step::new(&format!("apt-get {action}"), "apt-get").env("DEBIAN_FRONTEND", "noninteractive");
        install.arg("--quiet").arg(action)
    };
    if rustix::process::geteuid().is_root() && Step::new("apt-get", "apt-get").arg("--version").works() {
        apt("update").run()?;
        apt("install").arg("--yes").args(packages).run()?;
    }
    if works() { Ok(()) } else { Err(StepError::Missing { tool, packages: packages.join(" ") }) }
}
