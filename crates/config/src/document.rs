//! A parsed file, and its tables.

use crate::error::{ConfigError, Problem};
use crate::position::{Lines, Position};
use crate::setting::{Setting, Value};
use crate::{jsonc, parse_json, parse_toml, parse_yaml};
use toolbus_base::nearest;

/// A parsed configuration file.
pub struct Document {
    root: Table,
}

/// A table with its entries in file order.
#[derive(Clone)]
pub struct Table {
    pub(crate) path: String,
    pub(crate) position: Position,
    pub(crate) entries: Vec<Entry>,
}

#[derive(Clone)]
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

    /// Parses JSON, with comments and trailing commas. A value that is not an object gives an empty document.
    pub fn parse_json(text: &str) -> Result<Self, ConfigError> {
        let text = text.trim_start_matches('\u{feff}');
        parse_json::parse(&jsonc::to_json(text), &Lines::new(text)).map(Self::new)
    }

    /// Parses YAML. A value that is not a mapping gives an empty document.
    pub fn parse_yaml(text: &str) -> Result<Self, ConfigError> {
        parse_yaml::parse(text.trim_start_matches('\u{feff}')).map(Self::new)
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

    /// Sets the value of a key, in place of an earlier one. The new entry has the position of the value.
    pub fn set(&mut self, key: &str, setting: Setting) {
        match self.entries.iter_mut().find(|entry| entry.name == key) {
            Some(entry) => entry.setting = setting,
            None => self.entries.push(Entry { name: key.to_owned(), position: setting.position, setting }),
        }
    }

    /// Removes the first entry of a key, and returns its value.
    pub fn remove(&mut self, key: &str) -> Option<Setting> {
        let at = self.entries.iter().position(|entry| entry.name == key)?;
        Some(self.entries.remove(at).setting)
    }

    /// Changes the name of a key, unless the table also has the new one.
    pub fn rename(&mut self, from: &str, to: &str) {
        if self.get(to).is_none()
            && let Some(entry) = self.entries.iter_mut().find(|entry| entry.name == from)
        {
            entry.name = to.to_owned();
        }
    }

    /// The values, to be changed in place.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Setting> {
        self.entries.iter_mut().map(|entry| &mut entry.setting)
    }

    /// Keeps only the entries that `keep` returns true for.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &Setting) -> bool) {
        self.entries.retain(|entry| keep(&entry.name, &entry.setting));
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
