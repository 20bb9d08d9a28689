//! What is believed of a peer once its credential was checked.

use crate::Standing;
use bytestring::ByteString;
use toolbus_protocol::{AgentRef, principal_of};

/// How a peer names itself that leaves its name to its credential: `~`, or `~#suffix` for a mailbox of its own.
pub const OWN_NAME: &str = "~";

/// Who is at the other end, and what that allows.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The mailbox and role of this connection, as stamped on everything it sends.
    pub agent: AgentRef,
    pub rights: Rights,
    pub standing: Standing,
}

/// What a connection may do beside using its own mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights {
    /// One secret for all, as in the original: no rule about who sends what to whom.
    pub unrestricted: bool,
    /// May announce manifests, answer requests, and be sent requests.
    pub host: bool,
    /// May see all mailboxes and connections, and send to everybody.
    pub operator: bool,
}

impl Rights {
    pub const UNRESTRICTED: Self = Self { unrestricted: true, host: true, operator: true };
    pub const HOST: Self = Self { unrestricted: false, host: true, operator: false };
    pub const WORKER: Self = Self { unrestricted: false, host: false, operator: false };
    pub const OPERATOR: Self = Self { unrestricted: false, host: false, operator: true };
}

impl Identity {
    /// For code in the broker's own process, which needs no credential.
    pub fn local(agent: AgentRef, rights: Rights) -> Self {
        Self { agent, rights, standing: Standing::forever() }
    }

    /// The agent's name without the suffix of one of its mailboxes.
    pub fn principal(&self) -> &str {
        principal_of(&self.agent.session_id)
    }
}

/// The mailbox that a peer of that name means by what it calls itself; `None` if it is somebody else's.
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
    fn an_agent_has_its_own_mailbox_and_those_with_a_suffix_and_no_others() {
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
