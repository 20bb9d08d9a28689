//! Shared helpers: a server to talk to, and waits with a timeout.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use toolbus_mcp::{Era, Outcome, Raw};
use toolbus_upstream::{
    CallEvent, ConnectionOptions, Eras, GuardCommand, ServerCall, ServerConfig, ServerConnection, ServerError,
    ServerEvent,
};

pub const TIMEOUT: Duration = Duration::from_secs(20);

pub fn script(name: &str) -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it").join(name).display().to_string()
}

/// A server over HTTP, written in Python, that prints its port. It exits when it is dropped, because its stdin is closed.
pub struct WebScript {
    process: Child,
    pub port: u16,
}

impl WebScript {
    pub fn start(name: &str) -> Self {
        let mut command = Command::new("python3");
        command.arg(script(name)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("python3");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("pipe")).read_line(&mut line).expect("a line of output");
        Self { process, port: line.trim().parse().expect("a port") }
    }
}

impl Drop for WebScript {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

pub fn fake(era: &str) -> ServerConfig {
    ServerConfig::stdio("fake", "python3", &["-u", &script("fake_server.py"), era])
}

pub fn guarded() -> ConnectionOptions {
    let program = env!("CARGO_BIN_EXE_upstream-guard").into();
    ConnectionOptions { guard: Some(GuardCommand { program, args: Vec::new() }), ..ConnectionOptions::default() }
}

/// The eras of a server. The process that was probed is closed.
pub async fn probe_eras(config: &ServerConfig, options: &ConnectionOptions) -> Result<Eras, ServerError> {
    let probed = soon(toolbus_upstream::probe(config, options, initialize())).await?;
    if let Some(probed) = probed.connection {
        soon(probed.connection.close()).await;
    }
    Ok(probed.eras)
}

/// The params of `initialize` of a client without capabilities.
pub fn initialize() -> Raw {
    let info = json!({"name": "test", "version": "1"});
    toolbus_mcp::raw(&json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}))
}

pub struct Server {
    pub connection: ServerConnection,
    pub events: mpsc::Receiver<ServerEvent>,
}

impl Server {
    pub async fn open(config: &ServerConfig, era: Era, options: &ConnectionOptions) -> Self {
        let (sender, events) = mpsc::channel(64);
        let connection = ServerConnection::open(config, era, options, sender).await.expect("the server starts");
        Self { connection, events }
    }

    pub async fn fake() -> Self {
        Self::open(&fake("legacy"), Era::Legacy, &guarded()).await
    }

    pub async fn start(&self, tool: &str, arguments: Value) -> ServerCall {
        let params = toolbus_mcp::raw(&json!({"name": tool, "arguments": arguments}));
        self.connection.start("tools/call", Some(params)).await.expect("the request is sent")
    }

    pub async fn call(&self, tool: &str, arguments: Value) -> Result<Outcome, ServerError> {
        let call = self.start(tool, arguments).await;
        soon(call.outcome()).await
    }

    pub async fn request(&self, method: &str, params: Value) -> Result<Outcome, ServerError> {
        let call = self.connection.start(method, Some(toolbus_mcp::raw(&params))).await?;
        soon(call.outcome()).await
    }

    pub async fn next_event(&mut self) -> ServerEvent {
        soon(self.events.recv()).await.expect("the connection is open")
    }
}

pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.expect("the test timed out")
}

/// Polls until the condition holds.
pub async fn until(description: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {description}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub fn value(outcome: Result<Outcome, ServerError>) -> Value {
    match outcome.expect("the server answers") {
        Outcome::Result(result) => serde_json::from_str(result.get()).expect("valid JSON"),
        Outcome::Error(error) => panic!("unexpected error: {error}"),
    }
}

pub fn text(outcome: Result<Outcome, ServerError>) -> String {
    match outcome.expect("the server answers") {
        Outcome::Result(raw) | Outcome::Error(raw) => raw.get().to_owned(),
    }
}

pub fn json_text(text: &str) -> Raw {
    Raw::parse(text).expect("valid JSON")
}

pub async fn notification(call: &mut ServerCall) -> (String, String) {
    match soon(call.next()).await {
        CallEvent::Notification { method, params } => (method, params.map_or_else(String::new, |p| p.get().to_owned())),
        other => panic!("not a notification: {other:?}"),
    }
}

/// Whether a process with this id runs. Zombies don't count.
pub fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}
