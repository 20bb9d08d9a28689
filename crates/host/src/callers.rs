//! Queries the broker about callers: whether they are connected, and whether they have collected their replies.
//!
//! If the broker doesn't know or doesn't answer in time, the result is `None`. While the connection to the broker is
//! lost, a call that might be joined waits: it could not be answered anyway, and running it because of a lost
//! connection could cause a second effect.

use std::time::Duration;
use tokio::time::Instant;
use toolbus_client::{BrokerClient, BrokerError, Inspect, Inspected, MAX_INSPECTED, MessageRef};

/// The broker answers from memory.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait for a lost broker connection, and how often to retry.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(600);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Reports whether callers are connected. `None` if that is unknown.
#[async_trait::async_trait]
pub trait Callers: Send + Sync {
    /// Whether a peer is connected under that mailbox name.
    async fn connected(&self, mailbox: &str) -> Option<bool>;
    /// Whether a reply of this host is still uncollected in that mailbox.
    async fn waits(&self, mailbox: &str, reply_id: &str) -> Option<bool>;
}

#[async_trait::async_trait]
impl Callers for BrokerClient {
    async fn connected(&self, mailbox: &str) -> Option<bool> {
        let inspected =
            inspect(self, Inspect { peers: vec![mailbox.into()], ..Inspect::default() }, RECONNECT_TIMEOUT).await?;
        inspected.peers.first().copied()
    }

    async fn waits(&self, mailbox: &str, reply_id: &str) -> Option<bool> {
        let messages = vec![MessageRef { to: mailbox.into(), id: reply_id.into() }];
        let inspected = inspect(self, Inspect { messages, ..Inspect::default() }, RECONNECT_TIMEOUT).await?;
        // A reply that the broker refused has not reached its caller either.
        let waits = inspected.messages.first()?.is_some();
        Some(waits || self.reply_was_refused(mailbox, reply_id))
    }
}

/// Whether a peer is connected under each of these names; `None` if the connection to the broker is lost.
pub async fn connected(client: &BrokerClient, mailboxes: &[String]) -> Option<Vec<bool>> {
    let mut connected = Vec::with_capacity(mailboxes.len());
    for some in mailboxes.chunks(MAX_INSPECTED) {
        let peers = some.iter().map(|name| name.as_str().into()).collect();
        let inspected = inspect(client, Inspect { peers, ..Inspect::default() }, Duration::ZERO).await?;
        connected.extend(inspected.peers);
    }
    (connected.len() == mailboxes.len()).then_some(connected)
}

pub async fn is_connected(client: &BrokerClient, mailbox: &str) -> Option<bool> {
    connected(client, &[mailbox.to_owned()]).await?.pop()
}

/// Retries over a lost broker connection for up to `reconnect_timeout`.
async fn inspect(client: &BrokerClient, inspect: Inspect, reconnect_timeout: Duration) -> Option<Inspected> {
    let end = Instant::now() + reconnect_timeout;
    loop {
        match tokio::time::timeout(INSPECT_TIMEOUT, client.inspect(inspect.clone())).await {
            Ok(Ok(inspected)) => return Some(inspected),
            Ok(Err(BrokerError::Transport(_))) if !client.is_closed() && Instant::now() < end => {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "the broker refused an inspection");
                return None;
            }
            Err(_) => return None,
        }
    }
}
