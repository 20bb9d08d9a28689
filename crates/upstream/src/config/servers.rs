//! Reads the servers of toolbus.toml. The file belongs to toolbus, so an unknown key is an error.

use super::ServersRead;
use super::expand::Environment;
use super::settings::{KEYS, NAME_HINT, Settings, name_problem};
use toolbus_config::{ConfigError, Document};

/// Reads the servers of a toolbus.toml. `env` looks up environment variables.
pub fn read_servers(file: &Document, env: Environment<'_>) -> Result<ServersRead, ConfigError> {
    let mut read = ServersRead::default();
    let Some(servers) = file.root().read("servers", |servers| servers.table("a table: [servers.NAME]"))? else {
        return Ok(read);
    };
    for (name, _, entry) in servers.entries() {
        if let Some(problem) = name_problem(name) {
            return Err(servers.invalid_key(name, format!("invalid server name: {problem}"), NAME_HINT));
        }
        let settings = Settings::new(name, entry, env)?;
        // Before the rest, so that a mistyped `command` is reported as such.
        settings.table.check_keys(KEYS)?;
        read.servers.push(settings.read()?);
    }
    Ok(read)
}
