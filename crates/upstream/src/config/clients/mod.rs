//! Reads the servers of the configuration file of any MCP client. The client is recognised by the file's keys and name;
//! its entries are translated into the settings of toolbus.toml, with their positions, and read like those.
//!
//! The file belongs to another program. An unknown key causes a warning only, and an entry that can't be used leaves the
//! other servers as they are.

mod dialect;
mod normalize;
mod variables;

pub use variables::{Input, Surroundings};

use super::settings::{KEYS, NAME_HINT, Settings, name_problem};
use super::{ServersRead, UnusableServer};
use dialect::{Client, Recognised};
use normalize::{Normalised, normalize};
use std::path::Path;
use toolbus_base::nearest;
use toolbus_config::{ConfigError, Document, Setting, Table, Value, Warning};
use variables::Variables;

/// Reads the servers of a client's file. If none of them can be used, the first problem is the error.
pub fn read_mcp_servers(text: &str, around: &Surroundings<'_>) -> Result<ServersRead, ConfigError> {
    let file = parse(text, around.file)?;
    let Recognised { client, servers } = Client::recognise(file.root(), around.file)?;
    let variables = Variables::new(around, client, file.root());
    let mut read = ServersRead::default();
    for (name, entry) in entries(servers)? {
        let is_same = |earlier: &str| earlier == name;
        if read.servers.iter().any(|server| is_same(&server.name)) || read.unusable.iter().any(|it| is_same(&it.name)) {
            return Err(entry.invalid("the server is configured twice", "give one of them another name"));
        }
        if let Err(error) = read_entry(&mut read, &name, entry, client, &variables) {
            read.unusable.push(UnusableServer { name, error });
        }
    }
    match read.unusable.first() {
        Some(first) if read.servers.is_empty() => Err(first.error.clone()),
        _ => Ok(read),
    }
}

/// By the extension of the file, otherwise by its text.
fn parse(text: &str, file: &Path) -> Result<Document, ConfigError> {
    let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    match extension.to_ascii_lowercase().as_str() {
        "toml" => Document::parse_toml(text),
        "yaml" | "yml" => Document::parse_yaml(text),
        "json" | "jsonc" | "json5" => Document::parse_json(text),
        _ if text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']).starts_with(['{', '/']) => {
            Document::parse_json(text)
        }
        _ => Document::parse_toml(text).or_else(|_| Document::parse_yaml(text)),
    }
}

/// The entries with their names: those of a table, or the items of a list, which name themselves.
fn entries(servers: &Setting) -> Result<Vec<(String, &Setting)>, ConfigError> {
    if let Value::List(list) = &servers.value {
        let name = |entry: &Setting| match &entry.value {
            Value::Table(table) => table.get("name").and_then(Setting::as_text).map(str::to_owned),
            _ => None,
        };
        return Ok(list.iter().map(|entry| (name(entry).unwrap_or_else(|| entry.path.clone()), entry)).collect());
    }
    let table = servers.table("an object with the servers by name")?;
    Ok(table.entries().map(|(name, _, entry)| (name.to_owned(), entry)).collect())
}

fn read_entry(
    read: &mut ServersRead,
    name: &str,
    entry: &Setting,
    client: Client,
    variables: &Variables<'_>,
) -> Result<(), ConfigError> {
    let mut warn = |position, text: String| {
        read.warnings.push(Warning { position, text: format!("server {name:?}{text}") });
    };
    let entry = match normalize(entry, client, variables)? {
        Normalised::Server(entry) => entry,
        Normalised::Foreign(reason) => {
            warn(entry.position, format!(" is not hosted: {reason}"));
            return Ok(());
        }
        Normalised::Off => return Ok(()),
    };
    // Marketplaces name servers by their repositories, but a slash separates server and tool in role patterns.
    let hosted = name.replace('/', "-");
    if hosted != name {
        warn(entry.position, format!(" is hosted as {hosted:?}"));
    }
    if let Some(problem) = name_problem(&hosted) {
        return Err(entry.invalid(format!("invalid server name: {problem}"), NAME_HINT));
    }
    let env = |name: &str| variables.lookup(name);
    let settings = Settings::new(&hosted, &entry, &env)?;
    check_keys(settings.table, &mut warn)?;
    let server = settings.read()?;
    if read.servers.iter().any(|earlier| earlier.name == hosted) {
        return Err(entry.invalid(format!("there is another server {hosted:?}"), "give one of them another name"));
    }
    read.servers.push(server);
    Ok(())
}

fn check_keys(table: &Table, warn: &mut impl FnMut(toolbus_config::Position, String)) -> Result<(), ConfigError> {
    let has_transport = table.get("command").or(table.get("url")).is_some();
    for (at, (key, position, value)) in table.entries().enumerate() {
        let is_mistyped = || matches!(nearest(key, KEYS.iter().copied())[..], ["command" | "url", ..]);
        if !KEYS.contains(&key) && !has_transport && is_mistyped() {
            return Err(table.unknown(key, KEYS));
        }
        if normalize::restricts_tools(key) {
            if !normalize::restricts_nothing(key, value) {
                let advice = "all of its tools are offered; [roles] in toolbus.toml can restrict them";
                warn(position, format!(": {key:?} is ignored: {advice}"));
            }
        } else if !KEYS.contains(&key) || table.names().take(at).any(|earlier| earlier == key) {
            warn(position, format!(": unknown key {key:?} is ignored"));
        }
    }
    Ok(())
}
