//! Parses `[roles]` and `[limits]` from the text of a toolbus.toml. Unknown keys are rejected with their position.

mod error;
mod role;
mod rules;
mod values;

pub(crate) use error::Problem;
pub use error::{PolicyError, Position, Warning};

use crate::index::Index;
use crate::limits::{Limit, LimitKind};
use crate::pattern::Pattern;
use crate::role_names;
use crate::set::{LOCAL, OPERATOR, PolicySet, Role};
use std::collections::BTreeMap;
use toml::de::DeTable;
use values::{Reader, Value};

const LIMIT_KEYS: [&str; 4] = ["rate", "concurrency", "max_result", "deadline"];

/// The set has no roles if the file has none.
pub fn read(text: &str) -> Result<(PolicySet, Vec<Warning>), PolicyError> {
    let file = DeTable::parse(text).map_err(|error| {
        let position = Position::of_offset(text, error.span().unwrap_or_default().start);
        PolicyError { position, problem: Problem::Syntax(error.message().to_owned()) }
    })?;
    let mut reader = Reader::new(text);
    let mut set = PolicySet { roles: None, limits: Vec::new(), limit_index: Index::default(), own_roles: false };
    if let Some(roles) = file.get_ref().get("roles") {
        let roles = roles_of(&mut reader, roles)?;
        set.own_roles = !roles.is_empty();
        if set.own_roles {
            set.roles = Some(roles);
        }
    }
    if let Some(limits) = file.get_ref().get("limits") {
        (set.limits, set.limit_index) = limits_of(&reader, limits)?;
    }
    reader.warnings.sort_by_key(|warning| warning.position);
    Ok((set, reader.warnings))
}

fn roles_of(reader: &mut Reader<'_>, value: &Value<'_>) -> Result<BTreeMap<String, Role>, PolicyError> {
    const EXPECTED: &str = "a table: [roles.NAME] with allow = [\"pattern\", …]";
    let mut roles = BTreeMap::new();
    let mut seen: BTreeMap<String, String> =
        [LOCAL, OPERATOR].into_iter().map(|role| (role_names::confusable_key(role), role.to_owned())).collect();
    for (key, value) in reader.table("roles", value, EXPECTED)? {
        let name = key.get_ref().to_string();
        let position = reader.position(key.span());
        if let Some(reason) = role_names::rejection(&name) {
            return Err(PolicyError { position, problem: Problem::Role { role: name, reason } });
        }
        let similar = seen.insert(role_names::confusable_key(&name), name.clone());
        if let Some(similar) = similar.filter(|similar| *similar != name) {
            let text = format!("the roles {name:?} and {similar:?} look alike, but are different");
            reader.warnings.push(Warning { position, text });
        }
        let role = reader.role(&name, position, value)?;
        roles.insert(name, role);
    }
    Ok(roles)
}

fn limits_of(reader: &Reader<'_>, value: &Value<'_>) -> Result<(Vec<Limit>, Index), PolicyError> {
    const EXPECTED: &str = "a table: [limits.\"PATTERN\"] with rate, concurrency, max_result or deadline";
    let (mut limits, mut patterns) = (Vec::new(), Vec::new());
    for (key, value) in reader.table("limits", value, EXPECTED)? {
        let pattern = key.get_ref().to_string();
        let position = reader.position(key.span());
        patterns.push(Pattern::parse(&pattern).map_err(|error| PolicyError {
            position,
            problem: Problem::Pattern { pattern: pattern.clone(), error },
        })?);
        let table = format!("limits.{pattern:?}");
        let mut limit = Limit::none(LimitKind::Pattern(pattern), position);
        for (key, value) in reader.table(&table, value, EXPECTED)? {
            if !reader.limit(&mut limit, &table, key.get_ref(), value)? {
                return Err(reader.unknown(key, &table, &LIMIT_KEYS));
            }
        }
        limits.push(limit);
    }
    let index = Index::new(&patterns).map_err(|error| PolicyError {
        position: reader.position(value.span()),
        problem: Problem::TooLarge { scope: "[limits]".into(), reason: error.to_string() },
    })?;
    Ok((limits, index))
}
