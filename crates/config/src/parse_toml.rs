//! Parses TOML into settings with their positions.

use crate::document::{Entry, Table, join};
use crate::error::{ConfigError, Problem};
use crate::position::Lines;
use crate::setting::{Setting, Value};
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

pub fn parse(text: &str, lines: &Lines<'_>) -> Result<Setting, ConfigError> {
    let file = DeTable::parse(text).map_err(|error| syntax(text, lines, &error))?;
    let root = Spanned::new(file.span(), DeValue::Table(file.into_inner()));
    Ok(setting(lines, String::new(), root))
}

fn syntax(text: &str, lines: &Lines<'_>, error: &toml::de::Error) -> ConfigError {
    let position = lines.position(error.span().unwrap_or_default().start);
    let mut reason = error.message().to_owned();
    // The parser's message does not name the duplicate key.
    if reason.starts_with("duplicate key") {
        let line = text.lines().nth(position.line - 1).unwrap_or_default().trim();
        let name = if line.starts_with('[') { line } else { line.split('=').next().unwrap_or(line).trim_end() };
        reason = format!("duplicate {name}");
    }
    ConfigError { position, key: String::new(), problem: Problem::Syntax(reason) }
}

fn setting(lines: &Lines<'_>, path: String, value: Spanned<DeValue<'_>>) -> Setting {
    let position = lines.position(value.span().start);
    let value = match value.into_inner() {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(integer) => whole(&integer).map_or(Value::Other, Value::Whole),
        DeValue::Float(float) => float.as_str().replace('_', "").parse().map_or(Value::Other, finite),
        DeValue::Boolean(flag) => Value::Flag(flag),
        DeValue::Array(list) => {
            let items = list.into_iter().enumerate();
            Value::List(items.map(|(at, item)| setting(lines, format!("{path}[{at}]"), item)).collect())
        }
        DeValue::Table(table) => {
            let entry = |(key, value): (Spanned<std::borrow::Cow<'_, str>>, _)| {
                let position = lines.position(key.span().start);
                let name = key.into_inner().into_owned();
                Entry { setting: setting(lines, join(&path, &name), value), name, position }
            };
            let mut entries: Vec<Entry> = table.into_iter().map(entry).collect();
            entries.sort_by_key(|entry| entry.position);
            Value::Table(Table { path: path.clone(), position, entries })
        }
        DeValue::Datetime(_) => Value::Other,
    };
    Setting { path, position, value }
}

fn whole(integer: &DeInteger<'_>) -> Option<i128> {
    i128::from_str_radix(&integer.as_str().replace('_', ""), integer.radix()).ok()
}

fn finite(float: f64) -> Value {
    if float.is_finite() { Value::Float(float) } else { Value::Other }
}
