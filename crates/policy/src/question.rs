//! What is asked of a policy, and what it answers.

use crate::limits::Limit;
use crate::pointer::ArgumentsProblem;
use crate::rule::Rule;
use serde_json::value::RawValue;
use std::fmt;

/// Who wants to use what.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    pub role: Option<&'a str>,
    pub server: &'a str,
    pub item: Item<'a>,
    pub arguments: Arguments<'a>,
}

/// What a request is about, under the name that workers see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    Tool(&'a str),
    Resource(&'a str),
    Prompt(&'a str),
    /// Nothing that has a name of its own: lists (their items are decided one by one), handshakes, pings, a server's
    /// instructions.
    Server,
}

impl<'a> Item<'a> {
    pub fn name(self) -> Option<&'a str> {
        match self {
            Self::Tool(name) | Self::Resource(name) | Self::Prompt(name) => Some(name),
            Self::Server => None,
        }
    }

    pub fn noun(self) -> &'static str {
        match self {
            Self::Tool(_) => "tool",
            Self::Resource(_) => "resource",
            Self::Prompt(_) => "prompt",
            Self::Server => "server",
        }
    }
}

/// The arguments of a call. Resources have none, whatever is said here.
#[derive(Debug, Clone, Copy)]
pub enum Arguments<'a> {
    /// For lists: could any call be allowed?
    Unknown,
    /// A call without arguments, which is the same as an empty object.
    Absent,
    Known(&'a RawValue),
}

/// From the mildest to the strictest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    Allow,
    Ask,
    Deny,
}

impl Effect {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        [Self::Allow, Self::Ask, Self::Deny].into_iter().find(|effect| effect.as_str() == word)
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The answer, and what it rests on.
#[derive(Debug, Clone)]
pub struct Decision<'p> {
    pub effect: Effect,
    pub reason: Reason<'p>,
    /// What holds for this call. Empty where nothing is allowed, and for lists.
    pub limits: Vec<&'p Limit>,
}

#[derive(Debug, Clone, Copy)]
pub enum Reason<'p> {
    /// One token is shared by all and no roles are configured.
    Everyone,
    Rule(&'p Rule),
    /// Some rule of the role could be about the server.
    SomeRule,
    /// No rule of the role is about it.
    NoRule,
    NoRole,
    UnknownRole,
    /// The rule looks at arguments, and these can't be judged.
    BadArguments(&'p Rule, ArgumentsProblem),
}

impl<'p> Decision<'p> {
    pub fn is_allowed(&self) -> bool {
        self.effect == Effect::Allow
    }

    /// What has to be asked for is shown all the same.
    pub fn is_shown(&self) -> bool {
        self.effect != Effect::Deny
    }

    pub fn rule(&self) -> Option<&'p Rule> {
        match self.reason {
            Reason::Rule(rule) | Reason::BadArguments(rule, _) => Some(rule),
            _ => None,
        }
    }

    /// The smallest of the limits on a result, and which one it is.
    pub fn max_result(&self) -> Option<(u64, &'p Limit)> {
        let sizes = self.limits.iter().filter_map(|limit| Some((limit.max_result?, *limit)));
        sizes.min_by_key(|(size, _)| *size)
    }

    pub fn deadline(&self) -> Option<(std::time::Duration, &'p Limit)> {
        let times = self.limits.iter().filter_map(|limit| Some((limit.deadline?, *limit)));
        times.min_by_key(|(time, _)| *time)
    }
}

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everyone => f.write_str("one shared token and no [roles]: every role may use everything"),
            Self::Rule(rule) => write!(f, "{rule}"),
            Self::SomeRule => f.write_str("a rule of the role is about this server"),
            Self::NoRule => f.write_str("no rule of the role allows it"),
            Self::NoRole => f.write_str("there is no role, and without one nothing is allowed"),
            Self::UnknownRole => f.write_str("no rules are known for this role"),
            Self::BadArguments(rule, problem) => write!(f, "{problem}, and {rule} looks at them"),
        }
    }
}
