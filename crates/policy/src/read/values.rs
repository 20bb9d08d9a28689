//! Reads single TOML values with their positions.

use super::error::{PolicyError, Position, Problem, Warning};
use crate::condition::Number;
use crate::limits::{Limit, parse_rate, parse_size, parse_time, time_of};
use crate::unmatched::nearest;
use std::borrow::Cow;
use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub type Value<'a> = Spanned<DeValue<'a>>;
pub type Key<'a> = Spanned<Cow<'a, str>>;

pub struct Reader<'a> {
    text: &'a str,
    /// Byte offset of the start of each line.
    lines: Vec<usize>,
    pub warnings: Vec<Warning>,
}

impl<'a> Reader<'a> {
    pub fn new(text: &'a str) -> Self {
        let lines = std::iter::once(0).chain(memchr::memchr_iter(b'\n', text.as_bytes()).map(|at| at + 1)).collect();
        Self { text, lines, warnings: Vec::new() }
    }

    pub fn position(&self, span: Range<usize>) -> Position {
        let before = self.lines.partition_point(|begin| *begin <= span.start).max(1);
        let begin = self.lines[before - 1];
        let in_line = Position::of_offset(&self.text[begin..], span.start - begin);
        Position { line: before, ..in_line }
    }

    pub fn warn(&mut self, position: Position, text: String) {
        self.warnings.push(Warning { position, text });
    }

    /// In file order, so that the first error in the file is the one reported.
    pub fn table<'v, 'd>(
        &self,
        key: &str,
        value: &'v Value<'d>,
        expected: &'static str,
    ) -> Result<Vec<(&'v Key<'d>, &'v Value<'d>)>, PolicyError> {
        let table: &DeTable<'_> = value.get_ref().as_table().ok_or_else(|| self.wrong(key, value, expected))?;
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        Ok(entries)
    }

    pub fn list<'v, 'd>(
        &self,
        key: &str,
        value: &'v Value<'d>,
        expected: &'static str,
    ) -> Result<Vec<&'v Value<'d>>, PolicyError> {
        let list = value.get_ref().as_array().ok_or_else(|| self.wrong(key, value, expected))?;
        Ok(list.iter().collect())
    }

    /// Each string with its position.
    pub fn texts<'v>(&self, key: &str, value: &'v Value<'_>) -> Result<Vec<(&'v str, Position)>, PolicyError> {
        let list = self.list(key, value, "a list of strings")?;
        list.into_iter().map(|item| Ok((self.text(key, item)?, self.position(item.span())))).collect()
    }

    pub fn text<'v>(&self, key: &str, value: &'v Value<'_>) -> Result<&'v str, PolicyError> {
        value.get_ref().as_str().ok_or_else(|| self.wrong(key, value, "a string"))
    }

    pub fn flag(&self, key: &str, value: &Value<'_>) -> Result<bool, PolicyError> {
        value.get_ref().as_bool().ok_or_else(|| self.wrong(key, value, "true or false"))
    }

    pub fn number(&self, key: &str, value: &Value<'_>) -> Result<Number, PolicyError> {
        number_of(value.get_ref()).ok_or_else(|| self.wrong(key, value, "a number"))
    }

    /// Returns false if the key doesn't belong to a limit.
    pub fn limit(&self, limit: &mut Limit, table: &str, key: &str, value: &Value<'_>) -> Result<bool, PolicyError> {
        let path = format!("{table}.{key}");
        let text = value.get_ref().as_str();
        let wrong = |expected| self.wrong(&path, value, expected);
        match key {
            "rate" => {
                let rate = text.and_then(parse_rate);
                limit.rate = Some(rate.ok_or_else(|| wrong("a rate such as \"60/min\" or \"10/s\""))?);
            }
            "concurrency" => {
                let count = whole(value.get_ref()).and_then(|count| u32::try_from(count).ok());
                let count = count.and_then(NonZeroU32::new);
                limit.concurrency = Some(count.ok_or_else(|| wrong("a whole number of at least 1"))?);
            }
            "max_result" => {
                let bytes =
                    whole(value.get_ref()).and_then(|bytes| u64::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
                let size = text.and_then(parse_size).or(bytes);
                limit.max_result = Some(size.ok_or_else(|| wrong("a size such as \"1MiB\" or \"64KiB\""))?);
            }
            "deadline" => {
                let time = text.and_then(parse_time).or_else(|| seconds(value.get_ref()));
                limit.deadline = Some(time.ok_or_else(|| wrong("a time such as \"30s\" or \"5m\""))?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub fn wrong(&self, key: &str, value: &Value<'_>, expected: &'static str) -> PolicyError {
        let problem = Problem::WrongType { key: key.to_owned(), expected };
        PolicyError { position: self.position(value.span()), problem }
    }

    pub fn unknown(&self, key: &Key<'_>, table: &str, known: &[&str]) -> PolicyError {
        let problem = Problem::UnknownKey {
            key: key.get_ref().to_string(),
            table: table.to_owned(),
            nearest: nearest(key.get_ref(), known.iter().copied()).map(str::to_owned),
            known: known.join(", "),
        };
        PolicyError { position: self.position(key.span()), problem }
    }
}

pub fn number_of(value: &DeValue<'_>) -> Option<Number> {
    match value {
        DeValue::Integer(_) => whole(value).map(Number::Whole),
        DeValue::Float(float) => {
            let float: f64 = float.as_str().replace('_', "").parse().ok()?;
            float.is_finite().then_some(Number::Float(float))
        }
        _ => None,
    }
}

fn whole(value: &DeValue<'_>) -> Option<i128> {
    let integer = value.as_integer()?;
    i128::from_str_radix(&integer.as_str().replace('_', ""), integer.radix()).ok()
}

fn seconds(value: &DeValue<'_>) -> Option<Duration> {
    match number_of(value)? {
        Number::Whole(whole) => time_of(whole as f64),
        Number::Float(float) => time_of(float),
    }
}
