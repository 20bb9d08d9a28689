//! `NAME` and `SERVER/NAME` patterns. The two parts are kept apart: a tool of another server might be called
//! `SERVER/NAME` all by itself.

use globset::{Glob, GlobBuilder};

pub const LONGEST_PATTERN: usize = 1024;

#[derive(Debug, Clone)]
pub struct Pattern {
    pub text: String,
    /// None means every server.
    pub server: Option<Glob>,
    pub name: Glob,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("is empty")]
    Empty,
    #[error("is longer than {LONGEST_PATTERN} bytes")]
    TooLong,
    #[error("is not a pattern: {0}")]
    Glob(String),
    #[error("has a / within brackets before the server's name ends")]
    SplitGroup,
}

impl Pattern {
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        match text.len() {
            0 => return Err(PatternError::Empty),
            1..=LONGEST_PATTERN => {}
            _ => return Err(PatternError::TooLong),
        }
        let (server, name) = match named_server(text) {
            Some((server, _)) if is_open(server) => return Err(PatternError::SplitGroup),
            Some(("", _) | (_, "")) => return Err(PatternError::Empty),
            Some((server, name)) => (Some(glob(server)?), name),
            None => (None, text),
        };
        Ok(Self { text: text.to_owned(), server, name: glob(name)? })
    }

    pub fn is_any_name(&self) -> bool {
        is_everything(&self.name)
    }

    /// Whether it is about addresses, of which lists need not name all.
    pub fn is_about_addresses(&self) -> bool {
        self.name.glob().contains(':')
    }
}

pub fn is_everything(glob: &Glob) -> bool {
    matches!(glob.glob(), "*" | "**")
}

/// What stands before the first slash is a server, unless it is the scheme of an address as in `file:///x`.
fn named_server(text: &str) -> Option<(&str, &str)> {
    text.split_once('/').filter(|(first, _)| !first.ends_with(':'))
}

fn is_open(part: &str) -> bool {
    let open = |from, to| part.rfind(from).is_some_and(|at| !part[at..].contains(to));
    open('{', '}') || open('[', ']')
}

/// `*` stands for anything, slashes included: names have no folders.
fn glob(text: &str) -> Result<Glob, PatternError> {
    let glob = GlobBuilder::new(text).literal_separator(false).backslash_escape(true).build();
    glob.map_err(|error| PatternError::Glob(error.kind().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (Option<String>, String) {
        let pattern = Pattern::parse(text).expect("a pattern");
        (pattern.server.map(|server| server.glob().to_owned()), pattern.name.glob().to_owned())
    }

    #[test]
    fn what_stands_before_the_first_slash_is_a_server_but_not_a_scheme() {
        assert_eq!(parts("read_*"), (None, "read_*".into()));
        assert_eq!(parts("files/read_*"), (Some("files".into()), "read_*".into()));
        assert_eq!(parts("file:///pub/**"), (None, "file:///pub/**".into()));
        assert_eq!(parts("files/file:///pub/**"), (Some("files".into()), "file:///pub/**".into()));
        assert_eq!(parts("*/a/b"), (Some("*".into()), "a/b".into()));
        assert_eq!(parts("{http,https}://x/**"), (None, "{http,https}://x/**".into()));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        assert_eq!(Pattern::parse("").err(), Some(PatternError::Empty));
        assert_eq!(Pattern::parse("files/").err(), Some(PatternError::Empty));
        assert_eq!(Pattern::parse("{a/b,c}").err(), Some(PatternError::SplitGroup));
        assert!(matches!(Pattern::parse("a["), Err(PatternError::Glob(_))));
        assert_eq!(Pattern::parse(&"a".repeat(1025)).err(), Some(PatternError::TooLong));
    }
}
