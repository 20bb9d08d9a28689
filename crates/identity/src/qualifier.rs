//! Names are qualified by their issuer: `alice` of a JWT and `alice` of a certificate are two agents, and neither is the
//! `alice` of the registry, unless the operator maps them to one.

use crate::binding::{BadAgentName, check_agent_name};

/// Put before the names of an issuer. Empty if the operator maps them to the names of the bus as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qualifier(String);

impl Qualifier {
    /// Qualifies names of JWTs, by default.
    pub const JWT: &str = "jwt:";
    /// Qualifies names of client certificates, by default.
    pub const CERTIFICATE: &str = "cert:";

    /// Checks that it can be the beginning of a name.
    pub fn new(text: &str) -> Result<Self, BadAgentName> {
        check_agent_name(&format!("{text}x"))?;
        Ok(Self(text.to_owned()))
    }

    /// The agent that the issuer calls `name`.
    pub(crate) fn qualify(&self, name: &str) -> Result<String, BadAgentName> {
        check_agent_name(name)?;
        let qualified = format!("{}{name}", self.0);
        check_agent_name(&qualified)?;
        Ok(qualified)
    }

    /// What the issuer calls this agent; `None` if it is not the issuer's.
    pub(crate) fn strip<'a>(&self, agent: &'a str) -> Option<&'a str> {
        agent.strip_prefix(self.0.as_str())
    }

    /// Whether an agent of the issuer with this qualifier has a name that belongs to another issuer. An issuer chooses its
    /// names freely, so one whose names are not qualified could choose the qualified name of another.
    pub(crate) fn trespasses(&self, agent: &str, other: &Self) -> bool {
        other.0.len() > self.0.len() && other.strip(agent).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qualified_name_is_a_valid_agent_name_and_can_be_stripped() {
        let jwt = Qualifier::new(Qualifier::JWT).expect("valid");
        assert_eq!(jwt.qualify("alice").as_deref(), Ok("jwt:alice"));
        assert_eq!((jwt.strip("jwt:alice"), jwt.strip("alice"), jwt.strip("cert:alice")), (Some("alice"), None, None));
        assert!(jwt.qualify("").is_err() && jwt.qualify("a#b").is_err() && jwt.qualify("~").is_err());
        assert!(jwt.qualify(&"x".repeat(253)).is_err(), "too long with the qualifier");
        for bad in ["a#", "a/", "\u{202e}"] {
            assert!(Qualifier::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_unqualified_issuer_cannot_choose_a_name_of_a_qualified_one() {
        let of = |text: &str| Qualifier::new(text).expect("valid");
        let check = |own: &str, agent: &str, other: &str, expected: bool| {
            assert_eq!(of(own).trespasses(agent, &of(other)), expected, "{own:?} {agent:?} {other:?}");
        };
        check("", "cert:bob", "cert:", true);
        check("", "bob", "cert:", false);
        check("x:", "x:y:bob", "x:y:", true);
        check("x:y:", "x:y:bob", "x:", false);
        check("jwt:", "jwt:cert:bob", "cert:", false);
        // The operator maps both to the same names.
        check("", "bob", "", false);
    }
}
