//! Where a call stands in the mailbox of its host, as the broker tells. A broker that can't tell is not waited for.

use std::time::Duration;
use toolbus_client::{Letter, Look, Looked, MultiplexedClient};
use toolbus_protocol::MsgId;

/// The broker answers from memory.
const PATIENCE: Duration = Duration::from_secs(2);

/// How many messages are before that call, while it waits.
pub async fn ahead(client: &MultiplexedClient, host: &str, call: &MsgId) -> Option<u64> {
    let letters = vec![Letter { to: host.into(), id: call.clone().into_inner() }];
    look(client, Look { letters, ..Look::default() }).await?.letters.first().copied().flatten()
}

/// Whether it is certain that the call waits for its host and was never brought to it.
pub async fn is_untouched(client: &MultiplexedClient, host: &str, call: &MsgId) -> bool {
    let rows_of = Some(host.into());
    let rows = look(client, Look { rows_of, ..Look::default() }).await.map(|looked| looked.rows).unwrap_or_default();
    rows.iter().any(|row| &*row.id == call.as_str() && row.attempt == 0)
}

async fn look(client: &MultiplexedClient, look: Look) -> Option<Looked> {
    tokio::time::timeout(PATIENCE, client.client().look(look)).await.ok()?.ok()
}
