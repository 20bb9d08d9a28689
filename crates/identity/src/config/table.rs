//! A table of the configuration with a fixed set of keys and typed access to its values.

use super::error::{AuthConfigError, Position};
use crate::patterns::Pattern;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toolbus_protocol::check_name;

type Value<'a> = Spanned<DeValue<'a>>;

pub struct Table<'a> {
    text: &'a str,
    name: &'static str,
    entries: &'a DeTable<'a>,
    start: usize,
}

impl<'a> Table<'a> {
    pub fn new(
        text: &'a str,
        name: &'static str,
        value: &'a Value<'a>,
        known: &[&str],
    ) -> Result<Self, AuthConfigError> {
        let position = |offset| Position::of_offset(text, offset);
        let start = value.span().start;
        let entries = value.get_ref().as_table().ok_or_else(|| AuthConfigError::Wrong {
            position: position(start),
            key: name.to_owned(),
            expected: "a table",
        })?;
        let mut unknown: Vec<_> = entries.keys().filter(|key| !known.contains(&&**key.get_ref())).collect();
        unknown.sort_by_key(|key| key.span().start);
        if let Some(key) = unknown.first() {
            let key_name = key.get_ref().to_string();
            let nearest = known.iter().max_by(|a, b| similarity(&key_name, a).total_cmp(&similarity(&key_name, b)));
            let nearest = nearest.filter(|nearest| similarity(&key_name, nearest) > 0.8);
            return Err(AuthConfigError::UnknownKey {
                position: position(key.span().start),
                nearest: nearest.map(|nearest| (*nearest).to_owned()),
                key: key_name,
                table: name.to_owned(),
                known: known.join(", "),
            });
        }
        Ok(Self { text, name, entries, start })
    }

    pub fn get(&self, key: &str) -> Option<&'a Value<'a>> {
        self.entries.get(key)
    }

    pub fn string(&self, key: &'static str) -> Result<Option<&'a str>, AuthConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let text = value.get_ref().as_str().filter(|text| !text.is_empty());
        text.map(Some).ok_or_else(|| self.wrong(key, "a non-empty string"))
    }

    pub fn string_list(&self, key: &'static str) -> Result<Option<Vec<String>>, AuthConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || self.wrong(key, "a string or a list of strings");
        let one = |value: &Value<'_>| value.get_ref().as_str().map(str::to_owned).filter(|text| !text.is_empty());
        match value.get_ref() {
            DeValue::Array(list) => {
                list.iter().map(|value| one(value).ok_or_else(wrong)).collect::<Result<_, _>>().map(Some)
            }
            _ => one(value).map(|text| Some(vec![text])).ok_or_else(wrong),
        }
    }

    pub fn duration(&self, key: &'static str) -> Result<Option<Duration>, AuthConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let read = |text: &str| {
            let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
            let seconds = match unit {
                "s" => 1,
                "m" => 60,
                "h" => 3600,
                _ => return None,
            };
            Some(Duration::from_secs(number.parse::<u64>().ok()?.checked_mul(seconds)?))
        };
        let read = value.get_ref().as_str().and_then(read).filter(|time| *time >= Duration::from_secs(30));
        read.map(Some).ok_or_else(|| self.wrong(key, "a time of 30s or more, such as \"5m\""))
    }

    pub fn patterns(&self, key: &'static str) -> Result<Vec<Pattern>, AuthConfigError> {
        let strings = self.string_list(key)?.unwrap_or_default();
        strings.iter().map(|text| self.pattern(key, text)).collect()
    }

    /// A table that maps strings to roles, in file order.
    pub fn roles(&self, key: &'static str) -> Result<Vec<(String, String)>, AuthConfigError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let wrong = || self.wrong(key, "a table of roles, such as { \"group\" = \"reader\" }");
        let table = value.get_ref().as_table().ok_or_else(wrong)?;
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        let role = |(name, role): (&Spanned<_>, &Value<'_>)| {
            let name: &std::borrow::Cow<'_, str> = name.get_ref();
            let role = role.get_ref().as_str().ok_or_else(wrong)?;
            check_name(role).map_err(|error| self.unusable(key, format!("the role {role:?}: {error}")))?;
            Ok((name.to_string(), role.to_owned()))
        };
        entries.into_iter().map(role).collect()
    }

    pub fn roles_by_pattern(&self, key: &'static str) -> Result<Vec<(Pattern, String)>, AuthConfigError> {
        self.roles(key)?.into_iter().map(|(name, role)| Ok((self.pattern(key, &name)?, role))).collect()
    }

    pub fn wrong(&self, key: &str, expected: &'static str) -> AuthConfigError {
        AuthConfigError::Wrong { position: self.position(key), key: format!("{}.{key}", self.name), expected }
    }

    pub fn missing(&self, key: &'static str) -> AuthConfigError {
        let position = Position::of_offset(self.text, self.start);
        AuthConfigError::Missing { position, table: self.name, key }
    }

    fn pattern(&self, key: &str, text: &str) -> Result<Pattern, AuthConfigError> {
        Pattern::new(text).map_err(|error| self.unusable(key, error.to_string()))
    }

    fn unusable(&self, key: &str, reason: String) -> AuthConfigError {
        AuthConfigError::Unusable { position: self.position(key), key: format!("{}.{key}", self.name), reason }
    }

    fn position(&self, key: &str) -> Position {
        let start = self.get(key).map_or(self.start, |value| value.span().start);
        Position::of_offset(self.text, start)
    }
}

fn similarity(one: &str, other: &str) -> f64 {
    strsim::jaro_winkler(one, other)
}
