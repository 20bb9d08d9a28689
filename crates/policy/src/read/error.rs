//! Errors and warnings about a policy, with their positions and hints.

use crate::pattern::PatternError;
use crate::pointer::PointerError;
use std::fmt;

/// A position in a file. Lines and columns are counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line number.
    pub line: usize,
    /// Column number, in characters.
    pub column: usize,
}

impl Position {
    /// The position of built-in rules, which are in no file.
    pub const NOWHERE: Self = Self { line: 0, column: 0 };

    /// The position of a byte offset in the text.
    pub fn of_offset(text: &str, offset: usize) -> Self {
        // An offset inside a character is moved to its start.
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

/// An error in `[roles]` or `[limits]`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{position}: {problem}")]
pub struct PolicyError {
    /// Where the error is.
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
    #[error("invalid role {role:?}: {reason}")]
    Role { role: String, reason: &'static str },
    #[error("{pattern:?} {error}")]
    Pattern { pattern: String, error: PatternError },
    #[error("{pointer:?}: {error}")]
    Pointer { pointer: String, error: PointerError },
    #[error("the condition on {pointer:?} has no test: use equals, prefix, glob, min or max")]
    NoTest { pointer: String },
    #[error("the empty pointer refers to the whole document, but a condition needs a single value")]
    WholeDocument,
    #[error("min is larger than max, so no value matches")]
    EmptyRange,
    #[error("the patterns of {scope} are too large: {reason}")]
    TooLarge { scope: String, reason: String },
}

impl PolicyError {
    /// How to correct it, for the user.
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
            Problem::Pointer { .. } | Problem::WholeDocument => "write the path of a value, such as \"/path\"".into(),
            Problem::NoTest { .. } => "add a test such as prefix = \"/tmp/\"".into(),
            Problem::WrongType { .. } | Problem::EmptyRange => "correct the value".into(),
            Problem::TooLarge { .. } => "use fewer or simpler patterns".into(),
        }
    }
}

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
