//! Starts a contender's broker as a process on a free loopback port, with its data in a temporary folder.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    time::Duration,
};

use anyhow::{Context, bail};
use tokio::{process::Command, time::Instant};

use super::{Contender, cluster, original};
use crate::{process::Running, tools::Tools};

const START_TIMEOUT: Duration = Duration::from_secs(15);

/// A broker, or a cluster, that accepts connections at `url` (several are separated by commas) for as long as this value lives.
pub struct Broker {
    /// In the order in which they are stopped.
    pub processes: Vec<Running>,
    pub url: String,
}

pub async fn start(contender: Contender, tools: &Tools, folder: &Path) -> anyhow::Result<Broker> {
    match contender {
        Contender::Toolbus | Contender::ToolbusJson | Contender::BambooHost => start_toolbus(tools, folder).await,
        Contender::RelayFast | Contender::RelayMultiThread => start_relay(contender, tools, folder).await,
        Contender::NatsCore => start_nats(tools, folder, "").await,
        Contender::JetStream | Contender::JetStreamLog => start_nats(tools, folder, &jetstream(folder, "")).await,
        Contender::JetStreamAlways => start_nats(tools, folder, &jetstream(folder, "sync_interval: always")).await,
        Contender::Bamboo => start_bamboo(tools, folder).await,
        Contender::ClusterOfOne
        | Contender::ClusterOfThree
        | Contender::JetStreamReplicated
        | Contender::JetStreamReplicatedAlways => cluster::start(contender, tools, folder).await,
    }
}

async fn start_toolbus(tools: &Tools, folder: &Path) -> anyhow::Result<Broker> {
    wait_for_url(Running::spawn("broker", toolbus_broker(tools, folder, "data")?, folder)?, START_TIMEOUT).await
}

/// Our broker on a data folder of this name.
pub fn toolbus_broker(tools: &Tools, folder: &Path, data: &str) -> anyhow::Result<Command> {
    let token_file = folder.join("token");
    fs::write(&token_file, original::TOKEN).context("write the token")?;
    fs::set_permissions(&token_file, Permissions::from_mode(0o600)).context("protect the token")?;
    let mut command = Command::new(tools.path(Contender::Toolbus)?);
    command
        .args(["broker", "--listen", "127.0.0.1:0", "--data"])
        .arg(folder.join(data))
        .arg("--shared-token-file")
        .arg(&token_file);
    Ok(command)
}

async fn start_relay(contender: Contender, tools: &Tools, folder: &Path) -> anyhow::Result<Broker> {
    let mut command = Command::new(&tools.bench);
    command.args(["relay", "--contender", contender.name()]);
    wait_for_url(Running::spawn("broker", command, folder)?, START_TIMEOUT).await
}

async fn start_bamboo(tools: &Tools, folder: &Path) -> anyhow::Result<Broker> {
    let mut command = Command::new(tools.path(Contender::Bamboo)?);
    command.arg("--data").arg(folder.join("data")).args(["--token", original::TOKEN]);
    wait_for_url(Running::spawn("broker", command, folder)?, START_TIMEOUT).await
}

/// Waits for the line with which a broker reports its URL.
pub async fn wait_for_url(mut process: Running, limit: Duration) -> anyhow::Result<Broker> {
    let url = process.line_after("listening on ", limit).await?;
    Ok(Broker { processes: vec![process], url })
}

fn jetstream(folder: &Path, sync: &str) -> String {
    let store = folder.join("jetstream");
    format!("jetstream {{\n  store_dir: {store:?}\n  {sync}\n}}\n")
}

/// Starts nats-server, which writes the port it picked into a file.
async fn start_nats(tools: &Tools, folder: &Path, more: &str) -> anyhow::Result<Broker> {
    let config = folder.join("nats.conf");
    let text = format!("listen: \"127.0.0.1:-1\"\nports_file_dir: {folder:?}\n{more}");
    fs::write(&config, text).context("write the NATS configuration")?;
    let mut command = Command::new(tools.path(Contender::NatsCore)?);
    command.arg("--config").arg(&config);
    let process = Running::spawn("broker", command, folder)?;
    let ports = folder.join(format!("nats-server_{}.ports", process.id()?));
    let deadline = Instant::now() + START_TIMEOUT;
    while Instant::now() < deadline {
        // A partially written file doesn't parse and is read again.
        if let Some(url) = fs::read(&ports).ok().and_then(|text| nats_url(&text)) {
            return Ok(Broker { processes: vec![process], url });
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("nats-server did not start:\n{}", process.log_tail())
}

fn nats_url(ports: &[u8]) -> Option<String> {
    let ports: serde_json::Value = serde_json::from_slice(ports).ok()?;
    Some(ports["nats"][0].as_str()?.to_owned())
}
