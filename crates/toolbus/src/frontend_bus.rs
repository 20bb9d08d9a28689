//! Opens the bus for an MCP frontend. It waits briefly until something is known about a server: a client that initializes
//! before that would see no tools. Servers that start later are announced to the client.

use std::sync::Arc;
use std::time::Duration;
use toolbus_client::{BrokerClient, BrokerResult};
use toolbus_mcp::{ServerManifest, ServerState};
use toolbus_worker::{Bus, BusClient, HostEntry, Hosts};

/// How long to wait for hosts and servers that are starting.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

pub async fn open(client: BrokerClient) -> BrokerResult<Arc<BusClient>> {
    let bus = BusClient::start(client).await?;
    let mut hosts = bus.hosts();
    // After the timeout, the client gets the hosts that are there, or none.
    tokio::time::timeout(SETTLE_TIMEOUT, hosts.wait_for(is_settled)).await.ok();
    Ok(bus)
}

fn is_settled(hosts: &Hosts) -> bool {
    let is_known = |server: &ServerManifest| server.state != ServerState::Starting || !server.tools.is_empty();
    let has_known = |host: &HostEntry| host.manifest.servers.is_empty() || host.manifest.servers.iter().any(is_known);
    hosts.iter().any(has_known)
}
