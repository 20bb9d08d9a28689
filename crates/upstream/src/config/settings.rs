//! Reads the settings of one server from its table. Entries of clients' files have been translated into the same keys.

use super::call_settings::CallSettings;
use super::clients::Input;
use super::expand::{Environment, ExpandError, References, expand};
use super::{PinMode, ServerConfig, SessionMode, TransportConfig};
use crate::secrets::{SecretSettings, looks_secret};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use toolbus_config::{ConfigError, Setting, Table, Value};
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
    "start_timeout",
    "tool_timeouts",
    "idle",
    "era",
    "secrets",
    "secret_ttl",
    "redact_results",
    "pin",
    "dynamic_tools",
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

/// The settings that may contain `${file:…}` and `${exec:…}`.
const FETCHABLE: &[&str] = &["env", "headers", "url", "args"];

const MAX_NAME_CHARS: usize = 64;

/// How to correct the name of a server.
pub(super) const NAME_HINT: &str = "use letters, digits, `-`, `_` and `.`, at most 64 of them";

/// Why a server can't have this name.
pub(super) fn name_problem(name: &str) -> Option<&'static str> {
    match name.chars().count() {
        0 => Some("it is empty"),
        1..=MAX_NAME_CHARS if name.chars().any(char::is_control) => Some("it has control characters"),
        // In role patterns, a slash separates the server from the tool.
        1..=MAX_NAME_CHARS if name.contains('/') => Some("it has a slash"),
        1..=MAX_NAME_CHARS => None,
        _ => Some("it is too long"),
    }
}

/// The table of one server.
pub(super) struct Settings<'a> {
    pub table: &'a Table,
    name: &'a str,
    entry: &'a Setting,
    env: Environment<'a>,
    disabled: bool,
    references: References,
}

impl<'a> Settings<'a> {
    /// The settings of the server `name`, which has a valid name.
    pub fn new(name: &'a str, entry: &'a Setting, env: Environment<'a>) -> Result<Self, ConfigError> {
        let table = entry.table(TABLE)?;
        Ok(Self { table, name, entry, env, disabled: false, references: References::default() })
    }

    pub fn read(mut self) -> Result<ServerConfig, ConfigError> {
        self.disabled = self.table.read("disabled", Setting::flag)?.unwrap_or(false);
        let mut config = ServerConfig::new(self.name, self.transport()?);
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
        config.dynamic_tools = self.table.read("dynamic_tools", Setting::flag)?.unwrap_or(false);
        config.max_sessions = self.table.read("max_sessions", Setting::count)?.unwrap_or(config.max_sessions);
        config.max_concurrency = self.table.read("max_concurrency", Setting::count)?.unwrap_or(config.max_concurrency);
        if matches!(config.transport, TransportConfig::Sse { .. }) {
            config.era = Some(Era::Legacy);
        }
        config.timeout = self.duration("timeout")?;
        config.start_timeout = self.duration("start_timeout")?;
        config.idle = self.duration("idle")?.unwrap_or(config.idle);
        config.tool_timeouts = self.by_tool("tool_timeouts", |timeout| timeout.duration(DURATION))?;
        config.calls = CallSettings::read(&self)?;
        config.secrets = self.secrets()?;
        Ok(config)
    }

    fn secrets(&mut self) -> Result<SecretSettings, ConfigError> {
        let names = self.texts("secrets")?;
        let references = std::mem::take(&mut self.references);
        let is_secret = |name: &String| looks_secret(name) || names.contains(name);
        let secret_variables =
            references.variables.into_iter().filter(|(name, _)| is_secret(name)).map(|(_, value)| value).collect();
        Ok(SecretSettings {
            ttl: self.duration("secret_ttl")?.unwrap_or(SecretSettings::TTL),
            redact_results: self.table.read("redact_results", Setting::flag)?.unwrap_or(true),
            sources: references.sources,
            secret_variables,
            names,
            ..SecretSettings::default()
        })
    }

