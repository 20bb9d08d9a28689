//! Conditions on the arguments of a call. An ambiguous value counts against the caller: it satisfies no condition of an
//! `allow`, and every condition of a `deny`.

use crate::normalize::{PathReading, reading_of};
use crate::pointer::{ArgumentsProblem, Found, unescaped};
use globset::{GlobBuilder, GlobMatcher};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

/// One entry of `when`. All of its tests must hold.
#[derive(Debug, Clone)]
pub struct Condition {
    pub(crate) pointer: String,
    pub(crate) slot: usize,
    pub(crate) tests: Vec<Test>,
}

#[derive(Debug, Clone)]
pub enum Test {
    Equals(Scalar),
    Prefix(String),
    Glob(GlobMatcher),
    Min(Number),
    Max(Number),
}

/// A value that is neither an object nor an array.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    Text(String),
    Flag(bool),
    Number(Number),
}

#[derive(Debug, Clone, Copy)]
pub enum Number {
    Whole(i128),
    Float(f64),
}

/// Whether a test holds for a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holds {
    No,
    /// Depends on how the server interprets the value.
    Maybe,
    Yes,
}

impl Holds {
    fn certain(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }

    /// For a value of another type than the test's, which servers may convert.
    fn possible(holds: bool) -> Self {
        if holds { Self::Maybe } else { Self::No }
    }
}

impl Condition {
    pub(crate) fn holds(&self, found: &[Found<'_>]) -> Result<Holds, ArgumentsProblem> {
        let text = match found.get(self.slot) {
            Some(Found::Value(text)) => *text,
            Some(Found::Unclear(problem)) => return Err(*problem),
            Some(Found::Nothing) | None => return Ok(Holds::No),
        };
        let value = Value::of(text)?;
        Ok(self.tests.iter().map(|test| test.holds(&value)).min().unwrap_or(Holds::Yes))
    }
}

enum Value<'d> {
    Null,
    Nested,
    Flag(bool),
    Number(Number, &'d str),
    Text(Cow<'d, str>),
}

impl<'d> Value<'d> {
    fn of(text: &'d str) -> Result<Self, ArgumentsProblem> {
        Ok(match text.as_bytes().first() {
            Some(b'"') => Self::Text(unescaped(text).ok_or(ArgumentsProblem::NotUnicode)?),
            Some(b'{' | b'[') => Self::Nested,
            Some(b'n') => Self::Null,
            Some(b't') => Self::Flag(true),
            Some(b'f') => Self::Flag(false),
            _ => Self::Number(Number::parse(text).ok_or(ArgumentsProblem::NotJson)?, text),
        })
    }
}

impl Test {
    fn holds(&self, value: &Value<'_>) -> Holds {
        match (self, value) {
            (_, Value::Null) => Holds::No,
            (_, Value::Nested) => Holds::Maybe,
            (Self::Equals(Scalar::Text(wanted)), Value::Text(text)) => Holds::certain(wanted == text),
            (Self::Equals(Scalar::Flag(wanted)), Value::Flag(flag)) => Holds::certain(wanted == flag),
            (Self::Equals(Scalar::Number(wanted)), Value::Number(number, _)) => Holds::certain(wanted == number),
            (Self::Equals(wanted), value) => Holds::possible(wanted.to_string() == value.as_text()),
            (Self::Prefix(_) | Self::Glob(_), Value::Text(text)) => self.holds_for_path(text),
            (Self::Prefix(_) | Self::Glob(_), value) => Holds::possible(self.matches(&value.as_text())),
            (Self::Min(min), Value::Number(number, _)) => Holds::certain(number >= min),
            (Self::Max(max), Value::Number(number, _)) => Holds::certain(number <= max),
            (Self::Min(_) | Self::Max(_), Value::Text(text)) => Holds::possible(Number::parse(text.trim()).is_some()),
            (Self::Min(_) | Self::Max(_), Value::Flag(_)) => Holds::No,
        }
    }

    fn holds_for_path(&self, text: &str) -> Holds {
        match reading_of(text) {
            PathReading::One => Holds::certain(self.matches(text)),
            PathReading::Traversal => Holds::Maybe,
            PathReading::Two(other) => match (self.matches(text), self.matches(&other)) {
                (true, true) => Holds::Yes,
                (false, false) => Holds::No,
                _ => Holds::Maybe,
            },
        }
    }

    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Prefix(prefix) => text.starts_with(prefix.as_str()),
            Self::Glob(glob) => glob.is_match(text),
            _ => false,
        }
    }

    /// In a glob on a value, `*` doesn't match `/`; `**` does.
    pub fn glob(pattern: &str) -> Result<Self, globset::Error> {
        let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build()?;
        Ok(Self::Glob(glob.compile_matcher()))
    }
}

