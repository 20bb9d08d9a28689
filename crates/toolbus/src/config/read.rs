//! Parses toolbus.toml. Unknown keys are rejected with their position in the file.

use super::error::{ConfigProblem, Position};
use super::{Config, JournalSettings, LocalBroker};
use crate::commands::parse_duration;
use crate::nearest::nearest;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toolbus_policy::{PolicySet, parse_size};
use toolbus_upstream::{PinMode, read_toml_servers};

const KEYS: [&str; 11] = [
    "listen",
    "data",
    "shared_token_file",
    "name",
    "servers",
    "roles",
    "limits",
    "auth",
    "pin",
    "caller_grace",
    "journal",
];
const JOURNAL_KEYS: [&str; 3] = ["keep", "max_size", "sync_results"];
const KEEP_EXPECTED: &str = "a duration of at least \"1h\", such as \"24h\", and longer than the longest call deadline";
/// A call that is forgotten while its caller may still repeat it would run a second time.
const MIN_KEEP: Duration = Duration::from_secs(3600);
const GRACE_EXPECTED: &str = "a duration such as \"30s\" or \"2m\", or \"off\"";
const SIZE_EXPECTED: &str = "a size of at least 16MiB, such as \"256MiB\" or \"1GiB\"";
/// Anything smaller holds only a few large results.
const MIN_JOURNAL_SIZE: u64 = 16 << 20;
const ADDRESS_EXPECTED: &str = "an address such as \"127.0.0.1:7420\"";

type Value<'a> = Spanned<DeValue<'a>>;

