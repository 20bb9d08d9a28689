//! A cluster on loopback: three NATS servers and two brokers. The suite's client is at one broker and the host at the other,
//! so calls pass links between brokers and replicated streams.

use super::target::{START_LIMIT, Target, discovers, free_address, start, url};
use crate::child::Running;
use crate::parts::Parts;
use crate::run::StepError;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

const SERVERS: usize = 3;

/// The addresses of one NATS server.
struct Nats {
    clients: SocketAddr,
    routes: SocketAddr,
    monitor: SocketAddr,
}

pub fn through_cluster(
    binary: &Path,
    parts: &Parts,
    folder: &Path,
    servers: &serde_json::Value,
) -> Result<Target, StepError> {
    let mut nats = Vec::new();
    for _ in 0..SERVERS {
        nats.push(Nats { clients: free_address()?, routes: free_address()?, monitor: free_address()? });
    }
    let mut running = Vec::new();
    for number in 0..SERVERS {
        running.push(start_nats(parts, folder, &nats, number)?);
    }
    let config = write(&folder.join("servers.json"), &serde_json::json!({ "mcpServers": servers }).to_string())?;
    let (ours, other) = (free_address()?, free_address()?);
    for (address, name) in [(ours, "broker-0"), (other, "broker-1")] {
        running.push(start_broker(binary, folder, &nats, address, name)?);
    }
    let mut host = Command::new(binary);
    host.args(["host", "--broker", &other.to_string(), "--mcp-config"]).arg(config);
    host.env("TOOLBUS_DATA", folder.join("broker-1")).arg("--state").arg(folder.join("host"));
    let mut host = Running::start("toolbus host", &mut host, &folder.join("host.log"))?;
    host.wait_until(START_LIMIT, || discovers(ours).unwrap_or(false))?;
    running.push(host);
    // Dropped from the front: the host ends before the brokers, and they before the NATS servers.
    running.reverse();
    Ok(Target::new(url(ours), running))
}

fn start_nats(parts: &Parts, folder: &Path, all: &[Nats], number: usize) -> Result<Running, StepError> {
    let Nats { clients, routes, monitor } = &all[number];
    let others = all.iter().enumerate().filter(|(other, _)| *other != number);
    let others: Vec<String> = others.map(|(_, other)| format!("nats://{}", other.routes)).collect();
    let config = format!(
        "server_name: nats-{number}\nlisten: \"{clients}\"\nhttp: \"{monitor}\"\n\
         jetstream {{\n  store_dir: {:?}\n  sync_interval: always\n}}\n\
         cluster {{\n  name: conformance\n  listen: \"{routes}\"\n  routes: {others:?}\n}}\n",
        folder.join(format!("nats-{number}")),
    );
    let config = write(&folder.join(format!("nats-{number}.conf")), &config)?;
    let mut command = Command::new(parts.python_program("nats-server"));
    command.arg("--config").arg(config);
    let mut running = Running::start("nats-server", &mut command, &folder.join(format!("nats-{number}.log")))?;
    running.wait_until(START_LIMIT, || TcpStream::connect(clients).is_ok())?;
    Ok(running)
}

fn start_broker(
    binary: &Path,
    folder: &Path,
    nats: &[Nats],
    address: SocketAddr,
    name: &str,
) -> Result<Running, StepError> {
    let list = |of: fn(&Nats) -> String| nats.iter().map(of).collect::<Vec<_>>().join(",");
    let mut command = Command::new(binary);
    command.args(["broker", "--listen", &address.to_string(), "--loopback-role", "local"]);
    command.args(["--nats", &list(|server| format!("nats://{}", server.clients))]);
    command.args(["--nats-monitor", &list(|server| server.monitor.to_string())]);
    command.arg("--data").arg(folder.join(name));
    start("toolbus broker", &mut command, &folder.join(format!("{name}.log")), || is_ready(address))
}

/// Whether the broker serves all partitions.
fn is_ready(address: SocketAddr) -> bool {
    let answer = super::target::get(address, "/readyz");
    answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

fn write(path: &Path, text: &str) -> Result<PathBuf, StepError> {
    std::fs::write(path, text).map_err(|source| StepError::File { path: path.to_owned(), source })?;
    Ok(path.to_owned())
}
