//! toolbus.toml from its text. Every key is known or refused, with its place in the file.

use super::error::{ConfigProblem, Position};
use super::{Config, LocalBroker};
use crate::nearest::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toolbus_upstream::{PinMode, read_toml_servers};

const KEYS: [&str; 6] = ["listen", "data", "name", "servers", "roles", "pin"];
const ADDRESS: &str = "an address such as \"127.0.0.1:7420\"";
const ROLE_KEYS: [&str; 1] = ["allow"];

type Value<'a> = Spanned<DeValue<'a>>;

pub fn read(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Config, ConfigProblem> {
    let file = DeTable::parse(text).map_err(|error| syntax(text, &error))?;
    let reader = Reader { text };
    let mut config = Config::default();
    for (key, value) in file.get_ref() {
        match &**key.get_ref() {
            "listen" => config.listen = Some(reader.parsed("listen", value, ADDRESS)?),
            "data" => config.data = Some(reader.text("data", value)?.into()),
            "name" => config.name = Some(reader.text("name", value)?.to_owned()),
            "roles" => config.roles = reader.roles(value)?,
            "pin" => config.pin = reader.pin(value)?,
            // Below, by those who know what a server is.
            "servers" => {}
            _ => return Err(reader.unknown(key, "", &KEYS)),
        }
    }
    let servers = read_toml_servers(text, env).map_err(ConfigProblem::Servers)?;
    config.servers = servers.servers;
    config.warnings = servers.warnings;
    Ok(config)
}

fn syntax(text: &str, error: &toml::de::Error) -> ConfigProblem {
    let span = error.span().unwrap_or_default();
    let position = Position::of_offset(text, span.start);
    let mut reason = error.message().to_owned();
    // The parser doesn't say what is there twice.
    if reason.starts_with("duplicate key") {
        let line = text.lines().nth(position.line - 1).unwrap_or_default().trim();
        let name = if line.starts_with('[') { line } else { line.split('=').next().unwrap_or(line).trim_end() };
        reason = format!("{name} stands in the file twice");
    }
    ConfigProblem::Syntax(position, reason)
}

/// Only where the broker is, and only if that can be read.
pub fn read_local(text: &str) -> Option<LocalBroker> {
    let file = DeTable::parse(text).ok()?;
    let text = |key: &str| file.get_ref().get(key).and_then(|value| value.get_ref().as_str());
    let roles = file.get_ref().get("roles").and_then(|value| value.get_ref().as_table());
    let roles = roles.into_iter().flatten().map(|(role, _)| role.get_ref().to_string()).collect();
    let listen = text("listen").and_then(|text| text.parse().ok());
    Some(LocalBroker { listen, data: text("data").map(Into::into), roles })
}

/// What a broker alone has to know. Servers and their variables are a host's business.
pub fn read_broker(text: &str) -> Result<LocalBroker, ConfigProblem> {
    let file = DeTable::parse(text).map_err(|error| syntax(text, &error))?;
    let reader = Reader { text };
    let mut local = LocalBroker::default();
    for (key, value) in file.get_ref() {
        match &**key.get_ref() {
            "listen" => local.listen = Some(reader.parsed("listen", value, ADDRESS)?),
            "data" => local.data = Some(reader.text("data", value)?.into()),
            "roles" => local.roles = reader.roles(value)?.into_iter().map(|(role, _)| role).collect(),
            known if KEYS.contains(&known) => {}
            _ => return Err(reader.unknown(key, "", &KEYS)),
        }
    }
    Ok(local)
}

struct Reader<'a> {
    text: &'a str,
}

