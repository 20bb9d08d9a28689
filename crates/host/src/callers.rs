//! What the broker tells of callers: whether they are still there, and whether they have taken their replies. A broker that
//! can't tell, or not in time, is not waited for.

use std::time::Duration;
use toolbus_client::{BrokerClient, Letter, Look, Looked};

/// The broker answers from memory.
const PATIENCE: Duration = Duration::from_secs(2);

/// None where nobody can tell.
#[async_trait::async_trait]
pub trait Callers: Send + Sync {
    /// Whether somebody is connected under that name.
    async fn connected(&self, mailbox: &str) -> Option<bool>;
    /// Whether a reply of ours still waits in that mailbox.
    async fn waits(&self, mailbox: &str, reply_id: &str) -> Option<bool>;
}

#[async_trait::async_trait]
impl Callers for BrokerClient {
    async fn connected(&self, mailbox: &str) -> Option<bool> {
        let looked = look(self, Look { peers: vec![mailbox.into()], ..Look::default() }).await?;
        looked.peers.first().copied()
    }

    async fn waits(&self, mailbox: &str, reply_id: &str) -> Option<bool> {
        let letters = vec![Letter { to: mailbox.into(), id: reply_id.into() }];
        let looked = look(self, Look { letters, ..Look::default() }).await?;
        looked.letters.first().map(Option::is_some)
    }
}

async fn look(client: &BrokerClient, look: Look) -> Option<Looked> {
    match tokio::time::timeout(PATIENCE, client.look(look)).await {
        Ok(Ok(looked)) => Some(looked),
        Ok(Err(error)) => {
            tracing::debug!(%error, "the broker does not let the host look");
            None
        }
        Err(_) => None,
    }
}
