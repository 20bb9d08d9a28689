//! Where a call stands in the mailbox of its host, as the broker tells. A broker that can't tell is not waited for.

use crate::failure::Failure;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_client::{Letter, Look, Looked, MultiplexedClient};
use toolbus_protocol::MsgId;

/// The broker answers from memory.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it may take until a message is taken back for good.
const TAKE_BACK_PATIENCE: Duration = Duration::from_secs(5);
/// How often the broker is asked whether it is.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How many messages are before that call, while it waits.
pub async fn ahead(client: &MultiplexedClient, host: &str, call: &MsgId) -> Option<u64> {
    let letters = vec![Letter { to: host.into(), id: call.clone().into_inner() }];
    look(client, Look { letters, ..Look::default() }).await?.letters.first().copied().flatten()
}

/// Whether it is certain that the call waits for its host and was never brought to it.
pub async fn is_untouched(client: &MultiplexedClient, host: &str, call: &MsgId) -> bool {
    look(client, look_for(host, call)).await.is_some_and(|looked| has_untouched(&looked, call))
}

fn has_untouched(looked: &Looked, call: &MsgId) -> bool {
    if let Some(row) = looked.rows.iter().find(|row| &*row.id == call.as_str()) {
        return row.attempt == 0;
    }
    // It waits behind those that the answer has room for. Messages are brought in order, so none behind one was brought that
    // was not.
    let waits = looked.letters.first().copied().flatten().is_some();
    waits && looked.more && looked.rows.last().is_some_and(|row| row.attempt == 0 && !row.in_flight)
}

/// What waits for that host, as far as the asker may know.
pub async fn waiting_for(client: &MultiplexedClient, host: &str) -> Option<Looked> {
    look(client, Look { rows_of: Some(host.into()), ..Look::default() }).await
}

/// Whether the host is connected now.
pub async fn is_there(client: &MultiplexedClient, host: &str) -> bool {
    let looked = look(client, Look { peers: vec![host.into()], ..Look::default() }).await;
    looked.is_some_and(|looked| looked.peers.first() == Some(&true))
}

/// What became of a request that was to be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withdrawal {
    /// The host is away and never gets it.
    Gone,
    /// It is not in the mailbox any more, but the host is there and may have got it.
    AskHost,
    StillThere,
}

/// The broker does not answer a cancel, so it is asked what became of the message.
pub async fn take_back(client: &MultiplexedClient, host: &str, call: &MsgId) -> Result<Withdrawal, Failure> {
    client.client().cancel(host, call).await?;
    let until = Instant::now() + TAKE_BACK_PATIENCE;
    loop {
        if let Some(looked) = look(client, look_for(host, call)).await {
            let waits = looked.letters.first().copied().flatten().is_some()
                || looked.rows.iter().any(|row| &*row.id == call.as_str());
            match looked.peers.first() {
                Some(false) if !waits => return Ok(Withdrawal::Gone),
                Some(true) if !waits => return Ok(Withdrawal::AskHost),
                _ => {}
            }
        }
        if Instant::now() >= until {
            return Ok(Withdrawal::StillThere);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn look_for(host: &str, call: &MsgId) -> Look {
    let letters = vec![Letter { to: host.into(), id: call.clone().into_inner() }];
    Look { peers: vec![host.into()], letters, rows_of: Some(host.into()), ..Look::default() }
}

async fn look(client: &MultiplexedClient, look: Look) -> Option<Looked> {
    tokio::time::timeout(PATIENCE, client.client().look(look)).await.ok()?.ok()
}