impl Reader<'_> {
    fn pin(&self, value: &Value<'_>) -> Result<PinMode, ConfigProblem> {
        let mode = value.get_ref().as_str().and_then(PinMode::parse);
        mode.ok_or_else(|| self.wrong("pin", value, PinMode::EXPECTED))
    }

    fn roles(&self, value: &Value<'_>) -> Result<Vec<(String, Vec<String>)>, ConfigProblem> {
        let wrong = |value| self.wrong("roles", value, "a table: [roles.NAME] with allow = [\"pattern\", …]");
        let table = value.get_ref().as_table().ok_or_else(|| wrong(value))?;
        let mut roles = Vec::new();
        for (name, role) in table {
            let role = role.get_ref().as_table().ok_or_else(|| wrong(role))?;
            let mut allow = Vec::new();
            for (key, value) in role {
                match &**key.get_ref() {
                    "allow" => allow = self.texts(&format!("roles.{}.allow", name.get_ref()), value)?,
                    _ => return Err(self.unknown(key, &format!("roles.{}", name.get_ref()), &ROLE_KEYS)),
                }
            }
            roles.push((name.get_ref().to_string(), allow));
        }
        Ok(roles)
    }

    fn texts(&self, key: &str, value: &Value<'_>) -> Result<Vec<String>, ConfigProblem> {
        let list = value.get_ref().as_array().ok_or_else(|| self.wrong(key, value, "a list of strings"))?;
        list.iter().map(|item| self.text(key, item).map(str::to_owned)).collect()
    }

    fn text<'v>(&self, key: &str, value: &'v Value<'_>) -> Result<&'v str, ConfigProblem> {
        value.get_ref().as_str().ok_or_else(|| self.wrong(key, value, "a string"))
    }

    fn parsed<T: std::str::FromStr>(
        &self,
        key: &str,
        value: &Value<'_>,
        expected: &'static str,
    ) -> Result<T, ConfigProblem> {
        let text = value.get_ref().as_str();
        text.and_then(|text| text.parse().ok()).ok_or_else(|| self.wrong(key, value, expected))
    }

    fn wrong(&self, key: &str, value: &Value<'_>, expected: &'static str) -> ConfigProblem {
        let position = Position::of_offset(self.text, value.span().start);
        ConfigProblem::WrongType { position, key: key.to_owned(), expected }
    }

    fn unknown(&self, key: &Spanned<std::borrow::Cow<'_, str>>, table: &str, known: &[&str]) -> ConfigProblem {
        ConfigProblem::UnknownKey {
            position: Position::of_offset(self.text, key.span().start),
            key: key.get_ref().to_string(),
            table: table.to_owned(),
            nearest: nearest(key.get_ref(), known.iter().copied()).first().map(|name| (*name).to_owned()),
            known: known.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn refused(text: &str) -> String {
        let failure = read(text, &|_| None).expect_err("it is wrong").in_file(Path::new("toolbus.toml"));
        format!("{failure} / {}", failure.hint())
    }

    #[test]
    fn the_template_is_a_configuration() {
        let config = read(super::super::TEMPLATE, &|_| None).expect("what we write can be read");
        assert!(config.servers.is_empty() && config.roles.is_empty(), "everything in it is a comment at first");
        let uncommented: String = super::super::TEMPLATE
            .lines()
            .map(|line| format!("{}\n", line.strip_prefix("#:").unwrap_or(line)))
            .collect();
        let config = read(&uncommented, &|_| Some("secret".into())).expect("so can what it proposes");
        assert_eq!(config.servers.len(), 3, "{uncommented}");
        assert_eq!(config.roles.len(), 2);
    }

    #[test]
    fn mistakes_have_a_place_and_a_hint() {
        let check = |text, expected| assert_eq!(refused(text), format!("toolbus.toml: {expected}"));
        check(
            "listen = \n",
            "line 1, column 10: string values must be quoted, expected literal string / correct the file at that place",
        );
        check("\n lisen = 1", "line 2, column 2: unknown key \"lisen\" / did you mean listen?");
        check(
            "listen = 7420",
            "line 1, column 10: listen has to be an address such as \"127.0.0.1:7420\" / correct the value",
        );
        check("[roles.a]\nallw = []", "line 2, column 1: unknown key \"allw\" in [roles.a] / did you mean allow?");
        check("[roles.a]\nallow = [1]", "line 2, column 10: roles.a.allow has to be a string / correct the value");
        check(
            "[servers.a]\ncommand = 'a'\n[servers.a]\ncommand = 'b'",
            "line 3, column 10: [servers.a] stands in the file twice / correct the file at that place",
        );
        check("zzz = 1", "line 1, column 1: unknown key \"zzz\" / known keys: listen, data, name, servers, roles, pin");
    }
}
