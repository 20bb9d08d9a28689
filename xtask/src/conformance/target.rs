//! The endpoint under test: the server itself, or toolbus in front of that server, over stdio or HTTP.

use super::cluster;
use crate::child::Running;
use crate::parts::Parts;
use crate::run::StepError;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub const START_LIMIT: Duration = Duration::from_secs(60);
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
    pub fn new(url: String, running: Vec<Running>) -> Self {
        Self { url, _running: running }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn fixture(parts: &Parts, folder: &Path) -> Result<Self, StepError> {
        let address = free_address()?;
        let mut command = Command::new(parts.python());
        command.args(["-m", "mcp_everything_server", "--port", &address.port().to_string()]);
        let log = folder.join("server.log");
        let running = start("the everything server", &mut command, &log, || discovers(address).unwrap_or(false))?;
        Ok(Self { url: url(address), _running: vec![running] })
    }

    pub fn through_toolbus_stdio(binary: &Path, parts: &Parts, folder: &Path) -> Result<Self, StepError> {
        let (url, running) = start_toolbus(binary, &stdio_server(parts), folder)?;
        Ok(Self { url, _running: vec![running] })
    }

    pub fn through_cluster(binary: &Path, parts: &Parts, folder: &Path) -> Result<Self, StepError> {
        cluster::through_cluster(binary, parts, folder, &json!({ "fixture": stdio_server(parts) }))
    }

    pub fn through_toolbus_http(binary: &Path, parts: &Parts, folder: &Path) -> Result<Self, StepError> {
        let mut server = Self::fixture(parts, folder)?;
        let (url, running) = start_toolbus(binary, &json!({ "type": "http", "url": server.url }), folder)?;
        server._running.insert(0, running);
        Ok(Self { url, _running: server._running })
    }
}

fn stdio_server(parts: &Parts) -> serde_json::Value {
    json!({ "command": parts.python(), "args": ["-c", STDIO_SERVER] })
}

fn start_toolbus(binary: &Path, server: &serde_json::Value, folder: &Path) -> Result<(String, Running), StepError> {
    let config = folder.join("servers.json");
    let text = json!({ "mcpServers": { "fixture": server } }).to_string();
    std::fs::write(&config, text).map_err(|source| StepError::File { path: config.clone(), source })?;
    let address = free_address()?;
    let mut command = Command::new(binary);
    command.args(["up", "--listen", &address.to_string(), "--loopback-role", "local", "--mcp-config"]).arg(config);
    command.arg("--data").arg(folder.join("data"));
    let log = folder.join("toolbus.log");
    let running = start("toolbus up", &mut command, &log, || discovers(address).unwrap_or(false))?;
    Ok((url(address), running))
}

pub fn start(name: &str, command: &mut Command, log: &Path, is_ready: impl Fn() -> bool) -> Result<Running, StepError> {
    let mut running = Running::start(name, command, log)?;
    running.wait_until(START_LIMIT, is_ready)?;
    Ok(running)
}

pub fn url(address: SocketAddr) -> String {
    format!("http://{address}/mcp")
}

/// The fixture doesn't report its port, so a free one is chosen in advance.
pub fn free_address() -> Result<SocketAddr, StepError> {
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    bound.map_err(|source| StepError::NotStarted { step: "a listener on loopback".to_owned(), source })
}

pub fn discovers(address: SocketAddr) -> std::io::Result<bool> {
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: server/discover\r\nContent-Length: {}\r\n\r\n{DISCOVER}",
        DISCOVER.len()
    );
    Ok(answer(address, &request)?.contains("mcp-conformance-test-server"))
}

/// The answer to a GET request, with its head.
pub fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    answer(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"))
}

fn answer(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(64 << 10).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
