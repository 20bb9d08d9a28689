//! `${NAME}` and `${NAME:-default}` in the values of a configuration. `${env:NAME}`, as some editors write it, is the
//! same as `${NAME}`; a `$` without a brace is a dollar sign.

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExpandError {
    Missing(String),
    Open,
}

/// Where the values of variables come from.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

pub(super) fn expand(text: &str, env: Environment<'_>) -> Result<String, ExpandError> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        expanded.push_str(&rest[..at]);
        let inner = &rest[at + 2..];
        let end = inner.find('}').ok_or(ExpandError::Open)?;
        expanded.push_str(&value_of(&inner[..end], env)?);
        rest = &inner[end + 1..];
    }
    expanded.push_str(rest);
    Ok(expanded)
}

fn value_of(reference: &str, env: Environment<'_>) -> Result<String, ExpandError> {
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    let name = name.strip_prefix("env:").unwrap_or(name);
    // As in a shell, an empty variable counts as absent where there is a default.
    match (env(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(ExpandError::Missing(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&str, ExpandError>) {
        let env = |name: &str| match name {
            "A" => Some("one".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        assert_eq!(expand(text, &env), expected.map(ToOwned::to_owned), "{text}");
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
}
