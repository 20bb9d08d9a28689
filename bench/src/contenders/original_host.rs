//! The host of the original on our broker, called by our client. Its socket has Nagle's algorithm on, so its rate shows
//! whether the broker acknowledges the segments of such a peer at once.

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::process::Command;
use toolbus_client::{Body, InboxKind, MultiplexedClient};

use super::{original::TOKEN, toolbus};
use crate::load::Load;

/// The mailbox of the original's host.
const HOST: &str = "desktop#mcp";
const TOOL: &str = "echo";
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The command line of the host. Calls wait in its mailbox until it is connected.
pub fn command(programs: &Path, url: &str, folder: &Path) -> Command {
    let mut host = Command::new(programs.join("original_host"));
    host.args(["--broker", url, "--token", TOKEN, "--tool", TOOL, "--wait-ms", "0", "--effects"]);
    host.arg(folder.join("effects"));
    host
}

pub struct Worker {
    client: MultiplexedClient,
    number: u32,
    calls: AtomicU64,
}

impl Worker {
    pub async fn connect(url: &str, number: u32) -> anyhow::Result<Self> {
        let client = toolbus::connect(url, &format!("worker-{number}")).await?.into_multiplexed();
        Ok(Self { client, number, calls: AtomicU64::new(0) })
    }
}

impl Load for Worker {
    async fn once(&self, _: &Bytes) -> anyhow::Result<()> {
        let id = format!("{}-{}", self.number, self.calls.fetch_add(1, Ordering::Relaxed));
        let call = json!({"op": "call", "tool": TOOL, "arguments": json!({"id": id}).to_string()});
        let request = self.client.request(HOST, InboxKind::McpRequest, Body::of(&call)?, CALL_TIMEOUT);
        let reply = request.await.context("request")?;
        let reply: Value = serde_json::from_slice(reply.body.as_bytes()).context("a reply is JSON")?;
        ensure!(reply["result"]["result"] == id, "not the result of the call: {reply}");
        Ok(())
    }
}
