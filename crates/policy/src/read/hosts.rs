//! Reads `[hosts.NAME]`: the names that a host may offer, and the pool that it may join.

use super::{PATTERN_HINT, too_large};
use crate::offers::{HostNames, HostRules};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use toolbus_config::{ConfigError, Setting};

const EXPECTED: &str = "a table: [hosts.NAME] with offers = [\"pattern\", …], prefix or pool";
const KEYS: [&str; 3] = ["offers", "prefix", "pool"];

pub fn hosts_of(hosts: &Setting) -> Result<HostRules, ConfigError> {
    let mut read = HostRules::new();
    let known: Vec<&str> = hosts.table(EXPECTED)?.entries().map(|(name, _, _)| name).collect();
    for (name, _, host) in hosts.table(EXPECTED)?.entries() {
        let table = host.section(&KEYS)?;
        let names = HostNames {
            prefix: table.read("prefix", prefix_of)?,
            offers: table.read("offers", offers_of)?,
            pool: table.read("pool", |pool| pool_of(pool, &known))?,
        };
        if table.entries().next().is_none() {
            return Err(
                host.invalid("the host has neither offers nor prefix nor pool", "offers = [] lets it offer nothing")
            );
        }
        read.insert(name.to_owned(), names);
    }
    Ok(read)
}

fn prefix_of(prefix: &Setting) -> Result<String, ConfigError> {
    match prefix.text()? {
        "" => Err(prefix.invalid("the prefix is empty", "offers = [\"*\"] lets the host offer every name")),
        text => Ok(text.to_owned()),
    }
}

fn pool_of(pool: &Setting, hosts: &[&str]) -> Result<String, ConfigError> {
    let name = pool.text()?;
    if name.trim().is_empty() || name.contains(['/', '\\', '#']) || name.chars().any(char::is_control) {
        return Err(pool.invalid(format!("{name:?} is no name of a pool"), "use letters, digits and hyphens"));
    }
    if hosts.contains(&name) {
        return Err(pool.invalid(format!("{name:?} is the name of a host"), "give the pool a name of its own"));
    }
    Ok(name.to_owned())
}

fn offers_of(offers: &Setting) -> Result<GlobSet, ConfigError> {
    let mut set = GlobSetBuilder::new();
    for offer in offers.list(super::role::STRINGS)? {
        let text = offer.text()?;
        // Not a `Pattern`: a host's rules are about names as workers see them, whatever server they come from.
        let glob = GlobBuilder::new(text).literal_separator(false).backslash_escape(true).build();
        let invalid =
            |error: globset::Error| offer.invalid(format!("{text:?} is not a pattern: {}", error.kind()), PATTERN_HINT);
        set.add(glob.map_err(invalid)?);
    }
    set.build().map_err(|error| too_large(offers, &error))
}
