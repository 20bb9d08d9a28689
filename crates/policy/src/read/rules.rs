//! Parses `[[roles.NAME.rules]]`: rules with conditions on arguments.

use super::error::{PolicyError, Position, Problem};
use super::role::Rules;
use super::values::{Key, Reader, Value, number_of};
use crate::condition::{Condition, Scalar, Test};
use crate::pattern::PatternError;
use crate::question::Effect;
use std::sync::Arc;
use toml::de::DeValue;

const RULE_KEYS: [&str; 3] = ["effect", "match", "when"];
const CONDITION_KEYS: [&str; 6] = ["pointer", "equals", "prefix", "glob", "min", "max"];

impl Reader<'_> {
    pub(super) fn conditional_rules(
        &mut self,
        path: &str,
        value: &Value<'_>,
        rules: &mut Rules,
    ) -> Result<(), PolicyError> {
        for rule in self.list(path, value, "a list of tables: [[roles.NAME.rules]]")? {
            self.conditional_rule(path, rule, rules)?;
        }
        Ok(())
    }

    fn conditional_rule(&mut self, path: &str, value: &Value<'_>, rules: &mut Rules) -> Result<(), PolicyError> {
        let position = self.position(value.span());
        let (mut effect, mut patterns, mut conditions) = (None, None, Vec::new());
        for (key, value) in self.table(path, value, "a table with effect, match and when")? {
            let inner = format!("{path}.{}", key.get_ref());
            match &**key.get_ref() {
                "effect" => {
                    let word = Effect::parse(self.text(&inner, value)?);
                    let wrong = || self.wrong(&inner, value, "\"allow\", \"ask\" or \"deny\"");
                    effect = Some(word.ok_or_else(wrong)?);
                }
                "match" => patterns = Some(self.texts(&inner, value)?),
                "when" => {
                    for condition in self.list(&inner, value, "a list of conditions")? {
                        conditions.push(self.condition(&inner, condition, rules)?);
                    }
                }
                _ => return Err(self.unknown(key, path, &RULE_KEYS)),
            }
        }
        let missing = |key| {
            let problem = Problem::Missing { role: rules.role.to_string(), key };
            PolicyError { position, problem }
        };
        let effect = effect.ok_or_else(|| missing("effect"))?;
        let patterns = patterns.ok_or_else(|| missing("match"))?;
        if patterns.is_empty() {
            self.warn(position, format!("a rule of [roles.{}] matches nothing: `match` is empty", rules.role));
        }
        if conditions.is_empty() {
            let text = format!("a rule of [roles.{}] has no condition; `{effect} = [\"…\"]` is equivalent", rules.role);
            self.warn(position, text);
        }
        let conditions: Arc<[Condition]> = conditions.into();
        patterns.into_iter().try_for_each(|(text, position)| rules.add(effect, text, position, Arc::clone(&conditions)))
    }

    fn condition(&self, path: &str, value: &Value<'_>, rules: &mut Rules) -> Result<Condition, PolicyError> {
        let position = self.position(value.span());
        let (mut pointer, mut tests) = (None, Vec::new());
        for (key, value) in
            self.table(path, value, "a list of tables such as { pointer = \"/path\", prefix = \"/tmp/\" }")?
        {
            match &**key.get_ref() {
                "pointer" => pointer = Some((self.text(path, value)?, self.position(value.span()))),
                _ => tests.push(self.test(path, key, value)?),
            }
        }
        let Some((pointer, pointer_position)) = pointer else {
            let problem = Problem::Missing { role: rules.role.to_string(), key: "pointer" };
            return Err(PolicyError { position, problem });
        };
        let at = |position, problem| Err(PolicyError { position, problem });
        if pointer.is_empty() {
            return at(pointer_position, Problem::WholeDocument);
        }
        if tests.is_empty() {
            return at(position, Problem::NoTest { pointer: pointer.to_owned() });
        }
        if is_empty_range(&tests) {
            return at(position, Problem::EmptyRange);
        }
        let slot = rules.pointers.add(pointer).map_err(|error| PolicyError {
            position: pointer_position,
            problem: Problem::Pointer { pointer: pointer.to_owned(), error },
        })?;
        Ok(Condition { pointer: pointer.to_owned(), slot, tests })
    }

    fn test(&self, path: &str, key: &Key<'_>, value: &Value<'_>) -> Result<Test, PolicyError> {
        let inner = format!("{path}.{}", key.get_ref());
        Ok(match &**key.get_ref() {
            "equals" => Test::Equals(match value.get_ref() {
                DeValue::String(text) => Scalar::Text(text.to_string()),
                DeValue::Boolean(flag) => Scalar::Flag(*flag),
                other => number_of(other)
                    .map(Scalar::Number)
                    .ok_or_else(|| self.wrong(&inner, value, "a string, a number, true or false"))?,
            }),
            "prefix" => Test::Prefix(self.text(&inner, value)?.to_owned()),
            "glob" => {
                let text = self.text(&inner, value)?;
                Test::glob(text).map_err(|error| self.bad_glob(text, self.position(value.span()), &error))?
            }
            "min" => Test::Min(self.number(&inner, value)?),
            "max" => Test::Max(self.number(&inner, value)?),
            _ => return Err(self.unknown(key, path, &CONDITION_KEYS)),
        })
    }

    fn bad_glob(&self, text: &str, position: Position, error: &globset::Error) -> PolicyError {
        let error = PatternError::Glob(error.kind().to_string());
        PolicyError { position, problem: Problem::Pattern { pattern: text.to_owned(), error } }
    }
}

fn is_empty_range(tests: &[Test]) -> bool {
    let min = tests.iter().find_map(|test| if let Test::Min(min) = test { Some(*min) } else { None });
    let max = tests.iter().find_map(|test| if let Test::Max(max) = test { Some(*max) } else { None });
    matches!((min, max), (Some(min), Some(max)) if min > max)
}
