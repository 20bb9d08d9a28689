//! What the broker tells of callers: whether they are still there, and whether they have taken their replies. A broker that
//! can't tell, or not in time, is not waited for. One that is away is, by a call that would otherwise run: as long as there is no
//! connection no answer can be given either, and a call that ran because of a lost link could have its effect twice.

use std::time::Duration;
use tokio::time::Instant;
use toolbus_client::{BrokerClient, BrokerError, Inspect, Inspected, MAX_INSPECTED, MessageRef};

/// The broker answers from memory.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a connection may be lost, and how often it is tried again meanwhile.
const LINK_PATIENCE: Duration = Duration::from_secs(600);
const AGAIN: Duration = Duration::from_millis(50);

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
        let inspected =
            inspect(self, Inspect { peers: vec![mailbox.into()], ..Inspect::default() }, LINK_PATIENCE).await?;
        inspected.peers.first().copied()
    }

    async fn waits(&self, mailbox: &str, reply_id: &str) -> Option<bool> {
        let messages = vec![MessageRef { to: mailbox.into(), id: reply_id.into() }];
        let inspected = inspect(self, Inspect { messages, ..Inspect::default() }, LINK_PATIENCE).await?;
        // One that the broker did not take has reached nobody.
        let waits = inspected.messages.first()?.is_some();
        Some(waits || self.reply_was_refused(mailbox, reply_id))
    }
}

/// Whether somebody is connected under each of these names. Where the link is lost now, nobody can tell.
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

/// A link that is lost is waited for as long as that.
async fn inspect(client: &BrokerClient, inspect: Inspect, link_patience: Duration) -> Option<Inspected> {
    let end = Instant::now() + link_patience;
    loop {
        match tokio::time::timeout(PATIENCE, client.inspect(inspect.clone())).await {
            Ok(Ok(inspected)) => return Some(inspected),
            Ok(Err(BrokerError::Transport(_))) if !client.is_closed() && Instant::now() < end => {
                tokio::time::sleep(AGAIN).await;
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "the broker does not let the host inspect");
                return None;
            }
            Err(_) => return None,
        }
    }
}
