//! What the broker tells of callers: whether they are still there. A broker that can't tell, or not in time, is not waited for.

use std::time::Duration;
use toolbus_client::{BrokerClient, Look, Looked, MAX_LOOKED_AT};

/// The broker answers from memory.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);

/// Whether somebody is connected under each of these names.
pub async fn connected(client: &BrokerClient, mailboxes: &[String]) -> Option<Vec<bool>> {
    let mut connected = Vec::with_capacity(mailboxes.len());
    for some in mailboxes.chunks(MAX_LOOKED_AT) {
        let peers = some.iter().map(|name| name.as_str().into()).collect();
        let looked = look(client, Look { peers, ..Look::default() }).await?;
        connected.extend(looked.peers);
    }
    (connected.len() == mailboxes.len()).then_some(connected)
}

pub async fn is_connected(client: &BrokerClient, mailbox: &str) -> Option<bool> {
    connected(client, &[mailbox.to_owned()]).await?.pop()
}

async fn look(client: &BrokerClient, look: Look) -> Option<Looked> {
    match tokio::time::timeout(LOOK_PATIENCE, client.look(look)).await {
        Ok(Ok(looked)) => Some(looked),
        Ok(Err(error)) => {
            tracing::debug!(%error, "the broker does not let the host look");
            None
        }
        Err(_) => None,
    }
}
