//! Opens the bus for an MCP frontend. It waits briefly for hosts that are starting: a client that initializes before
//! they have announced their manifests would see no tools.

use std::sync::Arc;
use std::time::Duration;
use toolbus_client::{BrokerClient, BrokerResult};
use toolbus_mcp::ServerState;
use toolbus_worker::{Bus, BusClient, HostEntry, Hosts};

/// How long to wait for hosts that are starting.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

pub async fn open(client: BrokerClient) -> BrokerResult<Arc<BusClient>> {
    let bus = BusClient::start(client).await?;
    let mut hosts = bus.hosts();
    // After the timeout, the client gets the hosts that are there, or none.
    tokio::time::timeout(SETTLE_TIMEOUT, hosts.wait_for(is_settled)).await.ok();
    Ok(bus)
}

fn is_settled(hosts: &Hosts) -> bool {
    let starting = |host: &HostEntry| {
        let servers = &host.manifest.servers;
        host.away_since_ms.is_none() && servers.iter().any(|server| server.state == ServerState::Starting)
    };
    !hosts.is_empty() && !hosts.iter().any(starting)
}
