//! A parsed file, and its tables.

use crate::error::{ConfigError, Problem};
use crate::position::{Lines, Position};
use crate::setting::{Setting, Value};
use crate::{parse_json, parse_toml};
use toolbus_base::nearest;

/// A parsed configuration file.
pub struct Document {
    root: Table,
}

/// A table with its entries in file order.
pub struct Table {
    pub(crate) path: String,
    pub(crate) position: Position,
    pub(crate) entries: Vec<Entry>,
}

pub(crate) struct Entry {
    pub name: String,
    pub position: Position,
    pub setting: Setting,
}

impl Document {
    /// Parses TOML.
    pub fn parse_toml(text: &str) -> Result<Self, ConfigError> {
        parse_toml::parse(text, &Lines::new(text)).map(Self::new)
    }

    /// Parses JSON. A value that is not an object gives an empty document.
    pub fn parse_json(text: &str) -> Result<Self, ConfigError> {
        let text = text.trim_start_matches('\u{feff}');
        parse_json::parse(text, &Lines::new(text)).map(Self::new)
    }

    /// The table that contains all others.
    pub fn root(&self) -> &Table {
        &self.root
    }

    fn new(root: Setting) -> Self {
        match root.value {
            Value::Table(root) => Self { root },
            _ => Self { root: Table { path: String::new(), position: root.position, entries: Vec::new() } },
        }
    }
}

impl Table {
    /// The entries in file order, each with the position of its key.
    pub fn entries(&self) -> impl Iterator<Item = (&str, Position, &Setting)> {
        self.entries.iter().map(|entry| (entry.name.as_str(), entry.position, &entry.setting))
    }

    /// The names of the entries, in file order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Setting> {
        self.entries.iter().find(|entry| entry.name == key).map(|entry| &entry.setting)
    }

    /// Reads the value of a key if the table has it.
    pub fn read<'a, T>(
        &'a self,
        key: &str,
        read: impl FnOnce(&'a Setting) -> Result<T, ConfigError>,
    ) -> Result<Option<T>, ConfigError> {
        self.get(key).map(read).transpose()
    }

    /// Rejects the first key that is not one of `known`.
    pub fn check_keys(&self, known: &[&str]) -> Result<(), ConfigError> {
        match self.names().find(|name| !known.contains(name)) {
            Some(name) => Err(self.unknown(name, known)),
            None => Ok(()),
        }
    }

    /// The error for a key that is not one of `known`.
    pub fn unknown(&self, key: &str, known: &[&str]) -> ConfigError {
        let nearest = nearest(key, known.iter().copied()).first().map(|name| (*name).to_owned());
        self.key_error(key, Problem::UnknownKey { nearest, known: known.join(", ") })
    }

    /// The error for a key that can't be used as a name.
    pub fn invalid_key(&self, key: &str, reason: impl Into<String>, hint: impl Into<String>) -> ConfigError {
        self.key_error(key, Problem::Invalid { reason: reason.into(), hint: hint.into() })
    }

    /// The error for a required key that the table doesn't have.
    pub fn missing(&self, key: &str, hint: &'static str) -> ConfigError {
        self.key_error(key, Problem::Missing { hint })
    }

    /// At the position of the key, or of the table if it doesn't have the key.
    fn key_error(&self, key: &str, problem: Problem) -> ConfigError {
        let entry = self.entries.iter().find(|entry| entry.name == key);
        let position = entry.map_or(self.position, |entry| entry.position);
        ConfigError { position, key: join(&self.path, key), problem }
    }
}

/// The full name of a key, quoted as in TOML.
pub(crate) fn join(path: &str, key: &str) -> String {
    let is_bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let key = if is_bare { key.to_owned() } else { format!("{key:?}") };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}
