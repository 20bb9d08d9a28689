//! What a server needs of its mailboxes beside the commands of connections: the mailboxes of one folder, or those of a
//! cluster.

use crate::directory::HostDirectory;
use crate::error::BrokerError;
use std::sync::Arc;
use std::time::Duration;
use toolbus_audit::AuditLog;
use toolbus_base::BoxFuture;
use toolbus_engine::{Mailboxes, Names, Window};
use toolbus_identity::{Agents, Identity};

/// The mailboxes behind a [`crate::BrokerServer`].
pub trait Backend: Mailboxes {
    /// Id of the durable namespace.
    fn identity(&self) -> &str;

    /// The directory of announced hosts.
    fn hosts(&self) -> Arc<dyn HostDirectory>;

    /// The window of a subscriber: its maximum of unacknowledged messages and bytes.
    fn window(&self, host: bool) -> Window;

    /// Sets the lookup of hosts and send rules. The engine consults it for peers with restricted rights.
    fn set_names(&self, names: Arc<dyn Names>);

    /// Whether the agent of an identity still has its name. Ask it after the identity is attached.
    fn is_current(&self, identity: &Identity) -> bool;

    /// Carries out the changes of the registered agents, except of names that belong to this process. Returns false if they
    /// could not be recorded. Blocks on the disk.
    fn update_agents(&self, agents: &Agents, is_excepted: &dyn Fn(&str) -> bool, audit: Option<&AuditLog>) -> bool;

    /// Why the mailboxes are not ready, if they are not.
    fn unready(&self) -> Option<String>;

    /// Whether storage has failed.
    fn has_failed(&self) -> bool;

    /// Resolves with the error when storage has failed.
    fn failed(&self) -> BoxFuture<'_, BrokerError>;

    /// Refuses new messages and waits until all accepted ones are durable, for at most `limit`.
    fn drain(&self, limit: Duration) -> BoxFuture<'_, ()>;

    /// Whether a server serves it.
    fn set_served(&self, is_served: bool);
}
