//! One rule of a role: an effect, a pattern, and conditions.

use crate::condition::Condition;
use crate::pattern::Pattern;
use crate::question::Effect;
use std::fmt;
use std::sync::Arc;
use toolbus_config::Position;

/// One rule of a role.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Name of the role.
    pub role: Arc<str>,
    /// What the rule does with a matching request.
    pub effect: Effect,
    pub(crate) pattern: Pattern,
    /// Conditions on the arguments, all of which must hold.
    pub conditions: Arc<[Condition]>,
    /// Position of the pattern in the file.
    pub position: Position,
}

impl Rule {
    /// The pattern as it is in the file.
    pub fn pattern(&self) -> &str {
        &self.pattern.text
    }

    pub(crate) fn is_conditional(&self) -> bool {
        !self.conditions.is_empty()
    }

    /// Whether it matches everything of a server, unconditionally.
    pub(crate) fn matches_all_names(&self) -> bool {
        !self.is_conditional() && self.pattern.matches_any_name()
    }
}

/// For example `deny "files/read_secret" in [roles.reader]`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.effect, self.pattern.text)?;
        for (index, condition) in self.conditions.iter().enumerate() {
            write!(f, "{}{condition}", if index == 0 { " when " } else { " and " })?;
        }
        write!(f, " in [roles.{}]", self.role)
    }
}
