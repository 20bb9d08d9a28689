//! Which mailboxes a role may send plain messages to: `send = ["planner", "role:writer"]`.

use crate::pattern::{MAX_PATTERN_LEN, PatternError};
use globset::{Glob, GlobSet, GlobSetBuilder};
use toolbus_base::principal_of;

pub const ROLE_PREFIX: &str = "role:";

#[derive(Debug, Clone, Default)]
pub struct Recipients {
    names: GlobSet,
    roles: GlobSet,
}

impl Recipients {
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, globset::Error> {
        let (mut names, mut roles) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for pattern in patterns {
            match pattern.strip_prefix(ROLE_PREFIX) {
                Some(role) => roles.add(Glob::new(role)?),
                None => names.add(Glob::new(pattern)?),
            };
        }
        Ok(Self { names: names.build()?, roles: roles.build()? })
    }

    /// Checks that the text is a valid pattern.
    pub fn check(pattern: &str) -> Result<(), PatternError> {
        let glob = pattern.strip_prefix(ROLE_PREFIX).unwrap_or(pattern);
        match glob.len() {
            0 => Err(PatternError::Empty),
            1..=MAX_PATTERN_LEN => {
                Glob::new(glob).map(drop).map_err(|error| PatternError::Glob(error.kind().to_string()))
            }
            _ => Err(PatternError::TooLong),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.roles.is_empty()
    }

    pub fn every_mailbox() -> Self {
        Self::new(["**"]).expect("`**` is a valid pattern")
    }

    /// A mailbox `NAME#suffix` belongs to the agent NAME, so a role that may send to NAME may send to it.
    pub fn contain<R: AsRef<str>>(&self, mailbox: &str, role_of: impl FnOnce(&str) -> Option<R>) -> bool {
        let agent = principal_of(mailbox);
        self.names.is_match(agent)
            || (agent != mailbox && self.names.is_match(mailbox))
            || (!self.roles.is_empty() && role_of(agent).is_some_and(|role| self.roles.is_match(role.as_ref())))
    }
}
