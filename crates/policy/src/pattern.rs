//! `NAME` and `SERVER/NAME` patterns. Both parts are matched separately, because another server may have a tool whose
//! own name is `SERVER/NAME`.

use globset::{Glob, GlobBuilder};

pub const MAX_PATTERN_LEN: usize = 1024;

#[derive(Debug, Clone)]
pub struct Pattern {
    pub text: String,
    /// `None` matches every server.
    pub server: Option<Glob>,
    pub name: Glob,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("is empty")]
    Empty,
    #[error("is longer than {MAX_PATTERN_LEN} bytes")]
    TooLong,
    #[error("is not a pattern: {0}")]
    Glob(String),
    #[error("has a / inside brackets in the server part")]
    SplitGroup,
}

impl Pattern {
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        match text.len() {
            0 => return Err(PatternError::Empty),
            1..=MAX_PATTERN_LEN => {}
            _ => return Err(PatternError::TooLong),
        }
        let (server, name) = match split_server(text) {
            Some((server, _)) if is_open(server) => return Err(PatternError::SplitGroup),
            Some(("", _) | (_, "")) => return Err(PatternError::Empty),
            Some((server, name)) => (Some(glob(server)?), name),
            None => (None, text),
        };
        Ok(Self { text: text.to_owned(), server, name: glob(name)? })
    }

    /// Matches only this name, of every server.
    pub fn exact(name: &str) -> Self {
        // Backslashes stay literal: `escape` uses brackets.
        let glob = GlobBuilder::new(&globset::escape(name)).literal_separator(false).backslash_escape(false).build();
        Self { text: name.to_owned(), server: None, name: glob.expect("an escaped name is a valid pattern") }
    }

    /// Matches every name of every server.
    pub fn everything() -> Self {
        Self::parse("**").expect("a valid pattern")
    }

    pub fn matches_any_name(&self) -> bool {
        is_everything(&self.name)
    }

    /// Whether it matches URIs. Servers don't have to list every resource.
    pub fn matches_uris(&self) -> bool {
        self.name.glob().contains(':')
    }
}

pub fn is_everything(glob: &Glob) -> bool {
    matches!(glob.glob(), "*" | "**")
}

/// The part before the first slash is a server, unless it is the scheme of a URI as in `file:///x`.
fn split_server(text: &str) -> Option<(&str, &str)> {
    text.split_once('/').filter(|(first, _)| !first.ends_with(':'))
}

fn is_open(part: &str) -> bool {
    let open = |from, to| part.rfind(from).is_some_and(|at| !part[at..].contains(to));
    open('{', '}') || open('[', ']')
}

/// `*` also matches slashes: names have no directories.
fn glob(text: &str) -> Result<Glob, PatternError> {
    let glob = GlobBuilder::new(text).literal_separator(false).backslash_escape(true).build();
    glob.map_err(|error| PatternError::Glob(error.kind().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (Option<String>, String) {
        let pattern = Pattern::parse(text).expect("valid pattern");
        (pattern.server.map(|server| server.glob().to_owned()), pattern.name.glob().to_owned())
    }

    #[test]
    fn the_part_before_the_first_slash_is_a_server_unless_it_is_a_scheme() {
        assert_eq!(parts("read_*"), (None, "read_*".into()));
        assert_eq!(parts("files/read_*"), (Some("files".into()), "read_*".into()));
        assert_eq!(parts("file:///pub/**"), (None, "file:///pub/**".into()));
        assert_eq!(parts("files/file:///pub/**"), (Some("files".into()), "file:///pub/**".into()));
        assert_eq!(parts("*/a/b"), (Some("*".into()), "a/b".into()));
        assert_eq!(parts("{http,https}://x/**"), (None, "{http,https}://x/**".into()));
    }

    #[test]
    fn invalid_patterns_are_rejected() {
        assert_eq!(Pattern::parse("").err(), Some(PatternError::Empty));
        assert_eq!(Pattern::parse("files/").err(), Some(PatternError::Empty));
        assert_eq!(Pattern::parse("{a/b,c}").err(), Some(PatternError::SplitGroup));
        assert!(matches!(Pattern::parse("a["), Err(PatternError::Glob(_))));
        assert_eq!(Pattern::parse(&"a".repeat(1025)).err(), Some(PatternError::TooLong));
    }
}
