//! The bus for a worker's front, opened with a little patience: a client that is greeted before the hosts have said what
//! they have would see no tools.

use std::sync::Arc;
use std::time::Duration;
use toolbus_client::{BrokerClient, BrokerResult};
use toolbus_mcp::ServerState;
use toolbus_worker::{Bus, BusClient, HostEntry, Hosts};

/// How long hosts that are just starting are waited for.
const PATIENCE: Duration = Duration::from_secs(2);

pub async fn open(client: BrokerClient) -> BrokerResult<Arc<BusClient>> {
    let bus = BusClient::start(client).await?;
    let mut hosts = bus.hosts();
    // Nobody there is an answer too, when it was waited for.
    tokio::time::timeout(PATIENCE, hosts.wait_for(is_settled)).await.ok();
    Ok(bus)
}

fn is_settled(hosts: &Hosts) -> bool {
    let starting = |host: &HostEntry| {
        let servers = &host.manifest.servers;
        host.away_since_ms.is_none() && servers.iter().any(|server| server.state == ServerState::Starting)
    };
    !hosts.is_empty() && !hosts.iter().any(starting)
}
