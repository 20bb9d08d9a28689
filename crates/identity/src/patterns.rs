//! Names by pattern: `*` stands for anything.

use globset::{Glob, GlobMatcher};
use std::fmt;

#[derive(Clone)]
pub struct Pattern(GlobMatcher);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?} is no pattern: {reason}")]
pub struct BadPattern {
    pub pattern: String,
    pub reason: String,
}

impl Pattern {
    pub fn new(pattern: &str) -> Result<Self, BadPattern> {
        let bad = |error: globset::Error| BadPattern { pattern: pattern.to_owned(), reason: error.kind().to_string() };
        Ok(Self(Glob::new(pattern).map_err(bad)?.compile_matcher()))
    }

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
