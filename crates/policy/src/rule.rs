//! One rule of a role: an effect, a pattern, and the conditions under which it counts.

use crate::condition::Condition;
use crate::pattern::Pattern;
use crate::question::Effect;
use crate::read::Position;
use std::fmt;
use std::sync::Arc;

#[derive(Debug, Clone)]
pub struct Rule {
    pub role: Arc<str>,
    pub effect: Effect,
    pub(crate) pattern: Pattern,
    /// All of them have to hold.
    pub conditions: Arc<[Condition]>,
    /// Where the pattern stands.
    pub position: Position,
}

impl Rule {
    pub fn pattern(&self) -> &str {
        &self.pattern.text
    }

    pub(crate) fn is_conditional(&self) -> bool {
        !self.conditions.is_empty()
    }

    /// Whether it is about everything that a server has.
    pub(crate) fn is_about_all_names(&self) -> bool {
        !self.is_conditional() && self.pattern.is_any_name()
    }
}

/// `deny "files/read_secret" in [roles.reader]`
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.effect, self.pattern.text)?;
        for (index, condition) in self.conditions.iter().enumerate() {
            write!(f, "{}{condition}", if index == 0 { " when " } else { " and " })?;
        }
        write!(f, " in [roles.{}]", self.role)
    }
}
