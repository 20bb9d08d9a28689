//! Contenders on three NATS servers that form a cluster: our brokers, and JetStream with three replicas.

use std::{
    fs,
    net::TcpListener,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use tokio::process::Command;

use super::{
    Contender,
    broker::{Broker, toolbus_broker, wait_for_url},
};
use crate::{
    cluster::{health, nats},
    process::Running,
    tools::Tools,
};

const START_LIMIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const SERVERS: [&str; 3] = ["nats-0", "nats-1", "nats-2"];
const BROKERS: [&str; 3] = ["broker-0", "broker-1", "broker-2"];
const NAME: &str = "bench";

/// Addresses of several servers are separated like this in a URL.
pub const SEPARATOR: char = ',';

/// The address for the client with this number, of one or several.
pub fn address(url: &str, number: u32) -> &str {
    let count = url.split(SEPARATOR).count();
    url.split(SEPARATOR).nth(number as usize % count).unwrap_or(url)
}

pub async fn start(contender: Contender, tools: &Tools, folder: &Path) -> anyhow::Result<Broker> {
    let sync_always = contender != Contender::JetStreamReplicated;
    let (servers, ports, monitors) = start_nats(tools, folder, sync_always).await?;
    let brokers = match contender {
        Contender::ClusterOfOne => &BROKERS[..1],
        Contender::ClusterOfThree => &BROKERS[..],
        _ => &[],
    };
    if brokers.is_empty() {
        let url = ports.map(nats::url).join(&SEPARATOR.to_string());
        return Ok(Broker { processes: servers, url });
    }
    let mut starting = Vec::new();
    for name in brokers {
        let mut command = toolbus_broker(tools, folder, name)?;
        command.args(nats::broker_options(&ports, &monitors, NAME));
        starting.push(Running::spawn(name, command, folder)?);
    }
    let (mut processes, mut urls) = (Vec::new(), Vec::new());
    for broker in starting {
        let broker = wait_for_url(broker, START_LIMIT).await?;
        processes.extend(broker.processes);
        urls.push(broker.url);
    }
    // Brokers first: they are stopped in this order.
    processes.extend(servers);
    wait_until_ready(&urls).await?;
    Ok(Broker { processes, url: urls.join(&SEPARATOR.to_string()) })
}

async fn start_nats(
    tools: &Tools,
    folder: &Path,
    sync_always: bool,
) -> anyhow::Result<(Vec<Running>, [u16; 3], [u16; 3])> {
    let listeners: Vec<TcpListener> =
        (0..9).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>().context("find free ports")?;
    let port = |index: usize| anyhow::Ok(listeners[index].local_addr().context("read a port")?.port());
    let clients = [port(0)?, port(1)?, port(2)?];
    let routes = [port(3)?, port(4)?, port(5)?];
    let monitors = [port(6)?, port(7)?, port(8)?];
    drop(listeners);
    let mut servers = Vec::new();
    for (index, name) in SERVERS.into_iter().enumerate() {
        let config = nats::config(&nats::Server {
            name: name.to_owned(),
            clients: clients[index],
            routes: routes[index],
            advertised: routes[index],
            monitor: monitors[index],
            store: folder.join(name),
            sync_always,
            others: routes.into_iter().filter(|route| *route != routes[index]).collect(),
        });
        let file = folder.join(format!("{name}.conf"));
        fs::write(&file, config).context("write the NATS configuration")?;
        let mut command = Command::new(tools.path(Contender::NatsCore)?);
        command.arg("--config").arg(&file);
        servers.push(Running::spawn(name, command, folder)?);
    }
    wait_until_healthy(&monitors, "/healthz").await?;
    Ok((servers, clients, monitors))
}

async fn wait_until_ready(urls: &[String]) -> anyhow::Result<()> {
    let port = |url: &String| url.rsplit(':').next()?.split('/').next()?.parse().ok();
    let ports: Vec<u16> = urls.iter().filter_map(port).collect();
    wait_until_healthy(&ports, "/readyz").await
}

async fn wait_until_healthy(ports: &[u16], path: &str) -> anyhow::Result<()> {
    let until = Instant::now() + START_LIMIT;
    for port in ports {
        while !health::is_ok(*port, path).await {
            if Instant::now() > until {
                bail!("port {port} did not become healthy within {START_LIMIT:?}");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_spread_over_the_addresses() {
        assert_eq!([0, 1, 2, 3].map(|number| address("a,b,c", number)), ["a", "b", "c", "a"]);
        assert_eq!([0, 1].map(|number| address("a", number)), ["a", "a"]);
    }
}
