//! Ends a client as if its process was killed.

use crate::client::BrokerClient;

impl BrokerClient {
    /// Cuts the connection without sending anything more, as if the process was killed: requests are not cancelled, and
    /// replies that arrive from now on stay in the mailbox. Replies that were received before can still be taken.
    pub async fn abort(&self) {
        self.task.abort();
        self.task_ended().await;
        self.shared.change(|session| session.disconnected());
    }
}
