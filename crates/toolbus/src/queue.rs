//! Where a call stands in the mailbox of its host, as the broker tells. A broker that can't tell is not waited for.

use crate::failure::Failure;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_client::{Inspect, Inspected, MessageRef, MultiplexedClient};
use toolbus_protocol::MsgId;

/// The broker answers from memory.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it may take until a message is taken back for good.
const TAKE_BACK_PATIENCE: Duration = Duration::from_secs(5);
/// How often the broker is asked whether it is.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How many messages are before that call, while it waits.
pub async fn ahead(client: &MultiplexedClient, host: &str, call: &MsgId) -> Option<u64> {
    let messages = vec![MessageRef { to: host.into(), id: call.clone().into_inner() }];
    inspect(client, Inspect { messages, ..Inspect::default() }).await?.messages.first().copied().flatten()
}

/// Whether it is certain that the call waits for its host and was never brought to it.
pub async fn is_untouched(client: &MultiplexedClient, host: &str, call: &MsgId) -> bool {
    inspect(client, look_for(host, call)).await.is_some_and(|inspected| has_untouched(&inspected, call))
}

fn has_untouched(inspected: &Inspected, call: &MsgId) -> bool {
    if let Some(row) = inspected.rows.iter().find(|row| &*row.id == call.as_str()) {
        return row.attempt == 0;
    }
    // It waits behind those that the answer has room for. Messages are brought in order, so none behind one was brought that
    // was not.
    let waits = inspected.messages.first().copied().flatten().is_some();
    waits && inspected.more && inspected.rows.last().is_some_and(|row| row.attempt == 0 && !row.in_flight)
}

/// What waits for that host, as far as the asker may know.
pub async fn waiting_for(client: &MultiplexedClient, host: &str) -> Option<Inspected> {
    inspect(client, Inspect { rows_of: Some(host.into()), ..Inspect::default() }).await
}

/// Whether the host is connected now.
pub async fn is_there(client: &MultiplexedClient, host: &str) -> bool {
    let inspected = inspect(client, Inspect { peers: vec![host.into()], ..Inspect::default() }).await;
    inspected.is_some_and(|inspected| inspected.peers.first() == Some(&true))
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
        if let Some(inspected) = inspect(client, look_for(host, call)).await {
            let waits = inspected.messages.first().copied().flatten().is_some()
                || inspected.rows.iter().any(|row| &*row.id == call.as_str());
            match inspected.peers.first() {
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

fn look_for(host: &str, call: &MsgId) -> Inspect {
    let messages = vec![MessageRef { to: host.into(), id: call.clone().into_inner() }];
    Inspect { peers: vec![host.into()], messages, rows_of: Some(host.into()), ..Inspect::default() }
}

async fn inspect(client: &MultiplexedClient, inspect: Inspect) -> Option<Inspected> {
    tokio::time::timeout(PATIENCE, client.client().inspect(inspect)).await.ok()?.ok()
}
