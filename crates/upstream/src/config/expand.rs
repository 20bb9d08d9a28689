//! Expands `${NAME}` and `${NAME:-default}` in the values of a configuration, and puts placeholders in place of
//! `${file:PATH}` and `${exec:CMD}`, which are fetched later. `${env:NAME}`, as some editors write it, is the same as
//! `${NAME}`; a `$` without a brace is literal. The value of a variable is never expanded again.

use crate::secrets::{SecretSettings, Source, split_command};
use std::path::PathBuf;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExpandError {
    Missing(String),
    Open,
    /// A reference without a file or command.
    BadSource,
}

/// Looks up environment variables.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The references in a configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct References {
    pub sources: Vec<Source>,
    /// Names and values of the variables.
    pub variables: Vec<(String, String)>,
}

pub(super) fn expand(text: &str, env: Environment<'_>, references: &mut References) -> Result<String, ExpandError> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        expanded.push_str(&rest[..at]);
        let inner = &rest[at + 2..];
        let end = end_of_reference(inner).ok_or(ExpandError::Open)?;
        match source_of(&inner[..end]) {
            Some(source) => {
                expanded.push_str(&SecretSettings::placeholder(references.sources.len()));
                references.sources.push(source.ok_or(ExpandError::BadSource)?);
            }
            None => expanded.push_str(&value_of(&inner[..end], env, references)?),
        }
        rest = &inner[end + 1..];
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// A brace inside a quoted word of a command doesn't end the reference.
fn end_of_reference(inner: &str) -> Option<usize> {
    if !inner.starts_with("exec:") {
        return inner.find('}');
    }
    let mut quote = None;
    for (at, c) in inner.char_indices() {
        match (quote, c) {
            (None, '}') => return Some(at),
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
    }
    None
}

/// `None`: a variable. `Some(None)`: an invalid source.
fn source_of(reference: &str) -> Option<Option<Source>> {
    if let Some(path) = reference.strip_prefix("file:") {
        let path = path.trim();
        return Some((!path.is_empty()).then(|| Source::File(PathBuf::from(path))));
    }
    reference.strip_prefix("exec:").map(|command| split_command(command).map(Source::Exec))
}

fn value_of(reference: &str, env: Environment<'_>, references: &mut References) -> Result<String, ExpandError> {
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    let name = name.strip_prefix("env:").unwrap_or(name);
    // As in a shell, an empty variable counts as unset if there is a default.
    let value = match (env(name), default) {
        (Some(value), None) => value,
        (Some(value), Some(_)) if !value.is_empty() => value,
        (_, Some(default)) => default.to_owned(),
        (None, None) => return Err(ExpandError::Missing(name.to_owned())),
    };
    references.variables.push((name.to_owned(), value.clone()));
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "A" => Some("one".to_owned()),
            "EMPTY" => Some(String::new()),
            "TRICK" => Some("${exec:rm -rf /}${A}".to_owned()),
            _ => None,
        }
    }

    fn check(text: &str, expected: Result<&str, ExpandError>) {
        assert_eq!(expand(text, &env, &mut References::default()), expected.map(ToOwned::to_owned), "{text}");
    }

    #[test]
    fn variables_are_expanded_with_defaults() {
        check("x${A}y${env:A}", Ok("xoneyone"));
        check("${B:-two} ${A:-two} ${EMPTY:-two}", Ok("two one two"));
        check("[${EMPTY}] [${B:-}]", Ok("[] []"));
        check("$A costs $5", Ok("$A costs $5"));
    }

    #[test]
    fn a_missing_variable_is_named() {
        check("Bearer ${TOKEN}", Err(ExpandError::Missing("TOKEN".into())));
        check("${A", Err(ExpandError::Open));
    }

    #[test]
    fn files_and_commands_leave_a_placeholder() {
        let mut references = References::default();
        let text =
            expand("a ${file:/run/x} ${A} ${exec:jq '{a}' \"b}\"}", &env, &mut references).expect("valid references");
        assert_eq!(text, "a \u{0}0\u{0} one \u{0}1\u{0}");
        let words = ["jq", "{a}", "b}"].map(str::to_owned).to_vec();
        assert_eq!(references.sources, [Source::File("/run/x".into()), Source::Exec(words)]);
        assert_eq!(references.variables, [("A".to_owned(), "one".to_owned())]);
        check("${file:}", Err(ExpandError::BadSource));
        check("${exec: }", Err(ExpandError::BadSource));
        check("${exec:a 'b}", Err(ExpandError::Open));
    }

    #[test]
    fn the_value_of_a_variable_is_not_expanded_again() {
        let mut references = References::default();
        assert_eq!(expand("${TRICK}", &env, &mut references), Ok("${exec:rm -rf /}${A}".to_owned()));
        assert!(references.sources.is_empty());
    }
}
