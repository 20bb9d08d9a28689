//! Errors in a configuration file, with their position and a hint.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use toolbus_identity::AuthConfigError;
use toolbus_policy::PolicyError;
use toolbus_upstream::ConfigError;

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
    #[error("{0}: {1}")]
    Syntax(Position, String),
    #[error("{position}: unknown key {key:?}")]
    UnknownKey { position: Position, key: String, nearest: Option<String>, known: String },
    #[error("{position}: {key} has to be {expected}")]
    WrongType { position: Position, key: String, expected: &'static str },
    #[error("{0}")]
    Servers(ConfigError),
    #[error("{0}")]
    Policy(PolicyError),
    #[error("{0}")]
    Auth(AuthConfigError),
    #[error("server {server:?} is also in {}", first.display())]
    InBothFiles { server: String, first: PathBuf },
}

/// Line and column, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl Position {
    pub fn of_offset(text: &str, offset: usize) -> Self {
        let mut before = text.get(..offset).unwrap_or(text).rsplit('\n');
        let column = before.next().unwrap_or_default().chars().count() + 1;
        Self { line: before.count() + 1, column }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

impl ConfigProblem {
    pub fn in_file(self, file: &Path) -> ConfigFailure {
        ConfigFailure { file: file.to_owned(), problem: Box::new(self) }
    }

    fn hint(&self) -> String {
        match self {
            Self::Unreadable(_) => "check the path; `toolbus init` writes a commented file".into(),
            Self::Syntax(..) => "correct the file at that position".into(),
            Self::UnknownKey { nearest: Some(nearest), .. } => format!("did you mean {nearest}?"),
            Self::UnknownKey { known, .. } => format!("known keys: {known}"),
            Self::WrongType { .. } => "correct the value".into(),
            Self::Auth(error) => error.hint(),
            Self::Servers(error) => error.hint(),
            Self::Policy(error) => error.hint(),
            Self::InBothFiles { .. } => "rename one of the two".into(),
        }
    }
}

impl ConfigFailure {
    pub fn hint(&self) -> String {
        self.problem.hint()
    }
}
