//! The authenticated identity of a peer and its rights.

use crate::Standing;
use bytestring::ByteString;
use toolbus_base::{Rights, principal_of};
use toolbus_protocol::AgentRef;

/// A claimed name that stands for the credential's own name: `~`, or `~#suffix` for a mailbox with a suffix.
pub const OWN_NAME: &str = "~";

/// The authenticated identity of a connection.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The mailbox and role of this connection, as stamped on everything it sends.
    pub agent: AgentRef,
    /// What the connection may do.
    pub rights: Rights,
    /// How long the identity is valid.
    pub standing: Standing,
    /// Distinguishes agents that had the same name one after the other. Zero if the issuer does not tell.
    pub incarnation: u64,
}

impl Identity {
    /// An identity that never ends, for code in the broker's own process, which needs no credential.
    pub fn local(agent: AgentRef, rights: Rights) -> Self {
        Self { agent, rights, standing: Standing::forever(), incarnation: 0 }
    }

    /// The agent's name without the suffix of one of its mailboxes.
    pub fn principal(&self) -> &str {
        principal_of(&self.agent.session_id)
    }
}

/// Resolves the mailbox that an agent called `name` claims; `None` if it belongs to another agent.
pub fn mailbox_of(name: &str, claimed: &str) -> Option<ByteString> {
    let (claimed_name, suffix) = match claimed.split_once('#') {
        Some((claimed_name, suffix)) => (claimed_name, Some(suffix)),
        None => (claimed, None),
    };
    if claimed_name != OWN_NAME && claimed_name != name {
        return None;
    }
    Some(match suffix {
        Some(suffix) => ByteString::from(format!("{name}#{suffix}")),
        None => ByteString::from(name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_may_use_its_own_mailbox_and_its_suffixed_ones_only() {
        let check = |claimed: &str, mailbox: Option<&str>| assert_eq!(mailbox_of("w", claimed).as_deref(), mailbox);
        check("w", Some("w"));
        check("~", Some("w"));
        check("w#mcp", Some("w#mcp"));
        check("~#mcp", Some("w#mcp"));
        check("~#a#b", Some("w#a#b"));
        check("w2", None);
        check("W", None);
        check("#w", None);
        check("x#w", None);
        check("", None);
        check("w ", None);
    }
}
