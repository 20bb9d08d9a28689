//! What is wrong with `[auth]`, where, and what to do about it.

use std::fmt;

/// Both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthConfigError {
    #[error("{position}: {reason}")]
    Syntax { position: Position, reason: String },
    #[error("{position}: unknown key {key:?} in [{table}]")]
    UnknownKey { position: Position, key: String, table: String, nearest: Option<String>, known: String },
    #[error("{position}: {key} has to be {expected}")]
    Wrong { position: Position, key: String, expected: &'static str },
    #[error("{position}: [{table}] has no {key}")]
    Missing { position: Position, table: &'static str, key: &'static str },
    #[error("{position}: {key} can't be used: {reason}")]
    Unusable { position: Position, key: String, reason: String },
}

impl AuthConfigError {
    pub fn position(&self) -> Position {
        match self {
            Self::Syntax { position, .. }
            | Self::UnknownKey { position, .. }
            | Self::Wrong { position, .. }
            | Self::Missing { position, .. }
            | Self::Unusable { position, .. } => *position,
        }
    }

    pub fn hint(&self) -> String {
        match self {
            Self::Syntax { .. } => "correct the file at that place".into(),
            Self::UnknownKey { nearest: Some(nearest), .. } => format!("did you mean {nearest}?"),
            Self::UnknownKey { known, .. } => format!("known keys: {known}"),
            Self::Wrong { .. } | Self::Unusable { .. } => "correct the value".into(),
            Self::Missing { key: "audience", .. } => {
                "name what tokens for this bus are issued for: tokens for others must not be good here".into()
            }
            Self::Missing { .. } => "add it".into(),
        }
    }
}

impl Position {
    pub(super) fn of_offset(text: &str, offset: usize) -> Self {
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
