//! What every credential has in common: it is for one name and one role, and what the peer says of itself must agree.

use crate::{AuthRefusal, HOST_AGENT, LOCAL_AGENT, OPERATOR_AGENT, OWN_NAME, mailbox_of};
use bytestring::ByteString;
use toolbus_protocol::{AgentRef, ErrorCode, NameError, check_name};

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadAgentName {
    #[error("{0}")]
    Name(#[from] NameError),
    #[error("`#` begins the suffix of a mailbox, so no agent's own name has one")]
    Suffix,
    #[error("`~` stands for a credential's own name")]
    Reserved,
}

/// Whether a credential may be for an agent of that name.
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

/// Roles that stand for this machine's own agents. Whoever else names agents needs a line in the configuration for them: in
/// another system the same word may mean anything.
const ROLES_OF_THIS_MACHINE: [&str; 3] = [LOCAL_AGENT, HOST_AGENT, OPERATOR_AGENT];

/// The role that somebody elsewhere gives an agent, without a line that says so here.
pub(crate) fn foreign_role(role: String) -> Option<String> {
    (!ROLES_OF_THIS_MACHINE.contains(&role.as_str())).then_some(role)
}

/// The mailbox and role of a connection with a credential for this name and role.
pub(crate) fn bind(name: &str, role: Option<&ByteString>, claimed: &AgentRef) -> Result<AgentRef, AuthRefusal> {
    let mailbox = mailbox_of(name, &claimed.session_id).ok_or_else(|| {
        AuthRefusal::new(ErrorCode::NotYourName, format!("the credential is for the agent {name:?}, not for another"))
    })?;
    // The own name may have made a suffix too long that was short enough behind `~`.
    check_name(&mailbox).map_err(|error| AuthRefusal::new(ErrorCode::BadName, error.to_string()))?;
    if claimed.role.is_some() && claimed.role.as_ref() != role {
        let own = role.map_or("no role".to_owned(), |role| format!("the role {role:?}"));
        return Err(AuthRefusal::new(ErrorCode::NotYourRole, format!("the credential is for {own}, not for another")));
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
    fn only_the_credentials_name_and_role_are_taken() {
        check(AgentRef::new("w"), Ok("w"));
        check(AgentRef::new("~#x").with_role("reader"), Ok("w#x"));
        check(AgentRef::new("v"), Err(ErrorCode::NotYourName));
        check(AgentRef::new("w").with_role("writer"), Err(ErrorCode::NotYourRole));
        check(AgentRef::new("w").with_role("Reader"), Err(ErrorCode::NotYourRole));
        check(AgentRef::new(format!("~#{}", "x".repeat(255))), Err(ErrorCode::BadName));
    }

    #[test]
    fn a_role_claimed_with_a_credential_that_has_none_is_refused() {
        let refusal = bind("w", None, &AgentRef::new("w").with_role("reader")).expect_err("no role to claim");
        assert_eq!(refusal.code, ErrorCode::NotYourRole);
    }

    #[test]
    fn names_with_a_suffix_or_the_stand_in_are_no_agents_names() {
        assert_eq!(check_agent_name("wörker 7"), Ok(()));
        assert_eq!(check_agent_name("a#b"), Err(BadAgentName::Suffix));
        assert_eq!(check_agent_name("~"), Err(BadAgentName::Reserved));
        for odd in ["", "a\u{202e}b", "a/b", "..", "a\u{0}", "a\u{200b}"] {
            assert!(matches!(check_agent_name(odd), Err(BadAgentName::Name(_))), "{odd:?}");
        }
    }
}
