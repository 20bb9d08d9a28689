//! Reads `[[roles.NAME.rules]]`: rules with conditions on arguments.

use super::role::{Rules, STRINGS};
use super::{Reader, bad_pattern};
use crate::condition::{Condition, Number, Scalar, Test};
use crate::pattern::PatternError;
use crate::question::Effect;
use std::sync::Arc;
use toolbus_config::{ConfigError, Setting, Table, Value};

const RULE_KEYS: [&str; 3] = ["effect", "match", "when"];
const RULE_HINT: &str = "a rule needs effect = \"allow\", \"ask\" or \"deny\", and match = [\"…\"]";
const CONDITION_KEYS: [&str; 6] = ["pointer", "equals", "prefix", "glob", "min", "max"];
const POINTER_HINT: &str = "write the path of a value, such as \"/path\"";

impl Reader {
    pub(super) fn conditional_rules(&mut self, setting: &Setting, rules: &mut Rules) -> Result<(), ConfigError> {
        let list = setting.list("a list of tables: [[roles.NAME.rules]]")?;
        list.iter().try_for_each(|rule| self.conditional_rule(rule, rules))
    }

    fn conditional_rule(&mut self, setting: &Setting, rules: &mut Rules) -> Result<(), ConfigError> {
        let table = setting.table("a table with effect, match and when")?;
        table.check_keys(&RULE_KEYS)?;
        let effect = table.read("effect", |effect| effect.parse("\"allow\", \"ask\" or \"deny\"", Effect::parse))?;
        let effect = effect.ok_or_else(|| table.missing("effect", RULE_HINT))?;
        let patterns = table.read("match", |patterns| patterns.list(STRINGS))?;
        let patterns = patterns.ok_or_else(|| table.missing("match", RULE_HINT))?;
        let conditions: Option<Arc<[Condition]>> = table.read("when", |when| {
            when.list("a list of conditions")?.iter().map(|condition| read_condition(condition, rules)).collect()
        })?;
        let conditions = conditions.unwrap_or_default();
        if patterns.is_empty() {
            self.warn(setting.position, format!("a rule of [roles.{}] matches nothing: `match` is empty", rules.role));
        }
        if conditions.is_empty() {
            let text = format!("a rule of [roles.{}] has no condition; `{effect} = [\"…\"]` is equivalent", rules.role);
            self.warn(setting.position, text);
        }
        patterns.iter().try_for_each(|pattern| rules.add(effect, pattern, Arc::clone(&conditions)))
    }
}

fn read_condition(setting: &Setting, rules: &mut Rules) -> Result<Condition, ConfigError> {
    let table = setting.table("a table such as { pointer = \"/path\", prefix = \"/tmp/\" }")?;
    let tests = table.entries().filter(|(key, ..)| *key != "pointer");
    let tests: Vec<Test> = tests.map(|(key, _, value)| read_test(table, key, value)).collect::<Result<_, _>>()?;
    let pointer = table.get("pointer").ok_or_else(|| table.missing("pointer", POINTER_HINT))?;
    let path = pointer.text()?;
    if path.is_empty() {
        let reason = "the empty pointer refers to the whole document, but a condition needs a single value";
        return Err(pointer.invalid(reason, POINTER_HINT));
    }
    if tests.is_empty() {
        let reason = format!("the condition on {path:?} has no test: use equals, prefix, glob, min or max");
        return Err(setting.invalid(reason, "add a test such as prefix = \"/tmp/\""));
    }
    if is_empty_range(&tests) {
        return Err(setting.invalid("min is larger than max, so no value matches", "correct the value"));
    }
    let slot = rules.pointers.add(path);
    let slot = slot.map_err(|error| pointer.invalid(format!("{path:?}: {error}"), POINTER_HINT))?;
    Ok(Condition { pointer: path.to_owned(), slot, tests })
}

fn read_test(table: &Table, key: &str, value: &Setting) -> Result<Test, ConfigError> {
    let number = || number_of(&value.value).ok_or_else(|| value.wrong("a number"));
    Ok(match key {
        "equals" => Test::Equals(match &value.value {
            Value::Text(text) => Scalar::Text(text.clone()),
            Value::Flag(flag) => Scalar::Flag(*flag),
            other => {
                number_of(other).map(Scalar::Number).ok_or_else(|| value.wrong("a string, a number, true or false"))?
            }
        }),
        "prefix" => Test::Prefix(value.text()?.to_owned()),
        "glob" => {
            let text = value.text()?;
            let invalid =
                |error: globset::Error| bad_pattern(value, text, &PatternError::Glob(error.kind().to_string()));
            Test::glob(text).map_err(invalid)?
        }
        "min" => Test::Min(number()?),
        "max" => Test::Max(number()?),
        _ => return Err(table.unknown(key, &CONDITION_KEYS)),
    })
}

fn number_of(value: &Value) -> Option<Number> {
    match value {
        Value::Whole(whole) => Some(Number::Whole(*whole)),
        Value::Float(float) => Some(Number::Float(*float)),
        _ => None,
    }
}

fn is_empty_range(tests: &[Test]) -> bool {
    let min = tests.iter().find_map(|test| if let Test::Min(min) = test { Some(*min) } else { None });
    let max = tests.iter().find_map(|test| if let Test::Max(max) = test { Some(*max) } else { None });
    matches!((min, max), (Some(min), Some(max)) if min > max)
}
