//! One `toolbus up` that hosts all the real servers.

use crate::installed::Installed;
use serde_json::{Map, Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

const TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// One tool of each server.
const EXPECTED: [&str; 4] = ["\"wait_until_cancelled\"", "\"echo\"", "\"read_text_file\"", "\"create_entities\""];
const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;

pub struct Hosted {
    folder: TempDir,
    address: SocketAddr,
    child: Child,
}

impl Hosted {
    pub async fn start(installed: &Installed) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let servers: Map<String, Value> = installed
            .all(folder.path())
            .into_iter()
            .map(|server| (server.name.to_owned(), server.definition))
            .collect();
        let config = folder.path().join("servers.json");
        std::fs::write(&config, json!({ "mcpServers": servers }).to_string()).expect("the folder is writable");
        let log = std::fs::File::create(folder.path().join("log")).expect("the folder is writable");
        let address = free_address().await;
        let child = Command::new(env!("CARGO_BIN_EXE_toolbus"))
            .args(["up", "--loopback-role", "local", "--listen", &address.to_string(), "--mcp-config"])
            .arg(config)
            .arg("--data")
            .arg(folder.path().join("data"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("one more descriptor"))
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("the binary starts");
        let mut hosted = Self { folder, address, child };
        hosted.wait_for_all_servers().await;
        hosted
    }

    pub fn over_http(&self) -> Value {
        json!({ "url": self.url() })
    }

    pub fn over_stdio(&self) -> Value {
        let [command, arguments @ ..] = &self.connect_command()[..] else { unreachable!("it is not empty") };
        json!({ "command": command, "args": arguments })
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// The command for a client's configuration.
    pub fn connect_command(&self) -> Vec<String> {
        let broker = format!("ws://{}/bus", self.address);
        let token: PathBuf = self.folder.path().join("data/token");
        let words = [env!("CARGO_BIN_EXE_toolbus"), "connect", "--broker", &broker, "--token-file"];
        words.into_iter().map(str::to_owned).chain([token.display().to_string()]).collect()
    }

    async fn wait_for_all_servers(&mut self) {
        let mut listed = String::new();
        let ready = tokio::time::timeout(TIMEOUT, async {
            while !EXPECTED.iter().all(|tool| listed.contains(tool)) {
                if let Some(status) = self.child.try_wait().expect("a status") {
                    panic!("toolbus ended: {status}\n{}", self.log());
                }
                tokio::time::sleep(POLL).await;
                listed = list_tools(self.address).await.unwrap_or_default();
            }
        });
        if ready.await.is_err() {
            panic!("not all servers are up within {TIMEOUT:?}; listed: {listed}\n{}", self.log());
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

async fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    listener.local_addr().expect("a bound listener")
}

async fn list_tools(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: tools/list\r\nContent-Length: {}\r\n\r\n",
        LIST.len()
    );
    stream.write_all(format!("{head}{LIST}").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(1 << 20).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
