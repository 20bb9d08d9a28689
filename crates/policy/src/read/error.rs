//! What is wrong with a policy, where, and what to do about it.

use crate::pattern::PatternError;
use crate::pointer::PointerError;
use std::fmt;

/// Both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl Position {
    /// The place of what is built in.
    pub const NOWHERE: Self = Self { line: 0, column: 0 };

    pub fn of_offset(text: &str, offset: usize) -> Self {
        // An offset within a character belongs to it.
        let mut offset = offset.min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        let mut before = text[..offset].rsplit('\n');
        let column = before.next().unwrap_or_default().chars().count() + 1;
        Self { line: before.count() + 1, column }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{position}: {problem}")]
pub struct PolicyError {
    pub position: Position,
    pub(crate) problem: Problem,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Problem {
    #[error("{0}")]
    Syntax(String),
    #[error("unknown key {key:?} in [{table}]")]
    UnknownKey { key: String, table: String, nearest: Option<String>, known: String },
    #[error("{key} has to be {expected}")]
    WrongType { key: String, expected: &'static str },
    #[error("a rule of [roles.{role}] lacks `{key}`")]
    Missing { role: String, key: &'static str },
    #[error("the role {role:?} can't be used: {reason}")]
    Role { role: String, reason: &'static str },
    #[error("{pattern:?} {error}")]
    Pattern { pattern: String, error: PatternError },
    #[error("{pointer:?}: {error}")]
    Pointer { pointer: String, error: PointerError },
    #[error("the condition on {pointer:?} says nothing: it has none of equals, prefix, glob, min and max")]
    NoTest { pointer: String },
    #[error("the empty pointer is the whole document, and conditions are about single values")]
    WholeDocument,
    #[error("min is larger than max, so that nothing fits")]
    EmptyRange,
    #[error("the patterns of {whose} are too large together: {reason}")]
    TooLarge { whose: String, reason: String },
}

impl PolicyError {
    pub fn hint(&self) -> String {
        match &self.problem {
            Problem::Syntax(_) => "correct the file at that place".into(),
            Problem::UnknownKey { nearest: Some(nearest), .. } => format!("did you mean {nearest}?"),
            Problem::UnknownKey { known, .. } => format!("known keys: {known}"),
            Problem::Missing { .. } => {
                "a rule needs effect = \"allow\", \"ask\" or \"deny\", and match = [\"…\"]".into()
            }
            Problem::Role { .. } => "choose another name".into(),
            Problem::Pattern { .. } => "patterns are NAME or SERVER/NAME; * stands for anything".into(),
            Problem::Pointer { .. } | Problem::WholeDocument => "write the way to a value, such as \"/path\"".into(),
            Problem::NoTest { .. } => "say what the value has to be, such as prefix = \"/tmp/\"".into(),
            Problem::WrongType { .. } | Problem::EmptyRange => "correct the value".into(),
            Problem::TooLarge { .. } => "use fewer or simpler patterns".into(),
        }
    }
}

/// What may be meant so, but hardly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    pub position: Position,
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.position, self.text)
    }
}