impl Value<'_> {
    fn as_text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Flag(flag) => Cow::Borrowed(if *flag { "true" } else { "false" }),
            Self::Number(_, text) => Cow::Borrowed(text),
            Self::Null | Self::Nested => Cow::Borrowed(""),
        }
    }
}

impl Number {
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(whole) = text.parse() {
            return Some(Self::Whole(whole));
        }
        text.parse().ok().filter(|float: &f64| !float.is_nan()).map(Self::Float)
    }

    fn as_float(self) -> f64 {
        match self {
            Self::Whole(whole) => whole as f64,
            Self::Float(float) => float,
        }
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Whole(a), Self::Whole(b)) => Some(a.cmp(b)),
            (a, b) => a.as_float().partial_cmp(&b.as_float()),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(whole) => write!(f, "{whole}"),
            Self::Float(float) => write!(f, "{float}"),
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equals(Scalar::Text(text)) => write!(f, "is {text:?}"),
            Self::Equals(value) => write!(f, "is {value}"),
            Self::Prefix(prefix) => write!(f, "begins with {prefix:?}"),
            Self::Glob(glob) => write!(f, "matches {:?}", glob.glob().glob()),
            Self::Min(min) => write!(f, "is at least {min}"),
            Self::Max(max) => write!(f, "is at most {max}"),
        }
    }
}

/// For example `/path begins with "/tmp/"`.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.pointer)?;
        for (index, test) in self.tests.iter().enumerate() {
            write!(f, "{}{test}", if index == 0 { " " } else { " and " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(test: &Test, json: &str, holds: Holds) {
        let value = Value::of(json).unwrap_or_else(|_| panic!("{json}"));
        assert_eq!(test.holds(&value), holds, "{test} {json}");
    }

    #[test]
    fn equality_is_certain_only_for_values_of_the_same_type() {
        let number = Test::Equals(Scalar::Number(Number::Whole(1)));
        check(&number, "1", Holds::Yes);
        check(&number, "1.0", Holds::Yes);
        check(&number, "1e0", Holds::Yes);
        check(&number, "\"1\"", Holds::Maybe);
        check(&number, "2", Holds::No);
        check(&number, "true", Holds::No);
        check(&number, "null", Holds::No);
        check(&number, "[1]", Holds::Maybe);
        let text = Test::Equals(Scalar::Text("a\"b".into()));
        check(&text, r#""a\"b""#, Holds::Yes);
        check(&text, r#""\u0061\u0022b""#, Holds::Yes);
        let large = Test::Equals(Scalar::Number(Number::Whole(9_007_199_254_740_993)));
        check(&large, "9007199254740993", Holds::Yes);
        check(&large, "9007199254740992", Holds::No);
        for flag in [true, false] {
            let equals = Test::Equals(Scalar::Flag(flag));
            check(&equals, "true", Holds::certain(flag));
            check(&equals, "false", Holds::certain(!flag));
        }
    }

    #[test]
    fn min_and_max_compare_numbers_exactly() {
        check(&Test::Min(Number::Whole(0)), "-0", Holds::Yes);
        check(&Test::Min(Number::Whole(0)), "-1e-300", Holds::No);
        check(&Test::Max(Number::Whole(100)), "100.0", Holds::Yes);
        check(&Test::Max(Number::Whole(100)), "100.5", Holds::No);
        check(&Test::Max(Number::Whole(100)), "1e400", Holds::No);
        check(&Test::Max(Number::Whole(100)), "\"5\"", Holds::Maybe);
        check(&Test::Max(Number::Whole(100)), "\"five\"", Holds::No);
        check(&Test::Max(Number::Whole(100)), "170141183460469231731687303715884105728", Holds::No);
    }

    #[test]
    fn path_traversal_never_satisfies_a_path_condition_for_certain() {
        let prefix = Test::Prefix("/tmp/".into());
        check(&prefix, "\"/tmp/a\"", Holds::Yes);
        check(&prefix, "\"/etc/a\"", Holds::No);
        check(&prefix, "\"/tmp/../etc\"", Holds::Maybe);
        check(&prefix, "\"/etc/../tmp/x\"", Holds::Maybe);
        check(&prefix, "\"//tmp/x\"", Holds::Maybe);
        check(&prefix, "\"//etc/x\"", Holds::No);
        check(&prefix, "\"/tmp//x\"", Holds::Yes);
        check(&prefix, "\"/t%6Dp/x\"", Holds::Maybe);
        let glob = Test::glob("/tmp/*.txt").expect("valid glob");
        check(&glob, "\"/tmp/a.txt\"", Holds::Yes);
        check(&glob, "\"/tmp/a/b.txt\"", Holds::No);
        check(&glob, "\"/tmp/%2e%2e/b.txt\"", Holds::Maybe);
    }
}
