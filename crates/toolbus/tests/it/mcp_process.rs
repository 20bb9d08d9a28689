//! `toolbus up` as its own process, with the servers of a test.

use crate::support::{TIMEOUT, soon};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

pub struct UpProcess {
    folder: TempDir,
    _child: Child,
    address: String,
}

impl UpProcess {
    /// Starts with this `mcpServers` file, and returns when its servers are up.
    pub async fn hosting(config: impl FnOnce(&Path) -> Value) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("mcp.json");
        let config = config(folder.path());
        let servers = config["mcpServers"].as_object().map_or(0, serde_json::Map::len);
        std::fs::write(&file, config.to_string()).expect("the folder is writable");
        let up = Self::start(folder, &["--mcp-config", &file.display().to_string()]).await;
        up.until_servers_are_up(servers).await;
        up
    }

    pub async fn start(folder: TempDir, options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
        command.args(["up", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path().join("data")).args(options);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let address = soon("it prints its address", async {
            loop {
                let line = lines.next_line().await.expect("its output is text").expect("it prints its address");
                if let Some((_, rest)) = line.split_once("ws://") {
                    break rest.split('/').next().expect("an address").to_owned();
                }
            }
        })
        .await;
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { folder, _child: child, address }
    }

    async fn until_servers_are_up(&self, count: usize) {
        let start = Instant::now();
        loop {
            let mut tools = Command::new(env!("CARGO_BIN_EXE_toolbus"));
            tools.args(["tools", "--json", "--broker", &self.bus_url(), "--token-file"]).arg(self.token_file());
            let output = tools.output().await.expect("the binary starts");
            let listed: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let up =
                listed["servers"].as_array().into_iter().flatten().filter(|server| server["state"] == "up").count();
            if up >= count {
                return;
            }
            assert!(start.elapsed() < TIMEOUT, "{listed}\n{}", String::from_utf8_lossy(&output.stderr));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub fn bus_url(&self) -> String {
        format!("ws://{}/bus", self.address)
    }

    pub fn mcp_url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub fn token_file(&self) -> PathBuf {
        self.folder.path().join("data/token")
    }

    pub fn token(&self) -> String {
        std::fs::read_to_string(self.token_file()).expect("a token file").trim().to_owned()
    }

    /// The content of the file `received`, which servers write.
    pub fn received(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("received")).unwrap_or_default()
    }
}

pub fn python() -> String {
    "python3".into()
}
