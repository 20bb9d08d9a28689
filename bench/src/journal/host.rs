//! The host process of a measurement: the host library with one echo server. The modes differ only in the journal.

use std::{path::PathBuf, sync::Arc};

use anyhow::Context;
use clap::Args;
use tokio_util::sync::CancellationToken;
use toolbus_host::{HostOptions, LivePolicy, run_host};
use toolbus_journal::{Journal, JournalOptions};
use toolbus_upstream::{HostConfig, Replay, ServerConfig};

use super::Mode;
use crate::own_broker;

#[derive(Args)]
pub struct JournalHostOptions {
    #[arg(long)]
    broker: String,
    #[arg(long)]
    mode: Mode,
    #[arg(long)]
    folder: PathBuf,
}

pub async fn run(options: JournalHostOptions) -> anyhow::Result<()> {
    let bench = std::env::current_exe().context("find this program")?;
    let mut server = ServerConfig::stdio("echo", bench.to_string_lossy(), &["mcp-server"]);
    if options.mode == Mode::Safe {
        server.calls.replay = Replay::Safe;
    }
    let mut host = HostOptions::new(HostConfig { servers: vec![server] });
    host.policy = LivePolicy::everyone();
    if options.mode != Mode::None {
        let folder = options.folder.join(options.mode.name()).join("journal");
        host.journal = Arc::new(Journal::open(&folder, JournalOptions::default()).context("open the journal")?);
    }
    let client = own_broker::connect(&options.broker, options.mode.name()).await?;
    println!("ready");
    run_host(client, host, CancellationToken::new()).await.context("host")
}
