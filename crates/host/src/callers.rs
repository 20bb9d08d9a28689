//! What the broker tells of callers: whether they are still there, and whether they have taken their replies. A broker that
//! can't tell, or not in time, is not waited for. One that is away is, by a call that would otherwise run: as long as there is no
//! connection no answer can be given either, and a call that ran because of a lost link could have its effect twice.

use std::time::Duration;
use tokio::time::Instant;
use toolbus_client::{BrokerClient, BrokerError, Letter, Look, Looked, MAX_LOOKED_AT};

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
        let looked = look(self, Look { peers: vec![mailbox.into()], ..Look::default() }, LINK_PATIENCE).await?;
        looked.peers.first().copied()
    }

    async fn waits(&self, mailbox: &str, reply_id: &str) -> Option<bool> {
        let letters = vec![Letter { to: mailbox.into(), id: reply_id.into() }];
        let looked = look(self, Look { letters, ..Look::default() }, LINK_PATIENCE).await?;
        // One that the broker did not take has reached nobody.
        let waits = looked.letters.first()?.is_some();
        Some(waits || self.reply_was_refused(mailbox, reply_id))
    }
}

/// Whether somebody is connected under each of these names. Where the link is lost now, nobody can tell.
pub async fn connected(client: &BrokerClient, mailboxes: &[String]) -> Option<Vec<bool>> {
    let mut connected = Vec::with_capacity(mailboxes.len());
    for some in mailboxes.chunks(MAX_LOOKED_AT) {
        let peers = some.iter().map(|name| name.as_str().into()).collect();
        let looked = look(client, Look { peers, ..Look::default() }, Duration::ZERO).await?;
        connected.extend(looked.peers);
    }
    (connected.len() == mailboxes.len()).then_some(connected)
}

pub async fn is_connected(client: &BrokerClient, mailbox: &str) -> Option<bool> {
    connected(client, &[mailbox.to_owned()]).await?.pop()
}

/// A link that is lost is waited for as long as that.
async fn look(client: &BrokerClient, look: Look, link_patience: Duration) -> Option<Looked> {
    let end = Instant::now() + link_patience;
    loop {
        match tokio::time::timeout(PATIENCE, client.look(look.clone())).await {
            Ok(Ok(looked)) => return Some(looked),
            Ok(Err(BrokerError::Transport(_))) if !client.is_closed() && Instant::now() < end => {
                tokio::time::sleep(AGAIN).await;
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "the broker does not let the host look");
                return None;
            }
            Err(_) => return None,
        }
    }
}