    fn transport(&mut self) -> Result<TransportConfig, ConfigError> {
        // Some files write `transport` instead of `type`. Apart from `sse`, the other keys determine the transport.
        let mut is_sse = false;
        for key in ["type", "transport"] {
            is_sse |= self.choice(key, "\"stdio\", \"http\", \"streamable-http\" or \"sse\"", |word| match word {
                "stdio" | "http" | "streamable-http" | "streamable_http" | "streamableHttp" => Some(false),
                "sse" => Some(true),
                _ => None,
            })?;
        }
        match (self.text("command")?, self.text("url")?) {
            (Some(command), None) if !command.trim().is_empty() => Ok(TransportConfig::Stdio {
                command,
                args: self.texts("args")?,
                env: self.text_table("env")?,
                cwd: self.text("cwd")?.map(PathBuf::from),
            }),
            (None, Some(url)) if url.starts_with("http://") || url.starts_with("https://") => {
                let headers = self.text_table("headers")?;
                Ok(if is_sse { TransportConfig::Sse { url, headers } } else { TransportConfig::Http { url, headers } })
            }
            (None, Some(_)) => Err(self.table.get("url").unwrap_or(self.entry).wrong("an http:// or https:// address")),
            (Some(_), Some(_)) => {
                Err(self.entry.invalid("the server has both a command and a url", "remove one of them"))
            }
            _ => Err(self.entry.invalid(
                "the server has neither a command nor a url",
                "add `command` for a stdio server, or `url` for an HTTP server",
            )),
        }
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, ConfigError> {
        self.table.read(key, |setting| self.expanded(key, setting))
    }

    fn texts(&mut self, key: &str) -> Result<Vec<String>, ConfigError> {
        let Some(list) = self.table.read(key, |list| list.list("a list of strings"))? else { return Ok(Vec::new()) };
        list.iter().map(|item| self.expanded(key, item)).collect()
    }

    fn text_table(&mut self, key: &str) -> Result<BTreeMap<String, String>, ConfigError> {
        let entries = self.table.read(key, |table| table.table(TABLE))?.into_iter().flat_map(Table::entries);
        entries.map(|(name, _, value)| Ok((name.to_owned(), self.expanded(key, value)?))).collect()
    }

    /// The value of `key`, or a value inside of it, with its references expanded.
    fn expanded(&mut self, key: &str, setting: &Setting) -> Result<String, ConfigError> {
        let text = setting.text()?;
        if matches!(setting.value, Value::Literal(_)) {
            return Ok(text.to_owned());
        }
        let fetched_before = self.references.sources.len();
        let error = match expand(text, self.env, &mut self.references) {
            Ok(_) if self.references.sources.len() > fetched_before && !FETCHABLE.contains(&key) => {
                let hint = "${file:…} and ${exec:…} are allowed in env, headers, url and args";
                return Err(setting.invalid("the value can't be fetched from a file or a command", hint));
            }
            Ok(text) => return Ok(text),
            // A disabled server needs no variables.
            Err(_) if self.disabled => return Ok(text.to_owned()),
            Err(error) => error,
        };
        Err(match error {
            ExpandError::Missing(variable) if variable.starts_with("input:") => {
                let id = variable.trim_start_matches("input:");
                let hint = format!("start the host in a terminal to be asked for it, or set {}", Input::variable(id));
                setting.invalid(format!("the input {id} has no value"), hint)
            }
            ExpandError::Missing(variable) => setting.invalid(
                format!("the environment variable {variable} is not set"),
                format!("set {variable} before you start the host, or write ${{{variable}:-default}}"),
            ),
            ExpandError::BadSource => setting.invalid(
                "a reference names no file or command",
                "write ${file:PATH} or ${exec:COMMAND ARGUMENTS}, with quotes in pairs",
            ),
            ExpandError::Open => setting.invalid("`${` without `}`", "variables are written ${NAME}"),
        })
    }

    /// A table with one value per tool.
    pub fn by_tool<T>(
        &self,
        key: &str,
        read: impl Fn(&Setting) -> Result<T, ConfigError>,
    ) -> Result<BTreeMap<String, T>, ConfigError> {
        let tools = self.table.read(key, |table| table.table(TABLE))?.into_iter().flat_map(Table::entries);
        tools.map(|(tool, _, value)| Ok((tool.to_owned(), read(value)?))).collect()
    }

    pub fn choice<T: Default>(
        &self,
        key: &str,
        expected: &'static str,
        pick: impl Fn(&str) -> Option<T>,
    ) -> Result<T, ConfigError> {
        self.table.read(key, |setting| setting.parse(expected, pick)).map(Option::unwrap_or_default)
    }

    pub fn duration(&self, key: &str) -> Result<Option<Duration>, ConfigError> {
        self.table.read(key, |setting| setting.duration(DURATION))
    }
}

const TABLE: &str = "a table";
const DURATION: &str = "seconds, or a time such as \"500ms\", \"30s\", \"5m\"";
