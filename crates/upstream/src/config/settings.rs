//! Converts a tree of values, the common form of both file formats, to a [`ServerConfig`].

use super::call_settings::CallSettings;
use super::error::{ConfigError, Position};
use super::expand::{Environment, ExpandError, References, expand};
use super::{PinMode, ServerConfig, SessionMode, TransportConfig};
use crate::secrets::{SecretSettings, looks_secret};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use toolbus_mcp::Era;

/// Every key that a server may have.
pub(super) const KEYS: &[&str] = &[
    "command",
    "args",
    "env",
    "cwd",
    "url",
    "headers",
    "type",
    "transport",
    "disabled",
    "prefix",
    "session",
    "max_sessions",
    "max_concurrency",
    "timeout",
    "tool_timeouts",
    "idle",
    "era",
    "secrets",
    "secret_ttl",
    "redact_results",
    "pin",
    "replay",
    "tool_replay",
    "trust_hints",
    "join",
    "tool_join",
    "join_window",
    "offline",
    "tool_offline",
    "trip_after",
    "trip_window",
    "trip_pause",
];

/// Prefixes of the settings that may contain `${file:…}` and `${exec:…}`.
const FETCHABLE: &[&str] = &["env.", "headers.", "url", "args["];

const MAX_NAME_CHARS: usize = 64;

pub(super) type Table = Vec<(String, Node)>;

/// An unknown key and its position.
pub(super) type UnknownKey = (String, Option<Position>);

/// A value and its position, if the format has one.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub value: Value,
    pub position: Option<Position>,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    Text(String),
    Number(f64),
    Flag(bool),
    List(Vec<Node>),
    Table(Table),
    /// `null` in JSON, a date in TOML: not valid for any setting.
    Other,
}

/// The settings of one server. Parsing removes them one by one; the rest is unknown.
pub(super) struct Settings<'a> {
    server: &'a str,
    position: Option<Position>,
    table: Table,
    env: Environment<'a>,
    disabled: bool,
    references: References,
}

impl<'a> Settings<'a> {
    pub fn new(server: &'a str, node: Node, env: Environment<'a>) -> Result<Self, ConfigError> {
        let reason = match server.chars().count() {
            0 => Some("it is empty"),
            1..=MAX_NAME_CHARS if server.chars().any(char::is_control) => Some("it has control characters"),
            // In role patterns, a slash separates the server from the tool.
            1..=MAX_NAME_CHARS if server.contains('/') => Some("it has a slash"),
            1..=MAX_NAME_CHARS => None,
            _ => Some("it is too long"),
        };
        if let Some(reason) = reason {
            return Err(ConfigError::BadName { server: server.to_owned(), reason });
        }
        let position = node.position;
        let Value::Table(table) = node.value else {
            let (server, key) = (server.to_owned(), "the entry".to_owned());
            return Err(ConfigError::WrongType { server, key, expected: "an object", position });
        };
        Ok(Self { server, position, table, env, disabled: false, references: References::default() })
    }

    /// The first unknown key. To be checked before parsing, so that a mistyped `command` is reported as such.
    pub fn first_unknown(&self) -> Option<UnknownKey> {
        let unknown = self.table.iter().find(|(key, _)| !KEYS.contains(&key.as_str()));
        unknown.map(|(key, node)| (key.clone(), node.position))
    }

    /// A key that looks like a mistyped `command` or `url`, if the server has neither.
    pub fn mistyped_transport(&self) -> Option<&str> {
        let has = |wanted: &str| self.table.iter().any(|(key, _)| key == wanted);
        if has("command") || has("url") {
            return None;
        }
        let mistyped = |key: &&str| !KEYS.contains(key) && matches!(nearest(key), Some("command" | "url"));
        self.table.iter().map(|(key, _)| key.as_str()).find(mistyped)
    }

