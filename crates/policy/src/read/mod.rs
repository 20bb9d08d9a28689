//! Reads `[roles]`, `[limits]` and `[hosts]` of a toolbus.toml.

mod hosts;
mod limit;
mod role;
mod rules;

use crate::index::Index;
use crate::limits::{Limit, LimitKind};
use crate::pattern::{Pattern, PatternError};
use crate::role_names;
use crate::set::{LOCAL, OPERATOR, PolicySet, Role};
use std::collections::BTreeMap;
use toolbus_config::{ConfigError, Document, Position, Setting, Warning};

/// The set has no roles if the file has none.
pub fn read(file: &Document) -> Result<(PolicySet, Vec<Warning>), ConfigError> {
    let mut reader = Reader::default();
    let mut set = PolicySet::empty();
    if let Some(roles) = file.root().read("roles", |roles| reader.roles(roles))? {
        set.own_roles = !roles.is_empty();
        set.roles = Some(roles).filter(|_| set.own_roles);
    }
    if let Some(limits) = file.root().read("limits", limits_of)? {
        (set.limits, set.limit_index) = limits;
    }
    set.hosts = file.root().read("hosts", hosts::hosts_of)?.unwrap_or_default();
    reader.warnings.sort_by_key(|warning| warning.position);
    Ok((set, reader.warnings))
}

#[derive(Default)]
struct Reader {
    warnings: Vec<Warning>,
}

impl Reader {
    fn roles(&mut self, roles: &Setting) -> Result<BTreeMap<String, Role>, ConfigError> {
        let mut read = BTreeMap::new();
        let mut seen: BTreeMap<String, String> =
            [LOCAL, OPERATOR].into_iter().map(|role| (role_names::confusable_key(role), role.to_owned())).collect();
        let table = roles.table(role::EXPECTED)?;
        for (name, position, role) in table.entries() {
            if let Some(reason) = role_names::rejection(name) {
                return Err(table.invalid_key(name, format!("invalid role: {reason}"), "choose another name"));
            }
            let similar = seen.insert(role_names::confusable_key(name), name.to_owned());
            if let Some(similar) = similar.filter(|similar| similar != name) {
                self.warn(position, format!("the roles {name:?} and {similar:?} look alike, but are different"));
            }
            read.insert(name.to_owned(), self.role(name, position, role)?);
        }
        Ok(read)
    }

    fn warn(&mut self, position: Position, text: String) {
        self.warnings.push(Warning { position, text });
    }
}

fn limits_of(limits: &Setting) -> Result<(Vec<Limit>, Index), ConfigError> {
    const EXPECTED: &str = "a table: [limits.\"PATTERN\"] with rate, concurrency, max_result or deadline";
    let (mut read, mut patterns) = (Vec::new(), Vec::new());
    let table = limits.table(EXPECTED)?;
    for (pattern, position, setting) in table.entries() {
        let invalid = |error: PatternError| table.invalid_key(pattern, format!("{pattern:?} {error}"), PATTERN_HINT);
        patterns.push(Pattern::parse(pattern).map_err(invalid)?);
        let mut limit = Limit::none(LimitKind::Pattern(pattern.to_owned()), position);
        let keys = setting.table(EXPECTED)?;
        for (key, _, value) in keys.entries() {
            if !limit::read(&mut limit, key, value)? {
                return Err(keys.unknown(key, &limit::KEYS));
            }
        }
        read.push(limit);
    }
    let index = Index::new(&patterns).map_err(|error| too_large(limits, &error))?;
    Ok((read, index))
}

const PATTERN_HINT: &str = "patterns are NAME or SERVER/NAME; * stands for anything";

fn bad_pattern(setting: &Setting, text: &str, error: &PatternError) -> ConfigError {
    setting.invalid(format!("{text:?} {error}"), PATTERN_HINT)
}

fn too_large(setting: &Setting, error: &globset::Error) -> ConfigError {
    setting.invalid(format!("the patterns are too large: {error}"), "use fewer or simpler patterns")
}
