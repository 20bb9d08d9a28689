//! `${NAME}` and `${NAME:-default}` in the values of a configuration, and the marks for what is fetched later:
//! `${file:PATH}` and `${exec:CMD}`. `${env:NAME}`, as some editors write it, is the same as `${NAME}`; a `$` without a
//! brace is a dollar sign. What a variable holds is never looked at for references again.

use crate::secrets::{SecretSettings, Source, split_command};
use std::path::PathBuf;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExpandError {
    Missing(String),
    Open,
    /// A reference to a file or a command that names none.
    BadSource,
}

/// Where the values of variables come from.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What was met on the way.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Met {
    pub sources: Vec<Source>,
    /// Names of variables and their values.
    pub variables: Vec<(String, String)>,
}

pub(super) fn expand(text: &str, env: Environment<'_>, met: &mut Met) -> Result<String, ExpandError> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        expanded.push_str(&rest[..at]);
        let inner = &rest[at + 2..];
        let end = end_of_reference(inner).ok_or(ExpandError::Open)?;
        match source_of(&inner[..end]) {
            Some(source) => {
                expanded.push_str(&SecretSettings::mark(met.sources.len()));
                met.sources.push(source.ok_or(ExpandError::BadSource)?);
            }
            None => expanded.push_str(&value_of(&inner[..end], env, met)?),
        }
        rest = &inner[end + 1..];
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// A brace in the quoted words of a command does not end it.
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

/// None if it is a variable; Some(None) if it is a source that can't be one.
fn source_of(reference: &str) -> Option<Option<Source>> {
    if let Some(path) = reference.strip_prefix("file:") {
        let path = path.trim();
        return Some((!path.is_empty()).then(|| Source::File(PathBuf::from(path))));
    }
    reference.strip_prefix("exec:").map(|command| split_command(command).map(Source::Exec))
}

fn value_of(reference: &str, env: Environment<'_>, met: &mut Met) -> Result<String, ExpandError> {
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    let name = name.strip_prefix("env:").unwrap_or(name);
    // As in a shell, an empty variable counts as absent where there is a default.
    let value = match (env(name), default) {
        (Some(value), None) => value,
        (Some(value), Some(_)) if !value.is_empty() => value,
        (_, Some(default)) => default.to_owned(),
        (None, None) => return Err(ExpandError::Missing(name.to_owned())),
    };
    met.variables.push((name.to_owned(), value.clone()));
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
        assert_eq!(expand(text, &env, &mut Met::default()), expected.map(ToOwned::to_owned), "{text}");
    }

    #[test]
    fn variables_are_replaced_and_defaults_step_in() {
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
    fn files_and_commands_leave_a_mark() {
        let mut met = Met::default();
        let text = expand("a ${file:/run/x} ${A} ${exec:jq '{a}' \"b}\"}", &env, &mut met).expect("good");
        assert_eq!(text, "a \u{0}0\u{0} one \u{0}1\u{0}");
        let words = ["jq", "{a}", "b}"].map(str::to_owned).to_vec();
        assert_eq!(met.sources, [Source::File("/run/x".into()), Source::Exec(words)]);
        assert_eq!(met.variables, [("A".to_owned(), "one".to_owned())]);
        check("${file:}", Err(ExpandError::BadSource));
        check("${exec: }", Err(ExpandError::BadSource));
        check("${exec:a 'b}", Err(ExpandError::Open));
    }

    #[test]
    fn what_a_variable_holds_is_only_text() {
        let mut met = Met::default();
        assert_eq!(expand("${TRICK}", &env, &mut met), Ok("${exec:rm -rf /}${A}".to_owned()));
        assert!(met.sources.is_empty());
    }
}