    /// The server, and the unknown keys.
    pub fn read(mut self) -> Result<(ServerConfig, Vec<UnknownKey>), ConfigError> {
        self.disabled = self.flag("disabled")?.unwrap_or(false);
        let mut config = ServerConfig::new(self.server, self.transport()?);
        config.disabled = self.disabled;
        config.prefix = self.text("prefix")?.filter(|prefix| !prefix.is_empty());
        config.session = self.choice("session", "\"per-worker\" or \"shared\"", |word| match word {
            "per-worker" => Some(SessionMode::PerWorker),
            "shared" => Some(SessionMode::Shared),
            _ => None,
        })?;
        config.era = self.choice("era", "\"legacy\", \"modern\" or \"auto\"", |word| match word {
            "legacy" => Some(Some(Era::Legacy)),
            "modern" => Some(Some(Era::Modern)),
            "auto" => Some(None),
            _ => None,
        })?;
        config.pin = self.choice("pin", PinMode::EXPECTED, |word| PinMode::parse(word).map(Some))?;
        config.max_sessions = self.count("max_sessions")?.unwrap_or(config.max_sessions);
        config.max_concurrency = self.count("max_concurrency")?.unwrap_or(config.max_concurrency);
        config.timeout = self.duration("timeout")?;
        config.idle = self.duration("idle")?.unwrap_or(config.idle);
        for (tool, node) in self.table_of("tool_timeouts")? {
            let key = format!("tool_timeouts.{tool}");
            config.tool_timeouts.insert(tool, self.to_duration(&key, &node)?);
        }
        config.calls = CallSettings::read(&mut self)?;
        config.secrets = self.secrets()?;
        let unknown = self.table.into_iter().map(|(key, node)| (key, node.position)).collect();
        Ok((config, unknown))
    }

    fn secrets(&mut self) -> Result<SecretSettings, ConfigError> {
        let names = self.texts("secrets")?;
        let references = std::mem::take(&mut self.references);
        let is_secret = |name: &String| looks_secret(name) || names.contains(name);
        let secret_variables =
            references.variables.into_iter().filter(|(name, _)| is_secret(name)).map(|(_, value)| value).collect();
        Ok(SecretSettings {
            ttl: self.duration("secret_ttl")?.unwrap_or(SecretSettings::TTL),
            redact_results: self.flag("redact_results")?.unwrap_or(true),
            sources: references.sources,
            secret_variables,
            names,
            ..SecretSettings::default()
        })
    }

    fn transport(&mut self) -> Result<TransportConfig, ConfigError> {
        // Some files write `transport` instead of `type`. The value is only validated; the other keys determine the
        // transport.
        for key in ["type", "transport"] {
            self.choice(key, "\"stdio\", \"http\", \"streamable-http\" or \"sse\"", |word| match word {
                "stdio" | "http" | "streamable-http" | "streamable_http" | "streamableHttp" | "sse" => Some(()),
                _ => None,
            })?;
        }
        let (server, position) = (self.server.to_owned(), self.position);
        match (self.text("command")?, self.text("url")?) {
            (Some(command), None) if !command.trim().is_empty() => Ok(TransportConfig::Stdio {
                command,
                args: self.texts("args")?,
                env: self.text_table("env")?,
                cwd: self.text("cwd")?.map(PathBuf::from),
            }),
            (None, Some(url)) if url.starts_with("http://") || url.starts_with("https://") => {
                Ok(TransportConfig::Http { url, headers: self.text_table("headers")? })
            }
            (None, Some(_)) => Err(self.wrong("url", "an http:// or https:// address", position)),
            (Some(_), Some(_)) => Err(ConfigError::TwoTransports { server, position }),
            _ => Err(ConfigError::NoTransport { server, position }),
        }
    }