pub fn read(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Config, ConfigProblem> {
    let file = DeTable::parse(text).map_err(|error| syntax(text, &error))?;
    let reader = Reader { text };
    let mut config = Config::default();
    for (key, value) in file.get_ref() {
        match &**key.get_ref() {
            "listen" => config.listen = Some(reader.parsed("listen", value, ADDRESS_EXPECTED)?),
            "data" => config.data = Some(reader.text("data", value)?.into()),
            "shared_token_file" => config.shared_token_file = Some(reader.text("shared_token_file", value)?.into()),
            "name" => config.name = Some(reader.text("name", value)?.to_owned()),
            "pin" => config.pin = reader.pin(value)?,
            "caller_grace" => config.caller_grace = reader.grace(value)?,
            "journal" => config.journal = reader.journal(value)?,
            // Read by the crates for servers, policy and identity: below, and in `Config::read`.
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
    // The parser's message does not name the duplicate key.
    if reason.starts_with("duplicate key") {
        let line = text.lines().nth(position.line - 1).unwrap_or_default().trim();
        let name = if line.starts_with('[') { line } else { line.split('=').next().unwrap_or(line).trim_end() };
        reason = format!("duplicate {name}");
    }
    ConfigProblem::Syntax(position, reason)
}

/// Reads the broker's address and data folder and the names of roles and servers; ignores everything else.
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

/// Reads the settings of a broker without a host. Servers and their variables are not checked.
pub fn read_broker(text: &str) -> Result<LocalBroker, ConfigProblem> {
    let file = DeTable::parse(text).map_err(|error| syntax(text, &error))?;
    let reader = Reader { text };
    let mut local = LocalBroker::default();
    for (key, value) in file.get_ref() {
        match &**key.get_ref() {
            "listen" => local.listen = Some(reader.parsed("listen", value, ADDRESS_EXPECTED)?),
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

/// Names of the roles in the file.
pub fn own_roles(policy: &PolicySet) -> Vec<String> {
    policy.named_roles().map(str::to_owned).collect()
}

struct Reader<'a> {
    text: &'a str,
}

impl Reader<'_> {
    fn pin(&self, value: &Value<'_>) -> Result<PinMode, ConfigProblem> {
        let mode = value.get_ref().as_str().and_then(PinMode::parse);
        mode.ok_or_else(|| self.wrong("pin", value, PinMode::EXPECTED))
    }

    fn grace(&self, value: &Value<'_>) -> Result<Option<Duration>, ConfigProblem> {
        match value.get_ref().as_str() {
            Some("off") => Ok(None),
            _ => self.time("caller_grace", value, GRACE_EXPECTED).map(Some),
        }
    }

    fn journal(&self, value: &Value<'_>) -> Result<JournalSettings, ConfigProblem> {
        let table = value.get_ref().as_table().ok_or_else(|| self.wrong("journal", value, "a table"))?;
        let mut journal = JournalSettings::default();
        for (key, value) in table {
            match &**key.get_ref() {
                "keep" => {
                    let keep = self.time("journal.keep", value, KEEP_EXPECTED)?;
                    journal.keep = Some(keep)
                        .filter(|keep| *keep >= MIN_KEEP)
                        .ok_or_else(|| self.wrong("journal.keep", value, KEEP_EXPECTED))?;
                }
                "max_size" => {
                    let size = value.get_ref().as_str().and_then(parse_size).filter(|size| *size >= MIN_JOURNAL_SIZE);
                    journal.max_size = size.ok_or_else(|| self.wrong("journal.max_size", value, SIZE_EXPECTED))?;
                }
                "sync_results" => {
                    let sync = value.get_ref().as_bool();
                    journal.sync_results =
                        sync.ok_or_else(|| self.wrong("journal.sync_results", value, "true or false"))?;
                }
                _ => return Err(self.unknown(key, &JOURNAL_KEYS)),
            }
        }
        Ok(journal)
    }

    fn time(&self, key: &str, value: &Value<'_>, expected: &'static str) -> Result<Duration, ConfigProblem> {
        let time = value.get_ref().as_str().and_then(|text| parse_duration(text).ok());
        time.filter(|time| !time.is_zero()).ok_or_else(|| self.wrong(key, value, expected))
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
        let failure = read(text, &|_| None).expect_err("an error").in_file(Path::new("toolbus.toml"));
        format!("{failure} / {}", failure.hint())
    }

    #[test]
    fn the_template_is_valid_with_and_without_its_comments() {
        let config = read(super::super::TEMPLATE, &|_| None).expect("the template is valid");
        assert!(config.servers.is_empty() && !config.policy.has_own_roles(), "everything in it is commented out");
        let uncommented: String = super::super::TEMPLATE
            .lines()
            .map(|line| format!("{}\n", line.strip_prefix("#:").unwrap_or(line)))
            .collect();
        let config = read(&uncommented, &|_| Some("secret".into())).expect("the uncommented template is valid");
        assert_eq!(config.servers.len(), 3, "{uncommented}");
        assert_eq!(own_roles(&config.policy), ["local", "operator", "reader"]);
        assert_eq!(config.warnings, [""; 0]);
    }

    #[test]
    fn errors_have_a_position_and_a_hint() {
        let check = |text, expected| assert_eq!(refused(text), format!("toolbus.toml: {expected}"));
        check(
            "listen = \n",
            "line 1, column 10: string values must be quoted, expected literal string / correct the file at that position",
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
            "line 3, column 10: duplicate [servers.a] / correct the file at that position",
        );
        check(
            "zzz = 1",
            "line 1, column 1: unknown key \"zzz\" / known keys: listen, data, shared_token_file, name, servers, roles, limits, auth, \
             pin, caller_grace, journal",
        );
        check(
            "caller_grace = 'soon'",
            "line 1, column 16: caller_grace has to be a duration such as \"30s\" or \"2m\", or \"off\" / correct the value",
        );
        check("[journal]\nkep = '1h'", "line 2, column 1: unknown key \"kep\" / did you mean keep?");
        check(
            "[journal]\nkeep = 5",
            "line 2, column 8: journal.keep has to be a duration of at least \"1h\", such as \"24h\", and longer than \
             the longest call deadline / correct the value",
        );
        check(
            "[journal]\nkeep = '59m'",
            "line 2, column 8: journal.keep has to be a duration of at least \"1h\", such as \"24h\", and longer than \
             the longest call deadline / correct the value",
        );
        check(
            "[journal]\nsync_results = 'yes'",
            "line 2, column 16: journal.sync_results has to be true or false / correct the value",
        );
        check(
            "[journal]\nmax_size = '1KiB'",
            "line 2, column 12: journal.max_size has to be a size of at least 16MiB, such as \"256MiB\" or \"1GiB\" / correct \
             the value",
        );
    }

    #[test]
    fn caller_grace_and_journal_settings_are_read_or_default() {
        let default = read("", &|_| None).expect("an empty file is valid");
        assert_eq!(default.caller_grace, Some(Duration::from_secs(120)));
        let keep = Duration::from_secs(24 * 3600);
        assert_eq!(default.journal, JournalSettings { keep, max_size: 1 << 30, sync_results: false });
        let text = "caller_grace = 'off'\n[journal]\nkeep = '2h'\nmax_size = '64MiB'\nsync_results = true";
        let config = read(text, &|_| None).expect("a configuration");
        assert_eq!(config.caller_grace, None);
        let keep = Duration::from_secs(7200);
        assert_eq!(config.journal, JournalSettings { keep, max_size: 64 << 20, sync_results: true });
    }
}
