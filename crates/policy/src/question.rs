//! The input and the result of a policy decision.

use crate::limits::Limit;
use crate::pointer::ArgumentsProblem;
use crate::rule::Rule;
use std::fmt;

/// A request to be decided: may the role use the item of the server?
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The caller's role, if it has one.
    pub role: Option<&'a str>,
    /// Name of the server.
    pub server: &'a str,
    /// The item that is used or listed.
    pub item: Item<'a>,
    /// The arguments of the call.
    pub arguments: Arguments<'a>,
}

/// The target of a request, under the name that workers see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// A tool, by name.
    Tool(&'a str),
    /// A resource, by URI.
    Resource(&'a str),
    /// A prompt, by name.
    Prompt(&'a str),
    /// The server itself: lists (whose items are decided one by one), handshakes, pings, instructions.
    Server,
}

impl<'a> Item<'a> {
    /// The name or URI; `None` for [`Item::Server`].
    pub fn name(self) -> Option<&'a str> {
        match self {
            Self::Tool(name) | Self::Resource(name) | Self::Prompt(name) => Some(name),
            Self::Server => None,
        }
    }

    /// The kind of item as a word for messages.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Tool(_) => "tool",
            Self::Resource(_) => "resource",
            Self::Prompt(_) => "prompt",
            Self::Server => "server",
        }
    }
}

/// The arguments of a call. Ignored for resources, which have none.
#[derive(Debug, Clone, Copy)]
pub enum Arguments<'a> {
    /// For lists: decides whether a call with any arguments could be allowed.
    Unknown,
    /// A call without arguments, equivalent to an empty object.
    Absent,
    /// The arguments as JSON text.
    Known(&'a str),
}

/// What a rule or a decision does with a request, from the most permissive to the strictest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// The request is allowed.
    Allow,
    /// The request needs approval.
    Ask,
    /// The request is denied.
    Deny,
}

impl Effect {
    /// The word that stands for it in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }

    /// The inverse of [`Effect::as_str`].
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Allow, Self::Ask, Self::Deny].into_iter().find(|effect| effect.as_str() == word)
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The result of a decision and the reason for it.
#[derive(Debug, Clone)]
pub struct Decision<'p> {
    /// Whether the request is allowed, needs approval or is denied.
    pub effect: Effect,
    /// The rule or circumstance that decided.
    pub reason: Reason<'p>,
    /// The limits that apply to this call. Empty for denied requests and for lists.
    pub limits: Vec<&'p Limit>,
}

/// Why a decision has its effect.
#[derive(Debug, Clone, Copy)]
pub enum Reason<'p> {
    /// One token is shared by all peers and no roles are configured.
    Everyone,
    /// The rule that decided.
    Rule(&'p Rule),
    /// A rule of the role may match something of the server.
    SomeRule,
    /// No rule of the role matches.
    NoRule,
    /// The caller has no role.
    NoRole,
    /// The policy has no entry for the role.
    UnknownRole,
    /// The rule has conditions, and they can't be evaluated on these arguments.
    BadArguments(&'p Rule, ArgumentsProblem),
}

impl<'p> Decision<'p> {
    /// Whether lists include the item. Items that need approval are included.
    pub fn is_shown(&self) -> bool {
        self.effect != Effect::Deny
    }

    /// The rule that decided, if one did.
    pub fn rule(&self) -> Option<&'p Rule> {
        match self.reason {
            Reason::Rule(rule) | Reason::BadArguments(rule, _) => Some(rule),
            _ => None,
        }
    }

    /// The smallest limit on the size of a result, with the entry it comes from.
    pub fn max_result(&self) -> Option<(u64, &'p Limit)> {
        let sizes = self.limits.iter().filter_map(|limit| Some((limit.max_result?, *limit)));
        sizes.min_by_key(|(size, _)| *size)
    }

    /// The shortest limit on the duration of a call, with the entry it comes from.
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
            Self::SomeRule => f.write_str("a rule of the role may match something of this server"),
            Self::NoRule => f.write_str("no rule of the role allows it"),
            Self::NoRole => f.write_str("the caller has no role, so nothing is allowed"),
            Self::UnknownRole => f.write_str("no rules are known for this role"),
            Self::BadArguments(rule, problem) => write!(f, "{problem}, and {rule} depends on them"),
        }
    }
}
