//! Glob patterns for names: `*` matches any characters.

use globset::{Glob, GlobMatcher};
use std::fmt;

/// A compiled glob pattern.
#[derive(Clone)]
pub struct Pattern(GlobMatcher);

/// A pattern that does not compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?} is not a valid pattern: {reason}")]
pub struct BadPattern {
    /// The text of the pattern.
    pub pattern: String,
    /// Why it is invalid.
    pub reason: String,
}

impl Pattern {
    /// Compiles a pattern.
    pub fn new(pattern: &str) -> Result<Self, BadPattern> {
        let bad = |error: globset::Error| BadPattern { pattern: pattern.to_owned(), reason: error.kind().to_string() };
        Ok(Self(Glob::new(pattern).map_err(bad)?.compile_matcher()))
    }

    /// Whether the whole name matches.
    pub fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0.glob().glob(), f)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.glob() == other.0.glob()
    }
}
