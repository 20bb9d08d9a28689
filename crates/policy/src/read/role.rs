//! Reads one `[roles.NAME]` table.

use super::{Reader, bad_pattern, limit, too_large};
use crate::condition::Condition;
use crate::limits::{Limit, LimitKind};
use crate::pattern::Pattern;
use crate::pointer::Pointers;
use crate::question::Effect;
use crate::rule::Rule;
use crate::send::Recipients;
use crate::set::{OPERATOR, Role};
use std::collections::HashMap;
use std::sync::Arc;
use toolbus_base::Share;
use toolbus_config::{ConfigError, Position, Setting};

pub const EXPECTED: &str = "a table: [roles.NAME] with allow = [\"pattern\", …]";
pub const STRINGS: &str = "a list of strings";
const KEYS: [&str; 7] = ["allow", "deny", "ask", "send", "approve", "rules", "share"];

impl Reader {
    pub fn role(&mut self, name: &str, position: Position, setting: &Setting) -> Result<Role, ConfigError> {
        let mut role = if name == OPERATOR { Role::operator() } else { Role::default() };
        let mut limit = Limit::none(LimitKind::Role(name.to_owned()), position);
        let mut rules = Rules { role: name.into(), list: Vec::new(), pointers: Pointers::default() };
        let table = setting.table(EXPECTED)?;
        for (key, _, value) in table.entries() {
            match key {
                "send" => role.recipients = recipients(value)?,
                "approve" => role.approves = value.flag()?,
                "share" => role.share = Some(value.parse("a share such as \"25%\"", Share::parse)?),
                "rules" => self.conditional_rules(value, &mut rules)?,
                word => {
                    if let Some(effect) = Effect::parse(word) {
                        let patterns = value.list(STRINGS)?;
                        patterns.iter().try_for_each(|pattern| rules.add(effect, pattern, Arc::new([])))?;
                    } else if !limit::read(&mut limit, word, value)? {
                        return Err(table.unknown(key, &[&KEYS[..], &limit::KEYS].concat()));
                    }
                }
            }
        }
        self.warn_of_contradictions(&rules.list);
        // A role that may only send messages or approve calls is not empty.
        let permits = rules.list.iter().any(|rule| rule.effect != Effect::Deny);
        if !permits && !role.approves && role.recipients.is_empty() {
            self.warn(position, format!("[roles.{name}] allows nothing"));
        }
        role.limit = Some(limit).filter(|limit| !limit.is_none());
        role.with_rules(rules.list, rules.pointers).map_err(|error| too_large(setting, &error))
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

fn recipients(setting: &Setting) -> Result<Recipients, ConfigError> {
    let mut texts = Vec::new();
    for item in setting.list(STRINGS)? {
        let text = item.text()?;
        Recipients::check(text).map_err(|error| bad_pattern(item, text, &error))?;
        texts.push(text);
    }
    Recipients::new(texts).map_err(|error| too_large(setting, &error))
}

/// The rules of a role while they are being read.
pub struct Rules {
    pub role: Arc<str>,
    pub list: Vec<Rule>,
    pub pointers: Pointers,
}

impl Rules {
    pub fn add(&mut self, effect: Effect, item: &Setting, conditions: Arc<[Condition]>) -> Result<(), ConfigError> {
        let text = item.text()?;
        let pattern = Pattern::parse(text).map_err(|error| bad_pattern(item, text, &error))?;
        self.list.push(Rule { role: Arc::clone(&self.role), effect, pattern, conditions, position: item.position });
        Ok(())
    }
}
