//! Runs other programs as steps with a heading each.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error("{step} failed")]
    Failed { step: String },
    #[error("{step} could not be started: {source}")]
    NotStarted { step: String, source: io::Error },
    #[error("{tool} is missing; on Debian: apt-get install {packages}")]
    Missing { tool: &'static str, packages: String },
    #[error("{0}")]
    Tidy(String),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: {problem}", path.display())]
    Unreadable { path: PathBuf, problem: &'static str },
    #[error("conformance checks failed:\n{0}")]
    Conformance(String),
    #[error("fuzzing found:\n{0}")]
    Fuzz(String),
    #[error("less than {min} % of the viable mutants are caught in: {crates}")]
    Mutants { crates: String, min: usize },
}

pub struct Step {
    name: String,
    command: Command,
}

/// A cargo command in the project's folder.
pub fn cargo<const N: usize>(name: &str, args: [&str; N]) -> Step {
    Step::new(name, std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())).args(args)
}

impl Step {
    pub fn new(name: &str, program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        command.current_dir(root());
        Self { name: name.to_owned(), command }
    }

    /// A step that runs a prepared command.
    pub fn of(name: &str, command: Command) -> Self {
        Self { name: name.to_owned(), command }
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn run(mut self) -> Result<(), StepError> {
        eprintln!("\n── {}", self.name);
        match self.command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(StepError::Failed { step: self.name }),
            Err(source) => Err(StepError::NotStarted { step: self.name, source }),
        }
    }

    /// Runs without a heading and returns the standard output.
    pub fn output(mut self) -> Result<String, StepError> {
        let output = self.command.stderr(Stdio::inherit()).output();
        match output {
            Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            Ok(_) => Err(StepError::Failed { step: self.name }),
            Err(source) => Err(StepError::NotStarted { step: self.name, source }),
        }
    }

    /// Runs with a heading and returns the standard error of a success: some linters only warn.
    pub fn errors(mut self) -> Result<String, StepError> {
        eprintln!("\n── {}", self.name);
        let output = self.command.stdout(Stdio::null()).output();
        match output {
            Ok(output) => {
                let errors = String::from_utf8_lossy(&output.stderr).into_owned();
                if output.status.success() {
                    return Ok(errors);
                }
                eprint!("{errors}");
                Err(StepError::Failed { step: self.name })
            }
            Err(source) => Err(StepError::NotStarted { step: self.name, source }),
        }
    }

    /// Runs without any output and returns whether it succeeds.
    pub fn works(mut self) -> bool {
        self.command.output().is_ok_and(|output| output.status.success())
    }
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// Cargo's target folder.
pub fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |folder| root().join(folder))
}
