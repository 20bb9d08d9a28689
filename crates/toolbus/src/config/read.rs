//! toolbus.toml from its text. Every key is known or refused, with its place in the file.

use super::error::{ConfigProblem, Position};
use super::{Config, LocalBroker};
use crate::nearest::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toolbus_policy::PolicySet;
use toolbus_upstream::{PinMode, read_toml_servers};

const KEYS: [&str; 9] = ["listen", "data", "shared_token_file", "name", "servers", "roles", "limits", "auth", "pin"];
const ADDRESS: &str = "an address such as \"127.0.0.1:7420\"";

type Value<'a> = Spanned<DeValue<'a>>;

pub fn read(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Config, ConfigProblem> {
    let file = DeTable::parse(text).map_err(|error| syntax(text, &error))?;
    let reader = Reader { text };
    let mut config = Config::default();
    for (key, value) in file.get_ref() {
        match &**key.get_ref() {
            "listen" => config.listen = Some(reader.parsed("listen", value, ADDRESS)?),
            "data" => config.data = Some(reader.text("data", value)?.into()),
            "shared_token_file" => config.shared_token_file = Some(reader.text("shared_token_file", value)?.into()),
            "name" => config.name = Some(reader.text("name", value)?.to_owned()),
            "pin" => config.pin = reader.pin(value)?,
            // Below and elsewhere, by those who know what a server is, and what a rule.
            "servers" | "roles" | "limits" | "auth" => {}
            _ => return Err(reader.unknown(key, &KEYS)),
        }
    }
    let (policy, warnings) = PolicySet::read(text).map_err(ConfigProblem::Policy)?;
    let servers = read_toml_servers(text, env).map_err(ConfigProblem::Servers)?;
    config.servers = servers.servers;
    config.warnings = warnings.iter().map(ToString::to_string).chain(servers.warnings).collect();
    config.policy = policy;
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

/// Only where the broker is.
pub fn read_local(text: &str) -> Result<LocalBroker, ConfigProblem> {
    let file = DeTable::parse(text).map_err(|error| syntax(text, &error))?;
    let text = |key: &str| file.get_ref().get(key).and_then(|value| value.get_ref().as_str());
    let names = |key: &str| {
        let table = file.get_ref().get(key).and_then(|value| value.get_ref().as_table());
        table.into_iter().flatten().map(|(name, _)| name.get_ref().to_string()).collect()
    };
    let listen = text("listen").and_then(|text| text.parse().ok());
    let data = text("data").map(Into::into);
    Ok(LocalBroker { listen, data, roles: names("roles"), servers: names("servers"), ..LocalBroker::default() })
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
            "shared_token_file" => local.shared_token_file = Some(reader.text("shared_token_file", value)?.into()),
            known if KEYS.contains(&known) => {}
            _ => return Err(reader.unknown(key, &KEYS)),
        }
    }
    let (policy, warnings) = PolicySet::read(text).map_err(ConfigProblem::Policy)?;
    local.roles = own_roles(&policy);
    local.policy = policy;
    local.warnings = warnings.iter().map(ToString::to_string).collect();
    Ok(local)
}

/// The roles that the file names.
pub fn own_roles(policy: &PolicySet) -> Vec<String> {
    if policy.has_own_roles() { policy.roles().map(str::to_owned).collect() } else { Vec::new() }
}

struct Reader<'a> {
    text: &'a str,
}

impl Reader<'_> {
    fn pin(&self, value: &Value<'_>) -> Result<PinMode, ConfigProblem> {
        let mode = value.get_ref().as_str().and_then(PinMode::parse);
        mode.ok_or_else(|| self.wrong("pin", value, PinMode::EXPECTED))
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

    fn unknown(&self, key: &Spanned<std::borrow::Cow<'_, str>>, known: &[&str]) -> ConfigProblem {
        ConfigProblem::UnknownKey {
            position: Position::of_offset(self.text, key.span().start),
            key: key.get_ref().to_string(),
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
        assert!(config.servers.is_empty() && !config.policy.has_own_roles(), "everything in it is a comment at first");
        let uncommented: String = super::super::TEMPLATE
            .lines()
            .map(|line| format!("{}\n", line.strip_prefix("#:").unwrap_or(line)))
            .collect();
        let config = read(&uncommented, &|_| Some("secret".into())).expect("so can what it proposes");
        assert_eq!(config.servers.len(), 3, "{uncommented}");
        assert_eq!(own_roles(&config.policy), ["local", "operator", "reader"]);
        assert_eq!(config.warnings, [""; 0]);
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
        check(
            "zzz = 1",
            "line 1, column 1: unknown key \"zzz\" / known keys: listen, data, shared_token_file, name, servers, roles, limits, auth, \
             pin",
        );
    }
}
