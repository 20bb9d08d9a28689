//! Reads toolbus.toml. Each section is read by the crate that uses it; the other keys are read here.

use super::{Config, JournalSettings, LocalBroker, in_file};
use std::path::{Path, PathBuf};
use std::time::Duration;
use toolbus_config::{ConfigError, Document, Setting, Table, parse_size};
use toolbus_identity::read_auth;
use toolbus_policy::PolicySet;
use toolbus_ship::Target;
use toolbus_upstream::{Environment, PinMode, read_servers};

const KEYS: [&str; 13] = [
    "listen",
    "data",
    "shared_token_file",
    "name",
    "servers",
    "roles",
    "limits",
    "hosts",
    "auth",
    "pin",
    "caller_grace",
    "journal",
    "audit",
];
const AUDIT_KEYS: [&str; 1] = ["ship"];
const JOURNAL_KEYS: [&str; 3] = ["keep", "max_size", "sync_results"];
/// A call that is forgotten while its caller may still repeat it would run a second time.
const MIN_KEEP: Duration = Duration::from_secs(3600);
/// Anything smaller holds only a few large results.
const MIN_JOURNAL_SIZE: u64 = 16 << 20;

/// Reads the settings of a broker and a host.
pub fn read(document: &Document, file: &Path, env: Environment<'_>) -> Result<Config, ConfigError> {
    let broker = read_broker(document, file)?;
    let (root, defaults) = (document.root(), Config::default());
    let read = Config {
        name: root.read("name", Setting::text)?.map(str::to_owned),
        pin: root.read("pin", |pin| pin.parse(PinMode::EXPECTED, PinMode::parse))?.unwrap_or_default(),
        caller_grace: root.read("caller_grace", read_grace)?.unwrap_or(defaults.caller_grace),
        journal: root.read("journal", |journal| read_journal(journal.section(&JOURNAL_KEYS)?))?.unwrap_or_default(),
        ..defaults
    };
    let servers = read_servers(document, env)?;
    Ok(Config {
        listen: broker.listen,
        data: broker.data,
        shared_token_file: broker.shared_token_file,
        auth: broker.auth,
        ship_audit: broker.ship_audit,
        servers: servers.servers,
        policy: broker.policy,
        warnings: broker.warnings.into_iter().chain(in_file(file, &servers.warnings)).collect(),
        ..read
    })
}

/// Reads the settings of a broker without a host. Servers and their variables are not checked.
pub fn read_broker(document: &Document, file: &Path) -> Result<LocalBroker, ConfigError> {
    const ADDRESS: &str = "an address such as \"127.0.0.1:7420\"";
    let root = document.root();
    root.check_keys(&KEYS)?;
    let listen = root.read("listen", |address| address.parse(ADDRESS, |text| text.parse().ok()))?;
    let path = |key| root.read(key, |path| Ok(beside(file, path.text()?)));
    let (data, shared_token_file) = (path("data")?, path("shared_token_file")?);
    let ship_audit = root.read("audit", |audit| {
        audit.section(&AUDIT_KEYS)?.read("ship", |target| target.parse(Target::EXPECTED, Target::parse))
    })?;
    let (policy, warnings) = PolicySet::read_from(document)?;
    Ok(LocalBroker {
        listen,
        data,
        shared_token_file,
        auth: read_auth(document, file.parent().unwrap_or(Path::new(".")))?,
        ship_audit: ship_audit.flatten(),
        roles: policy.named_roles().map(str::to_owned).collect(),
        servers: names(root, "servers"),
        policy,
        file: None,
        warnings: in_file(file, &warnings).collect(),
    })
}

/// Reads the broker's address and data folder and the names of roles and servers; ignores everything else.
pub fn read_local(document: &Document, file: &Path) -> LocalBroker {
    let root = document.root();
    let text = |key| root.get(key).and_then(Setting::as_text);
    LocalBroker {
        listen: text("listen").and_then(|text| text.parse().ok()),
        data: text("data").map(|data| beside(file, data)),
        roles: names(root, "roles"),
        servers: names(root, "servers"),
        ..LocalBroker::default()
    }
}

fn names(root: &Table, key: &str) -> Vec<String> {
    let table = root.get(key).and_then(|value| value.table("a table").ok());
    table.into_iter().flat_map(Table::names).map(str::to_owned).collect()
}

/// Resolves a path relative to the file, so that it does not depend on the working folder.
fn beside(file: &Path, path: &str) -> PathBuf {
    file.parent().map_or_else(|| path.into(), |folder| folder.join(path))
}

fn read_grace(value: &Setting) -> Result<Option<Duration>, ConfigError> {
    match value.as_text() {
        Some("off") => Ok(None),
        _ => value.duration("a duration such as \"30s\" or \"2m\", or \"off\"").map(Some),
    }
}

fn read_journal(table: &Table) -> Result<JournalSettings, ConfigError> {
    const KEEP: &str = "a duration of at least \"1h\", such as \"24h\", and longer than the longest call deadline";
    const SIZE: &str = "a size of at least 16MiB, such as \"256MiB\" or \"1GiB\"";
    let defaults = JournalSettings::default();
    let keep = table.read("keep", |keep| {
        Some(keep.duration(KEEP)?).filter(|time| *time >= MIN_KEEP).ok_or_else(|| keep.wrong(KEEP))
    })?;
    let max_size = table
        .read("max_size", |size| size.parse(SIZE, |text| parse_size(text).filter(|size| *size >= MIN_JOURNAL_SIZE)))?;
    Ok(JournalSettings {
        keep: keep.unwrap_or(defaults.keep),
        max_size: max_size.unwrap_or(defaults.max_size),
        sync_results: table.read("sync_results", Setting::flag)?.unwrap_or(defaults.sync_results),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, env: Environment<'_>) -> Result<Config, ConfigError> {
        super::read(&Document::parse_toml(text)?, Path::new("toolbus.toml"), env)
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
        assert_eq!(config.roles(), ["local", "operator", "reader"]);
        assert_eq!(config.warnings, [""; 0]);
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
