//! Binds a connection to its credential: a credential is for one name and one role, and the claimed ones must match.

use crate::{AuthRefusal, HOST_AGENT, LOCAL_AGENT, OPERATOR_AGENT, OWN_NAME, mailbox_of};
use bytestring::ByteString;
use toolbus_protocol::{AgentRef, ErrorCode, NameError, check_name};

/// Why a name is not valid for an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadAgentName {
    /// It breaks a rule for all names.
    #[error("{0}")]
    Name(#[from] NameError),
    /// It contains a `#`.
    #[error("`#` starts a mailbox suffix and is not allowed in an agent's name")]
    Suffix,
    /// It is [`OWN_NAME`].
    #[error("`~` is reserved: it stands for the credential's own name")]
    Reserved,
}

/// Checks whether a credential may be issued for an agent with that name.
pub fn check_agent_name(name: &str) -> Result<(), BadAgentName> {
    check_name(name)?;
    if name.contains('#') {
        return Err(BadAgentName::Suffix);
    }
    if name == OWN_NAME {
        return Err(BadAgentName::Reserved);
    }
    Ok(())
}

/// Roles of the broker machine's own agents. A credential of an external issuer gets one of them only through an
/// explicit mapping in the configuration: in another system the same word may have another meaning.
const LOCAL_ROLES: [&str; 3] = [LOCAL_AGENT, HOST_AGENT, OPERATOR_AGENT];

/// Returns the role that an external issuer assigned, unless it is one of [`LOCAL_ROLES`].
pub(crate) fn external_role(role: String) -> Option<String> {
    (!LOCAL_ROLES.contains(&role.as_str())).then_some(role)
}

/// The mailbox and role of a connection with a credential for this name and role.
pub(crate) fn bind(name: &str, role: Option<&ByteString>, claimed: &AgentRef) -> Result<AgentRef, AuthRefusal> {
    let mailbox = mailbox_of(name, &claimed.session_id).ok_or_else(|| {
        AuthRefusal::new(ErrorCode::NotYourName, format!("the credential is for agent {name:?} only"))
    })?;
    // Replacing `~` by the real name may have made the mailbox name too long.
    check_name(&mailbox).map_err(|error| AuthRefusal::new(ErrorCode::BadName, error.to_string()))?;
    if claimed.role.is_some() && claimed.role.as_ref() != role {
        let own = role.map_or("no role".to_owned(), |role| format!("the role {role:?}"));
        return Err(AuthRefusal::new(ErrorCode::NotYourRole, format!("the credential is for {own} only")));
    }
    Ok(AgentRef { session_id: mailbox, role: role.cloned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(claimed: AgentRef, expected: Result<&str, ErrorCode>) {
        let bound = bind("w", Some(&"reader".into()), &claimed).map_err(|refusal| refusal.code);
        assert_eq!(bound.as_ref().map(|agent| &*agent.session_id).map_err(|code| *code), expected, "{claimed:?}");
        if let Ok(agent) = bound {
            assert_eq!(agent.role.as_deref(), Some("reader"));
        }
    }

    #[test]
    fn only_the_name_and_role_of_the_credential_are_accepted() {
        check(AgentRef::new("w"), Ok("w"));
        check(AgentRef::new("~#x").with_role("reader"), Ok("w#x"));
        check(AgentRef::new("v"), Err(ErrorCode::NotYourName));
        check(AgentRef::new("w").with_role("writer"), Err(ErrorCode::NotYourRole));
        check(AgentRef::new("w").with_role("Reader"), Err(ErrorCode::NotYourRole));
        check(AgentRef::new(format!("~#{}", "x".repeat(255))), Err(ErrorCode::BadName));
    }

    #[test]
    fn a_role_claimed_with_a_credential_that_has_none_is_refused() {
        let refusal = bind("w", None, &AgentRef::new("w").with_role("reader")).expect_err("a refusal");
        assert_eq!(refusal.code, ErrorCode::NotYourRole);
    }

    #[test]
    fn agent_names_must_not_contain_a_suffix_or_be_reserved() {
        assert_eq!(check_agent_name("wörker 7"), Ok(()));
        assert_eq!(check_agent_name("a#b"), Err(BadAgentName::Suffix));
        assert_eq!(check_agent_name("~"), Err(BadAgentName::Reserved));
        for invalid in ["", "a\u{202e}b", "a/b", "..", "a\u{0}", "a\u{200b}"] {
            assert!(matches!(check_agent_name(invalid), Err(BadAgentName::Name(_))), "{invalid:?}");
        }
    }
}
