//! Errors in a configuration file, with the name of the file and a hint.

use std::io;
use std::path::{Path, PathBuf};
use toolbus_base::{UnsafePath, UnsafeReason};
use toolbus_config::ConfigError;

#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", file.display())]
pub struct ConfigFailure {
    file: PathBuf,
    problem: Box<ConfigProblem>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigProblem {
    #[error("can't be read: {0}")]
    Unreadable(io::Error),
    /// Another user may have written the file, which was found and not given by an option.
    #[error("it is not used, because it {0}")]
    Untrusted(UnsafeReason),
    #[error("{0}")]
    Invalid(#[from] ConfigError),
    #[error("server {server:?} is also in {}", first.display())]
    InBothFiles { server: String, first: PathBuf },
}

impl ConfigProblem {
    pub fn of(error: io::Error) -> Self {
        match UnsafePath::in_chain(&error) {
            Some(found) => Self::Untrusted(found.reason),
            None => Self::Unreadable(error),
        }
    }
}

impl ConfigFailure {
    pub fn new(file: &Path, problem: impl Into<ConfigProblem>) -> Self {
        Self { file: file.to_owned(), problem: Box::new(problem.into()) }
    }

    pub fn hint(&self) -> String {
        match &*self.problem {
            ConfigProblem::Unreadable(_) => "check the path; `toolbus init` writes a commented file".into(),
            ConfigProblem::Untrusted(_) => {
                "if you trust it, name it with --config or TOOLBUS_CONFIG; otherwise work in another folder".into()
            }
            ConfigProblem::Invalid(error) => error.hint(),
            ConfigProblem::InBothFiles { .. } => "rename one of the two".into(),
        }
    }
}
