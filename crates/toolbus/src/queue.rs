//! Queue inspection for one call: its position in the host's mailbox, and its withdrawal. A broker that does not answer
//! within the timeout counts as not knowing.

use crate::failure::Failure;
use std::time::Duration;
use toolbus_client::{CancelOutcome, Inspect, Inspected, MessageRef, MultiplexedClient};
use toolbus_protocol::MsgId;

/// Short, because the broker answers from memory.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait until a withdrawal is durable.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(5);

/// The number of pending messages ahead of the call. `None` if the call is not pending or the broker does not answer.
pub async fn messages_ahead(client: &MultiplexedClient, host: &str, call: &MsgId) -> Option<u64> {
    let messages = vec![MessageRef { to: host.into(), id: call.clone().into_inner() }];
    inspect(client, Inspect { messages, ..Inspect::default() }).await?.messages.first().copied().flatten()
}

/// Whether the call is certainly queued and was never pushed to its host.
pub async fn was_never_pushed(client: &MultiplexedClient, host: &str, call: &MsgId) -> bool {
    inspect(client, query_for(host, call)).await.is_some_and(|inspected| shows_never_pushed(&inspected, call))
}

fn shows_never_pushed(inspected: &Inspected, call: &MsgId) -> bool {
    if let Some(row) = inspected.rows.iter().find(|row| &*row.id == call.as_str()) {
        return row.attempt == 0;
    }
    // The call is behind the last listed row. Messages are pushed in order, so if that row was never pushed, neither
    // was the call.
    let is_pending = inspected.messages.first().copied().flatten().is_some();
    is_pending && inspected.more && inspected.rows.last().is_some_and(|row| row.attempt == 0 && !row.in_flight)
}

/// The host's pending messages that the client may see.
pub async fn pending_of(client: &MultiplexedClient, host: &str) -> Option<Inspected> {
    inspect(client, Inspect { rows_of: Some(host.into()), ..Inspect::default() }).await
}

/// Whether the host is connected now.
pub async fn is_online(client: &MultiplexedClient, host: &str) -> bool {
    let inspected = inspect(client, Inspect { peers: vec![host.into()], ..Inspect::default() }).await;
    inspected.is_some_and(|inspected| inspected.peers.first() == Some(&true))
}

/// Cancels a request, and returns what became of it.
pub async fn withdraw(client: &MultiplexedClient, host: &str, call: &MsgId) -> Result<CancelOutcome, Failure> {
    Ok(client.client().withdraw(host, call, WITHDRAW_TIMEOUT).await?)
}

fn query_for(host: &str, call: &MsgId) -> Inspect {
    let messages = vec![MessageRef { to: host.into(), id: call.clone().into_inner() }];
    Inspect { peers: vec![host.into()], messages, rows_of: Some(host.into()), ..Inspect::default() }
}

async fn inspect(client: &MultiplexedClient, inspect: Inspect) -> Option<Inspected> {
    tokio::time::timeout(INSPECT_TIMEOUT, client.client().inspect(inspect)).await.ok()?.ok()
}