    fn take(&mut self, key: &str) -> Option<Node> {
        let at = self.table.iter().position(|(name, _)| name == key)?;
        Some(self.table.remove(at).1)
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, ConfigError> {
        self.take(key).map(|node| self.expanded(key, node)).transpose()
    }

    fn texts(&mut self, key: &str) -> Result<Vec<String>, ConfigError> {
        match self.take(key) {
            None => Ok(Vec::new()),
            Some(Node { value: Value::List(list), .. }) => {
                list.into_iter().enumerate().map(|(at, node)| self.expanded(&format!("{key}[{at}]"), node)).collect()
            }
            Some(node) => Err(self.wrong(key, "a list of strings", node.position)),
        }
    }

    fn text_table(&mut self, key: &str) -> Result<BTreeMap<String, String>, ConfigError> {
        let table = self.table_of(key)?;
        table
            .into_iter()
            .map(|(name, node)| {
                let text = self.expanded(&format!("{key}.{name}"), node)?;
                Ok((name, text))
            })
            .collect()
    }

    fn table_of(&mut self, key: &str) -> Result<Table, ConfigError> {
        match self.take(key) {
            None => Ok(Vec::new()),
            Some(Node { value: Value::Table(table), .. }) => Ok(table),
            Some(node) => Err(self.wrong(key, "an object", node.position)),
        }
    }

    fn expanded(&mut self, key: &str, node: Node) -> Result<String, ConfigError> {
        let position = node.position;
        let Value::Text(text) = node.value else { return Err(self.wrong(key, "a string", position)) };
        let (server, key) = (self.server.to_owned(), key.to_owned());
        let fetched_before = self.references.sources.len();
        match expand(&text, self.env, &mut self.references) {
            Ok(_)
                if self.references.sources.len() > fetched_before
                    && !FETCHABLE.iter().any(|prefix| key.starts_with(prefix)) =>
            {
                Err(ConfigError::SourceMisplaced { server, key, position })
            }
            Ok(text) => Ok(text),
            // A disabled server needs no variables.
            Err(_) if self.disabled => Ok(text),
            Err(ExpandError::Missing(variable)) => {
                Err(ConfigError::MissingVariable { server, variable, key, position })
            }
            Err(ExpandError::BadSource) => Err(ConfigError::BadSource { server, key, position }),
            Err(ExpandError::Open) => Err(ConfigError::OpenVariable { server, key, position }),
        }
    }

    pub fn flag(&mut self, key: &str) -> Result<Option<bool>, ConfigError> {
        match self.take(key) {
            None => Ok(None),
            Some(Node { value: Value::Flag(flag), .. }) => Ok(Some(flag)),
            Some(node) => Err(self.wrong(key, "true or false", node.position)),
        }
    }

    pub fn count(&mut self, key: &str) -> Result<Option<usize>, ConfigError> {
        match self.take(key) {
            None => Ok(None),
            Some(Node { value: Value::Number(number), .. }) if number >= 1.0 && number.fract() == 0.0 => {
                Ok(Some(number as usize))
            }
            Some(node) => Err(self.wrong(key, "a whole number of at least 1", node.position)),
        }
    }

    /// One word per entry of a table.
    pub fn choices<T>(
        &mut self,
        key: &str,
        expected: &'static str,
        pick: impl Fn(&str) -> Option<T>,
    ) -> Result<BTreeMap<String, T>, ConfigError> {
        let table = self.table_of(key)?;
        let picked = |(name, node): (String, Node)| {
            let word = if let Value::Text(word) = &node.value { pick(word) } else { None };
            match word {
                Some(word) => Ok((name, word)),
                None => Err(self.wrong(&format!("{key}.{name}"), expected, node.position)),
            }
        };
        table.into_iter().map(picked).collect()
    }

    pub fn choice<T: Default>(
        &mut self,
        key: &str,
        expected: &'static str,
        pick: impl Fn(&str) -> Option<T>,
    ) -> Result<T, ConfigError> {
        match self.take(key) {
            None => Ok(T::default()),
            Some(Node { value: Value::Text(word), position }) => {
                pick(&word).ok_or_else(|| self.wrong(key, expected, position))
            }
            Some(node) => Err(self.wrong(key, expected, node.position)),
        }
    }

    pub fn duration(&mut self, key: &str) -> Result<Option<Duration>, ConfigError> {
        self.take(key).map(|node| self.to_duration(key, &node)).transpose()
    }

    fn to_duration(&self, key: &str, node: &Node) -> Result<Duration, ConfigError> {
        let seconds = match &node.value {
            Value::Number(seconds) => Some(*seconds),
            Value::Text(text) => seconds_of(text),
            _ => None,
        };
        let duration = seconds.filter(|seconds| *seconds > 0.0).and_then(|s| Duration::try_from_secs_f64(s).ok());
        duration.ok_or_else(|| self.wrong(key, "seconds, or a time such as \"500ms\", \"30s\", \"5m\"", node.position))
    }

    fn wrong(&self, key: &str, expected: &'static str, position: Option<Position>) -> ConfigError {
        ConfigError::WrongType { server: self.server.to_owned(), key: key.to_owned(), expected, position }
    }
}

fn seconds_of(text: &str) -> Option<f64> {
    let text = text.trim();
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let number: f64 = text[..unit_at].trim().parse().ok()?;
    let unit = match &text[unit_at..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Some(number * unit)
}

/// The known key that was probably intended.
pub(super) fn nearest(key: &str) -> Option<&'static str> {
    let normal = key.to_lowercase().replace('-', "_");
    let near = KEYS.iter().map(|known| (edit_distance(&normal, known), *known)).min()?;
    (near.0 <= 1 + near.1.len() / 4).then_some(near.1)
}

/// Levenshtein distance.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
