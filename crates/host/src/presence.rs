//! What the broker tells of callers: whether they are still there, and whether they have taken their replies. A broker that
//! can't tell, or not in time, is not waited for.

use std::time::Duration;
use toolbus_client::{BrokerClient, Letter, Look, Looked, MAX_LOOKED_AT};

/// The broker answers from memory.
pub const LOOK_PATIENCE: Duration = Duration::from_secs(2);

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

/// Whether a reply of ours still waits in its reader's mailbox.
pub async fn is_uncollected(client: &BrokerClient, mailbox: &str, reply_id: &str) -> Option<bool> {
    let letters = vec![Letter { to: mailbox.into(), id: reply_id.into() }];
    let looked = look(client, Look { letters, ..Look::default() }).await?;
    looked.letters.first().map(Option::is_some)
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
