//! The end of an agent's credential, as the broker reports it to hosts.

use bytestring::ByteString;

/// An entry of the `agents_ended` frame: everything that earlier generations of the agent began has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentEnd {
    /// Name of the agent.
    pub name: ByteString,
    /// The current generation of the name: how many credentials of that name were revoked. Messages that follow on the
    /// connection belong to it.
    pub generation: u64,
    /// Whether the current generation has no valid credential left, so that what it began has ended as well.
    pub expired: bool,
}
