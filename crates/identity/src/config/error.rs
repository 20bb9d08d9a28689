//! Errors in the `[auth]` configuration, with position and hint.

use std::fmt;

/// A position in the file; line and column start at 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

/// An error in the `[auth]` configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthConfigError {
    /// The file is not valid TOML.
    #[error("{position}: {reason}")]
    Syntax {
        /// Position in the file.
        position: Position,
        /// The parser's message.
        reason: String,
    },
    /// A key is not known in its table.
    #[error("{position}: unknown key {key:?} in [{table}]")]
    UnknownKey {
        /// Position in the file.
        position: Position,
        /// The unknown key.
        key: String,
        /// The table that contains it.
        table: String,
        /// A known key with a similar name.
        nearest: Option<String>,
        /// All known keys, separated by commas.
        known: String,
    },
    /// A value has the wrong type or is not one of the allowed values.
    #[error("{position}: {key} has to be {expected}")]
    Wrong {
        /// Position in the file.
        position: Position,
        /// The key, with its table.
        key: String,
        /// A description of allowed values.
        expected: &'static str,
    },
    /// A required key is missing.
    #[error("{position}: [{table}] has no {key}")]
    Missing {
        /// Where the table starts.
        position: Position,
        /// The table.
        table: &'static str,
        /// The missing key.
        key: &'static str,
    },
    /// A value has the right type but is invalid.
    #[error("{position}: {key} can't be used: {reason}")]
    Unusable {
        /// Position in the file.
        position: Position,
        /// The key, with its table.
        key: String,
        /// Why it is invalid.
        reason: String,
    },
}

impl AuthConfigError {
    /// Where the error is.
    pub fn position(&self) -> Position {
        match self {
            Self::Syntax { position, .. }
            | Self::UnknownKey { position, .. }
            | Self::Wrong { position, .. }
            | Self::Missing { position, .. }
            | Self::Unusable { position, .. } => *position,
        }
    }

    /// How to fix it.
    pub fn hint(&self) -> String {
        match self {
            Self::Syntax { .. } => "correct the file at that place".into(),
            Self::UnknownKey { nearest: Some(nearest), .. } => format!("did you mean {nearest}?"),
            Self::UnknownKey { known, .. } => format!("known keys: {known}"),
            Self::Wrong { .. } | Self::Unusable { .. } => "correct the value".into(),
            Self::Missing { key: "audience", .. } => {
                "set the audience of tokens for this bus, so that tokens for other services are refused".into()
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
