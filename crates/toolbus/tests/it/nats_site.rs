//! A NATS server, and what the tests of moves do with it: brokers, members of a cluster, and moves.

use crate::support::{BrokerProcess, TOKEN, soon};
use crate::up::{CommandOutput, toolbus};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

/// A NATS server and the folders of a test.
pub struct Site {
    pub folder: TempDir,
    port: u16,
    monitor: u16,
    server: Child,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
    }
}

impl Site {
    pub async fn start() -> Option<Self> {
        let Some(parts) = std::env::var_os("TOOLBUS_PARTS").map(PathBuf::from) else {
            eprintln!("no installed parts: TOOLBUS_PARTS is not set");
            return None;
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let free = || TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let (port, monitor) = (free().expect("a free port").port(), free().expect("a free port").port());
        let store = folder.path().join("jetstream");
        let config = format!(
            "server_name: n0\nlisten: \"127.0.0.1:{port}\"\nhttp: \"127.0.0.1:{monitor}\"\n\
             jetstream {{ store_dir: {store:?}, sync_interval: always }}\n"
        );
        fs::write(folder.path().join("nats.conf"), config).expect("writable");
        let server = std::process::Command::new(parts.join("python/bin/nats-server"))
            .arg("--config")
            .arg(folder.path().join("nats.conf"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nats-server starts");
        fs::write(folder.path().join("test-token"), TOKEN).expect("writable");
        let site = Self { folder, port, monitor, server };
        soon("the NATS server is healthy", async {
            while !site.is_healthy().await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        Some(site)
    }

    async fn is_healthy(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.monitor)).await else { return false };
        let mut answer = String::new();
        let asked = stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await.is_ok();
        asked && stream.read_to_string(&mut answer).await.is_ok() && answer.starts_with("HTTP/1.0 200")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    fn nats_options(&self) -> Vec<String> {
        let monitor = format!("127.0.0.1:{}", self.monitor);
        ["--replicas", "1", "--allow-single", "--partitions", "5", "--nats-monitor", &monitor].map(str::to_owned).into()
    }

    pub fn broker_command(&self, data: &str, is_member: bool) -> Command {
        let mut command = toolbus(self.folder.path());
        command.args(["broker", "--listen", "127.0.0.1:0", "--shared-token-file", "test-token", "--data", data]);
        if is_member {
            command.args(["--nats", &self.url()]).args(self.nats_options());
        }
        command
    }

    pub async fn broker(&self, data: &str) -> BrokerProcess {
        BrokerProcess::spawn(self.broker_command(data, false)).await
    }

    pub async fn member(&self, data: &str) -> BrokerProcess {
        BrokerProcess::spawn(self.broker_command(data, true)).await
    }

    /// A broker that must refuse to start.
    pub async fn refused(&self, data: &str, is_member: bool, code: &str) {
        let output = soon("the broker ends", self.broker_command(data, is_member).output()).await.expect("it starts");
        CommandOutput::of(output).check(1, &[], &[&format!("error[{code}]"), "hint:"]);
    }

    pub fn migrate(&self, from: &str, to: &str, extra: &[&str]) -> Command {
        let mut command = toolbus(self.folder.path());
        command.args(["migrate", "--json", "--from", from, "--to", to]).args(self.nats_options()).args(extra);
        command
    }

    pub async fn run(&self, from: &str, to: &str, extra: &[&str]) -> CommandOutput {
        CommandOutput::of(soon("the move ends", self.migrate(from, to, extra).output()).await.expect("it starts"))
    }

    pub async fn moved(&self, from: &str, to: &str, extra: &[&str]) -> Value {
        let output = self.run(from, to, extra).await;
        output.check(0, &[], &[]);
        serde_json::from_str(&output.out).expect("JSON")
    }
}
