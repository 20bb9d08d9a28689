//! The agents of a registry, as its follower sees them. The follower is the broker, which ends what an agent began when the
//! agent ends.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The registered agents by name.
pub type Agents = BTreeMap<String, RegisteredAgent>;

/// Called with the agents at once, and after every change before a new credential is accepted. Returns false if the
/// change could not be recorded; it is then repeated, and new credentials are not accepted until it succeeds. May block.
pub type AgentsFollower = Arc<dyn Fn(&Agents) -> bool + Send + Sync>;

/// An agent of a registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisteredAgent {
    /// Distinguishes agents that had the same name one after the other; see [`crate::Identity::incarnation`].
    pub incarnation: u64,
    /// Whether it can authenticate.
    pub state: AgentState,
}

/// Whether an agent can authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentState {
    /// It has a valid credential.
    Valid,
    /// All its credentials have expired. It may get another one, and is the same agent then.
    Expired,
    /// It was revoked for good. Another agent may get its name.
    Revoked,
}
