//! The endpoint under test: the server itself, or toolbus in front of that server, over stdio or HTTP.

use crate::child::Running;
use crate::parts::Parts;
use crate::run::StepError;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const START_LIMIT: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const STDIO_SERVER: &str = "from mcp_everything_server.server import mcp; mcp.run(transport='stdio')";
/// A minimal request of the modern era, which the server answers once the whole path is up.
const DISCOVER: &str = r#"{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;

pub struct Target {
    url: String,
    // Elements are dropped in order, so the process in front ends first.
    _running: Vec<Running>,
}

impl Target {
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn fixture(parts: &Parts, folder: &Path) -> Result<Self, StepError> {
        let address = free_address()?;
        let mut command = Command::new(parts.python());
        command.args(["-m", "mcp_everything_server", "--port", &address.port().to_string()]);
        let running = start("the everything server", &mut command, address, &folder.join("server.log"))?;
        Ok(Self { url: url(address), _running: vec![running] })
    }

    pub fn through_toolbus_stdio(binary: &Path, parts: &Parts, folder: &Path) -> Result<Self, StepError> {
        let server = json!({ "command": parts.python(), "args": ["-c", STDIO_SERVER] });
        let (url, running) = start_toolbus(binary, &server, folder)?;
        Ok(Self { url, _running: vec![running] })
    }

    pub fn through_toolbus_http(binary: &Path, parts: &Parts, folder: &Path) -> Result<Self, StepError> {
        let mut server = Self::fixture(parts, folder)?;
        let (url, running) = start_toolbus(binary, &json!({ "type": "http", "url": server.url }), folder)?;
        server._running.insert(0, running);
        Ok(Self { url, _running: server._running })
    }
}

fn start_toolbus(binary: &Path, server: &serde_json::Value, folder: &Path) -> Result<(String, Running), StepError> {
    let config = folder.join("servers.json");
    let text = json!({ "mcpServers": { "fixture": server } }).to_string();
    std::fs::write(&config, text).map_err(|source| StepError::File { path: config.clone(), source })?;
    let address = free_address()?;
    let mut command = Command::new(binary);
    command.args(["up", "--listen", &address.to_string(), "--loopback-role", "local", "--mcp-config"]).arg(config);
    command.arg("--data").arg(folder.join("data"));
    let running = start("toolbus up", &mut command, address, &folder.join("toolbus.log"))?;
    Ok((url(address), running))
}

fn start(name: &str, command: &mut Command, address: SocketAddr, log: &Path) -> Result<Running, StepError> {
    let mut running = Running::start(name, command, log)?;
    running.wait_until(START_LIMIT, || discovers(address).unwrap_or(false))?;
    Ok(running)
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}/mcp")
}

/// The fixture doesn't report its port, so a free one is chosen in advance.
fn free_address() -> Result<SocketAddr, StepError> {
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    bound.map_err(|source| StepError::NotStarted { step: "a listener on loopback".to_owned(), source })
}

fn discovers(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    write!(
        stream,
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: server/discover\r\nContent-Length: {}\r\n\r\n{DISCOVER}",
        DISCOVER.len()
    )?;
    let mut answer = Vec::new();
    stream.take(64 << 10).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).contains("mcp-conformance-test-server"))
}
