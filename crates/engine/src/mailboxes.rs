//! The one seam between connections and mailboxes. A connection attaches, submits commands, and gets everything else
//! through its outbox; it does not know whether one process or a cluster keeps the mailboxes.

use crate::{Command, ConnId, Outgoing, Peer};
use std::sync::Arc;

/// Where a connection receives what is meant for it. Implementations must not block.
pub trait Outbox: Send + Sync {
    /// Appends in order. Called with all that one step of the mailboxes produced for this connection.
    fn deliver(&self, outgoing: &mut Vec<Outgoing>);
}

/// Durable mailboxes. Calls return at once; answers arrive in the outbox.
pub trait Mailboxes: Send + Sync + 'static {
    fn attach(&self, peer: Peer, outbox: Arc<dyn Outbox>) -> ConnId;

    /// Carries out the commands in order and leaves the list empty.
    fn submit(&self, conn: ConnId, commands: &mut Vec<Command>);

    fn detach(&self, conn: ConnId);

    /// Whether the connection should stop reading for now, because the disk is behind.
    fn congested(&self) -> bool;
}
