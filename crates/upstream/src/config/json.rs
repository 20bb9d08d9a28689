//! Parses the `mcpServers` JSON that MCP clients use. Unknown keys belong to other clients: they cause a warning, not
//! an error.

use super::ServersRead;
use super::error::{ConfigError, Position};
use super::expand::Environment;
use super::settings::{Node, Settings, Value, nearest};
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Parses the servers in an `mcpServers` JSON file. `env` looks up environment variables.
pub fn read_mcp_servers_json(text: &str, env: Environment<'_>) -> Result<ServersRead, ConfigError> {
    let file: Node = serde_json::from_str(text.trim_start_matches('\u{feff}')).map_err(|error| {
        let position = Position { line: error.line(), column: error.column() };
        ConfigError::Syntax { format: "JSON", position, reason: reason(&error) }
    })?;
    let Value::Table(file) = file.value else { return Err(ConfigError::NoServers) };
    let servers = file.into_iter().find(|(key, _)| key == "mcpServers");
    let Some((_, Node { value: Value::Table(servers), .. })) = servers else { return Err(ConfigError::NoServers) };

    let mut read = ServersRead::default();
    for (name, node) in servers {
        if read.servers.iter().any(|earlier| earlier.name == name) {
            return Err(ConfigError::DuplicateServer { server: name, position: None });
        }
        if is_sse(&node) {
            read.warnings.push(format!(
                "server {name:?} has type \"sse\", which is obsolete; toolbus tries streamable HTTP at its url"
            ));
        }
        let settings = Settings::new(&name, node, env)?;
        if let Some(key) = settings.mistyped_transport() {
            let position = position_of(text, &["mcpServers", &name, key]);
            return Err(ConfigError::UnknownKey { nearest: nearest(key), key: key.to_owned(), server: name, position });
        }
        let (config, unknown) = settings.read()?;
        for (key, _) in unknown {
            read.warnings.push(format!("server {name:?}: unknown key {key:?} is ignored"));
        }
        read.servers.push(config);
    }
    Ok(read)
}

/// The position of the last of these keys, each searched for after the previous one. A key written with escapes is not
/// found; the error then has no position.
fn position_of(text: &str, path: &[&str]) -> Option<Position> {
    let mut from = 0;
    let mut found = None;
    for key in path {
        let quoted = format!("\"{key}\"");
        let mut offsets = text[from..].match_indices(&quoted).map(|(at, _)| from + at);
        let is_key = |at: &usize| text[at + quoted.len()..].trim_start().starts_with(':');
        let at = offsets.find(is_key)?;
        from = at + quoted.len();
        found = Some(at);
    }
    found.map(|at| Position::of_offset(text, at))
}

fn is_sse(node: &Node) -> bool {
    let Value::Table(table) = &node.value else { return false };
    table.iter().any(|(key, node)| key == "type" && matches!(&node.value, Value::Text(word) if word == "sse"))
}

/// The message without the position, which is reported separately.
fn reason(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.split(" at line ").next().unwrap_or(&message).to_owned()
}

/// Like `serde_json::Value`, but a table keeps its order and duplicate keys.
impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self { value: deserializer.deserialize_any(NodeVisitor)?, position: None })
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number as f64))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Number(number))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = seq.next_element()? {
            list.push(node);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut table = Vec::new();
        while let Some(entry) = map.next_entry()? {
            table.push(entry);
        }
        Ok(Value::Table(table))
    }
}
