//! Parses one `[roles.NAME]` table.

use super::LIMIT_KEYS;
use super::error::{PolicyError, Position, Problem};
use super::values::{Reader, Value};
use crate::limits::{Limit, LimitKind};
use crate::pattern::{Pattern, PatternError};
use crate::pointer::Pointers;
use crate::question::Effect;
use crate::rule::Rule;
use crate::send::Recipients;
use crate::set::{OPERATOR, Role};
use std::collections::HashMap;
use std::sync::Arc;

const KEYS: [&str; 6] = ["allow", "deny", "ask", "send", "approve", "rules"];

impl Reader<'_> {
    pub fn role(&mut self, name: &str, position: Position, value: &Value<'_>) -> Result<Role, PolicyError> {
        let table = format!("roles.{name}");
        let mut role = if name == OPERATOR { Role::operator() } else { Role::default() };
        let mut limit = Limit::none(LimitKind::Role(name.to_owned()), position);
        let mut rules = Rules { role: name.into(), list: Vec::new(), pointers: Pointers::default() };
        for (key, value) in self.table(&table, value, "a table: [roles.NAME] with allow = [\"pattern\", …]")? {
            let path = format!("{table}.{}", key.get_ref());
            match &**key.get_ref() {
                "send" => role.recipients = self.recipients(&path, value)?,
                "approve" => role.approves = self.flag(&path, value)?,
                "rules" => self.conditional_rules(&path, value, &mut rules)?,
                word => {
                    if let Some(effect) = Effect::parse(word) {
                        self.plain_rules(&path, value, effect, &mut rules)?;
                    } else if !self.limit(&mut limit, &table, word, value)? {
                        return Err(self.unknown(key, &table, &[&KEYS[..], &LIMIT_KEYS].concat()));
                    }
                }
            }
        }
        self.warn_of_contradictions(&rules.list);
        // A role that may only send messages or approve calls is not empty.
        let permits = rules.list.iter().any(|rule| rule.effect != Effect::Deny);
        if !permits && !role.approves && role.recipients.is_empty() {
            self.warn(position, format!("[{table}] allows nothing"));
        }
        role.limit = Some(limit).filter(|limit| !limit.is_none());
        role.with_rules(rules.list, rules.pointers).map_err(|error| PolicyError {
            position,
            problem: Problem::TooLarge { scope: format!("[{table}]"), reason: error.to_string() },
        })
    }

    fn plain_rules(&self, path: &str, value: &Value<'_>, effect: Effect, rules: &mut Rules) -> Result<(), PolicyError> {
        for (text, position) in self.texts(path, value)? {
            rules.add(effect, text, position, Arc::new([]))?;
        }
        Ok(())
    }

    fn recipients(&self, path: &str, value: &Value<'_>) -> Result<Recipients, PolicyError> {
        let texts = self.texts(path, value)?;
        for (text, position) in &texts {
            if let Err(error) = Recipients::check(text) {
                let problem = Problem::Pattern { pattern: (*text).to_owned(), error };
                return Err(PolicyError { position: *position, problem });
            }
        }
        Recipients::new(texts.iter().map(|(text, _)| *text)).map_err(|error| PolicyError {
            position: self.position(value.span()),
            problem: Problem::TooLarge { scope: path.to_owned(), reason: error.to_string() },
        })
    }

    /// Warns about a rule that a stricter rule with the same pattern makes ineffective.
    fn warn_of_contradictions(&mut self, rules: &[Rule]) {
        let mut strictest: HashMap<&str, &Rule> = HashMap::new();
        for rule in rules.iter().filter(|rule| rule.conditions.is_empty()) {
            let known = strictest.entry(rule.pattern()).or_insert(rule);
            if rule.effect > known.effect {
                *known = rule;
            }
        }
        for rule in rules {
            if let Some(stricter) = strictest.get(rule.pattern()).filter(|stricter| stricter.effect > rule.effect) {
                let text = format!(
                    "{rule} has no effect, because line {} says {} for the same pattern",
                    stricter.position.line, stricter.effect
                );
                self.warn(rule.position, text);
            }
        }
    }
}

/// The rules of a role while they are being parsed.
pub struct Rules {
    pub role: Arc<str>,
    pub list: Vec<Rule>,
    pub pointers: Pointers,
}

impl Rules {
    pub fn add(
        &mut self,
        effect: Effect,
        text: &str,
        position: Position,
        conditions: Arc<[crate::condition::Condition]>,
    ) -> Result<(), PolicyError> {
        let invalid = |error: PatternError| {
            let problem = Problem::Pattern { pattern: text.to_owned(), error };
            PolicyError { position, problem }
        };
        let pattern = Pattern::parse(text).map_err(invalid)?;
        self.list.push(Rule { role: Arc::clone(&self.role), effect, pattern, conditions, position });
        Ok(())
    }
}
