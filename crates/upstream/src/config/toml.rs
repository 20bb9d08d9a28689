//! Parses `[servers.NAME]` in toolbus.toml. The file belongs to toolbus, so an unknown key is an error, reported with
//! its position and the key that was probably intended.

use super::error::{ConfigError, Position};
use super::expand::Environment;
use super::settings::{Node, Settings, Table, Value, nearest};
use super::{HostConfig, ServersRead};
use ::toml::Spanned;
use ::toml::de::{DeTable, DeValue};

/// Parses the servers in a toolbus.toml; its other tables are ignored. `env` looks up environment variables.
pub fn read_toml_servers(text: &str, env: Environment<'_>) -> Result<ServersRead, ConfigError> {
    let file = DeTable::parse(text).map_err(|error| {
        let position = Position::of_offset(text, error.span().map_or(0, |span| span.start));
        ConfigError::Syntax { format: "TOML", position, reason: error.message().to_owned() }
    })?;
    let servers = file.into_inner().into_iter().find(|(key, _)| key.get_ref() == "servers");
    let Some((_, servers)) = servers else { return Ok(ServersRead::default()) };
    let Value::Table(servers) = node(text, servers).value else { return Err(ConfigError::NoServers) };

    let mut config = HostConfig::default();
    for (name, node) in servers {
        let settings = Settings::new(&name, node, env)?;
        if let Some((key, position)) = settings.first_unknown() {
            let nearest = nearest(&key);
            return Err(ConfigError::UnknownKey { server: name, key, position, nearest });
        }
        config.servers.push(settings.read()?.0);
    }
    Ok(ServersRead { servers: config.servers, warnings: Vec::new() })
}

fn node(text: &str, value: Spanned<DeValue<'_>>) -> Node {
    let position = Some(Position::of_offset(text, value.span().start));
    let value = match value.into_inner() {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(number) => number_of(&number.to_string()),
        DeValue::Float(number) => number_of(&number.to_string()),
        DeValue::Boolean(flag) => Value::Flag(flag),
        DeValue::Array(list) => Value::List(list.into_iter().map(|value| node(text, value)).collect()),
        DeValue::Table(inner) => Value::Table(table(text, inner)),
        DeValue::Datetime(_) => Value::Other,
    };
    Node { value, position }
}

/// In file order, with the position of each key, where an unknown key is reported.
fn table(text: &str, table: DeTable<'_>) -> Table {
    let mut entries: Vec<_> = table.into_iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let entry = |(key, value): (Spanned<_>, _)| {
        let position = Some(Position::of_offset(text, key.span().start));
        let name: std::borrow::Cow<'_, str> = key.into_inner();
        (name.into_owned(), Node { position, ..node(text, value) })
    };
    entries.into_iter().map(entry).collect()
}

fn number_of(text: &str) -> Value {
    text.replace('_', "").parse().map_or(Value::Other, Value::Number)
}
