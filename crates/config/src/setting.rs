//! A value with its name and position, and typed access to it.

use crate::document::Table;
use crate::error::{ConfigError, Problem};
use crate::position::Position;
use crate::values::parse_duration;
use std::time::Duration;

/// A value in a file.
#[derive(Clone)]
pub struct Setting {
    /// The full name of the key; an item of a list has its index.
    pub path: String,
    /// Where the value starts.
    pub position: Position,
    /// The value itself.
    pub value: Value,
}

/// The types of all file formats.
#[derive(Clone)]
pub enum Value {
    /// A string.
    Text(String),
    /// A string that is used as it is, without expanding references in it. No parser makes it.
    Literal(String),
    /// An integer.
    Whole(i128),
    /// A finite number that is not an integer.
    Float(f64),
    /// `true` or `false`.
    Flag(bool),
    /// A list.
    List(Vec<Setting>),
    /// A table in TOML, an object in JSON, a mapping in YAML.
    Table(Table),
    /// A date, `null`, or a number that is not finite: not valid for any setting.
    Other,
}

impl Setting {
    /// A string.
    pub fn text(&self) -> Result<&str, ConfigError> {
        self.as_text().ok_or_else(|| self.wrong("a string"))
    }

    /// `true` or `false`.
    pub fn flag(&self) -> Result<bool, ConfigError> {
        if let Value::Flag(flag) = self.value { Ok(flag) } else { Err(self.wrong("true or false")) }
    }

    /// A whole number of at least 1.
    pub fn count<T: TryFrom<i128>>(&self) -> Result<T, ConfigError> {
        let whole = match self.value {
            Value::Whole(whole) => Some(whole),
            // JSON has no integers of its own: 3.0 is 3.
            Value::Float(float) if float.fract() == 0.0 => Some(float as i128),
            _ => None,
        };
        let count = whole.filter(|whole| *whole >= 1).and_then(|whole| T::try_from(whole).ok());
        count.ok_or_else(|| self.wrong("a whole number of at least 1"))
    }

    /// A time longer than zero: seconds, or a string such as `30s`.
    pub fn duration(&self, expected: &'static str) -> Result<Duration, ConfigError> {
        let duration = match &self.value {
            Value::Text(text) => parse_duration(text),
            Value::Whole(seconds) => u64::try_from(*seconds).ok().map(Duration::from_secs),
            Value::Float(seconds) => Duration::try_from_secs_f64(*seconds).ok(),
            _ => None,
        };
        duration.filter(|duration| !duration.is_zero()).ok_or_else(|| self.wrong(expected))
    }

    /// A list.
    pub fn list(&self, expected: &'static str) -> Result<&[Setting], ConfigError> {
        if let Value::List(list) = &self.value { Ok(list) } else { Err(self.wrong(expected)) }
    }

    /// A table.
    pub fn table(&self, expected: &'static str) -> Result<&Table, ConfigError> {
        if let Value::Table(table) = &self.value { Ok(table) } else { Err(self.wrong(expected)) }
    }

    /// A table that has no other keys than `known`.
    pub fn section(&self, known: &[&str]) -> Result<&Table, ConfigError> {
        let table = self.table("a table")?;
        table.check_keys(known).map(|()| table)
    }

    /// A string that `parse` understands, such as one of several words.
    pub fn parse<T>(&self, expected: &'static str, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, ConfigError> {
        self.as_text().and_then(parse).ok_or_else(|| self.wrong(expected))
    }

    /// The value, if it is a string.
    pub fn as_text(&self) -> Option<&str> {
        if let Value::Text(text) | Value::Literal(text) = &self.value { Some(text) } else { None }
    }

    /// Another value under the same name and position.
    pub fn with(&self, value: Value) -> Self {
        Self { path: self.path.clone(), position: self.position, value }
    }

    /// A table under the same name and position, without entries.
    pub fn empty_table(&self) -> Table {
        Table { path: self.path.clone(), position: self.position, entries: Vec::new() }
    }

    /// The error for a value that is not what is expected.
    pub fn wrong(&self, expected: &'static str) -> ConfigError {
        self.error(Problem::Wrong { expected })
    }

    /// The error for a value of the right type that can't be used.
    pub fn invalid(&self, reason: impl Into<String>, hint: impl Into<String>) -> ConfigError {
        self.error(Problem::Invalid { reason: reason.into(), hint: hint.into() })
    }

    fn error(&self, problem: Problem) -> ConfigError {
        ConfigError { position: self.position, key: self.path.clone(), problem }
    }
}
