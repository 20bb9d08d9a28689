//! Reads the servers of a file: `[servers.NAME]` of toolbus.toml, and the `mcpServers` JSON that MCP clients use.
//! toolbus.toml belongs to toolbus, so an unknown key is an error. In JSON it may belong to another client and causes a
//! warning only.

use super::ServersRead;
use super::expand::Environment;
use super::settings::{KEYS, Settings};
use toolbus_base::nearest;
use toolbus_config::{ConfigError, Document, Warning};

/// Reads the servers of a toolbus.toml. `env` looks up environment variables.
pub fn read_servers(file: &Document, env: Environment<'_>) -> Result<ServersRead, ConfigError> {
    let mut read = ServersRead::default();
    let Some(servers) = file.root().read("servers", |servers| servers.table("a table: [servers.NAME]"))? else {
        return Ok(read);
    };
    for (name, _, entry) in servers.entries() {
        let settings = Settings::new(servers, name, entry, env)?;
        // Before the rest, so that a mistyped `command` is reported as such.
        settings.table.check_keys(KEYS)?;
        read.servers.push(settings.read()?);
    }
    Ok(read)
}

/// Reads the servers of an `mcpServers` JSON file. `env` looks up environment variables.
pub fn read_mcp_servers(file: &Document, env: Environment<'_>) -> Result<ServersRead, ConfigError> {
    const FORM: &str = "the file has the form {\"mcpServers\": {\"NAME\": {\"command\": …}}}";
    let servers = file.root().get("mcpServers").ok_or_else(|| file.root().missing("mcpServers", FORM))?;
    let servers = servers.table("an object with the servers by name")?;
    let mut read = ServersRead::default();
    for (name, _, entry) in servers.entries() {
        if read.servers.iter().any(|earlier| earlier.name == name) {
            return Err(entry.invalid("the server is configured twice", "give one of them another name"));
        }
        let settings = Settings::new(servers, name, entry, env)?;
        let table = settings.table;
        let has_transport = table.get("command").or(table.get("url")).is_some();
        for (at, (key, position, _)) in table.entries().enumerate() {
            let is_mistyped = || matches!(nearest(key, KEYS.iter().copied())[..], ["command" | "url", ..]);
            if !KEYS.contains(&key) && !has_transport && is_mistyped() {
                return Err(table.unknown(key, KEYS));
            }
            if !KEYS.contains(&key) || table.names().take(at).any(|earlier| earlier == key) {
                let text = format!("server {name:?}: unknown key {key:?} is ignored");
                read.warnings.push(Warning { position, text });
            }
        }
        read.servers.push(settings.read()?);
    }
    Ok(read)
}
