//! Errors and warnings about a configuration, with their positions and hints.

use crate::position::Position;
use std::fmt;

/// An error in a configuration: where it is, which key it concerns, what is wrong, and how to correct it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Where the error is.
    pub position: Position,
    /// The full name of the key, such as `roles.reader.allow[0]`. Empty if the file can't be parsed.
    pub key: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a key or its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The file is not valid TOML, JSON or YAML, by the parser's message.
    Syntax(String),
    /// There is no such key.
    UnknownKey {
        /// The key that was probably intended.
        nearest: Option<String>,
        /// All keys of the table, separated by commas.
        known: String,
    },
    /// The value has the wrong type, or is none of the possible values.
    Wrong {
        /// Description of the possible values.
        expected: &'static str,
    },
    /// A required key is missing.
    Missing {
        /// What to add.
        hint: &'static str,
    },
    /// The key or its value can't be used.
    Invalid {
        /// Why.
        reason: String,
        /// How to correct it.
        hint: String,
    },
}

impl ConfigError {
    /// How to correct it, for the user.
    pub fn hint(&self) -> String {
        match &self.problem {
            Problem::Syntax(_) => "correct the file at that position".into(),
            Problem::UnknownKey { nearest: Some(nearest), .. } => format!("did you mean {nearest}?"),
            Problem::UnknownKey { known, .. } => format!("known keys: {known}"),
            Problem::Wrong { .. } => "correct the value".into(),
            Problem::Missing { hint } => (*hint).into(),
            Problem::Invalid { hint, .. } => hint.clone(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.position != Position::NOWHERE {
            write!(f, "{}: ", self.position)?;
        }
        let key = &self.key;
        match &self.problem {
            Problem::Syntax(reason) => write!(f, "{reason}"),
            Problem::UnknownKey { .. } => write!(f, "unknown key {key}"),
            Problem::Wrong { expected } => write!(f, "{key} has to be {expected}"),
            Problem::Missing { .. } => write!(f, "{key} is missing"),
            Problem::Invalid { reason, .. } => write!(f, "{key}: {reason}"),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Something in the file that is valid but probably not intended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Where it is.
    pub position: Position,
    /// Description for the user.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.position, self.text)
    }
}
