//! A tool call has at most one effect, whichever process ends and however: broker, host and worker as processes of their
//! own, a tool that appends a line to a file, and callers that repeat what they got no answer to.

use crate::mcp_client::{HttpClient, McpClient, StdioClient};
use crate::support::{BrokerProcess, TIMEOUT, soon};
use crate::up::{UpInstance, toolbus};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Child;

struct Fixture {
    folder: TempDir,
    broker: BrokerProcess,
    host: Child,
}

impl Fixture {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        configure(folder.path());
        let broker = start_broker(folder.path(), "127.0.0.1:0").await;
        let host = start_host(folder.path(), &broker.url(), "state");
        let fixture = Self { folder, broker, host };
        fixture.until_listed().await;
        fixture
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn token(&self) -> PathBuf {
        self.path().join("data/toolbus/token")
    }

    async fn until_listed(&self) {
        soon("the tool is listed", async {
            loop {
                let mut tools = toolbus(self.path());
                tools.args(["tools", "--broker", &self.broker.url()]);
                let output = tools.output().await.expect("the binary starts");
                if String::from_utf8_lossy(&output.stdout).contains("act ") {
                    return;
                }
            }
        })
        .await;
    }

    fn worker(&self) -> Worker {
        Worker(StdioClient::connect(&self.broker.url(), &self.token()))
    }

    fn effects_of(&self, id: &str) -> usize {
        let effects = std::fs::read_to_string(self.path().join("effects")).unwrap_or_default();
        effects.lines().filter(|line| *line == id).count()
    }

    async fn until_started(&self, id: &str) {
        soon("the tool has started", async {
            while self.effects_of(id) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

/// Writes the configuration of a host whose tool appends to the file `effects`.
fn configure(folder: &Path) {
    let server = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/effects.py");
    let server = json!({"command": "python3", "args": [server, folder.join("effects")]});
    std::fs::write(folder.join("mcp.json"), json!({"mcpServers": {"effects": server}}).to_string())
        .expect("the folder is writable");
}

async fn start_broker(folder: &Path, address: &str) -> BrokerProcess {
    let mut command = toolbus(folder);
    command.args(["broker", "--listen", address]);
    BrokerProcess::spawn(command).await
}

fn start_host(folder: &Path, url: &str, state: &str) -> Child {
    let mut host = toolbus(folder);
    host.args(["host", "--mcp-config", "mcp.json", "--broker", url, "--state", state]);
    host.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts")
}

async fn signal(child: &Child, name: &str) {
    let pid = child.id().expect("it runs").to_string();
    let sent = tokio::process::Command::new("kill").args([name, &pid]).status().await.expect("kill starts");
    assert!(sent.success());
}

struct Worker(StdioClient);

impl Worker {
    async fn send_call(&mut self, id: &str, seconds: f64) {
        let params = params(id, seconds);
        self.0.send(&format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{params}}}"#)).await;
    }

    /// The response to the call that was sent, whatever notifications come before it.
    async fn response(&mut self) -> Value {
        soon("the response", async {
            loop {
                let message: Value = serde_json::from_str(&self.0.next_line().await).expect("JSON");
                if message["id"] == 7 {
                    return message;
                }
            }
        })
        .await
    }

    async fn call(&mut self, id: &str, seconds: f64) -> Value {
        let answered = soon("the response", self.0.request("tools/call", &params(id, seconds).to_string())).await;
        serde_json::from_str(&answered.response).expect("JSON")
    }
}

fn params(id: &str, seconds: f64) -> Value {
    json!({"name": "act", "arguments": {"id": id, "seconds": seconds}, "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    }})
}

fn text(response: &Value) -> &str {
    response["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no result: {response}"))
}

fn code(response: &Value) -> &str {
    response["error"]["data"]["code"].as_str().unwrap_or_else(|| panic!("no error: {response}"))
}

#[tokio::test]
async fn a_worker_that_is_stopped_leaves_its_call_to_the_next_one() {
    let fixture = Fixture::start().await;
    for (id, name) in [("term", "-TERM"), ("int", "-INT")] {
        let mut first = fixture.worker();
        first.send_call(id, 1.5).await;
        fixture.until_started(id).await;
        signal(first.0.process(), name).await;
        soon("the worker ends", first.0.wait()).await;
        let answer = fixture.worker().call(id, 1.5).await;
        assert_eq!(text(&answer), format!("did {id}"));
        assert_eq!(fixture.effects_of(id), 1, "{name}");
    }
}

#[tokio::test]
async fn a_call_that_a_host_with_another_state_folder_gets_again_is_not_run() {
    let mut fixture = Fixture::start().await;
    let copy = |from: &str, to: &str| {
        let status = std::process::Command::new("cp").arg("-r").args([from, to]).current_dir(fixture.path()).status();
        assert!(status.expect("cp starts").success());
    };
    copy("state", "older");
    for (id, state) in [("new", "empty"), ("old", "older")] {
        let mut worker = fixture.worker();
        worker.send_call(id, 60.0).await;
        fixture.until_started(id).await;
        fixture.host.kill().await.expect("it was running");
        fixture.host = start_host(fixture.path(), &fixture.broker.url(), state);
        assert_eq!(code(&worker.response().await), "TB0420", "{state}");
        assert_eq!(fixture.effects_of(id), 1, "{state}");
        let after = fixture.worker().call(&format!("after-{id}"), 0.0).await;
        assert_eq!(text(&after), format!("did after-{id}"), "new calls run");
    }
}

#[tokio::test]
async fn of_two_hosts_with_one_credential_the_first_is_fenced_and_its_calls_are_not_run_again() {
    let mut fixture = Fixture::start().await;
    let mut worker = fixture.worker();
    worker.send_call("twin", 60.0).await;
    fixture.until_started("twin").await;
    let _twin = start_host(fixture.path(), &fixture.broker.url(), "twin");
    assert_eq!(code(&worker.response().await), "TB0420");
    soon("the first host ends", fixture.host.wait()).await.expect("it can be waited for");
    assert_eq!(fixture.effects_of("twin"), 1);
}

#[tokio::test]
async fn a_host_with_a_damaged_journal_does_not_run_calls_again_after_a_kill_of_the_broker() {
    let mut fixture = Fixture::start().await;
    let mut worker = fixture.worker();
    worker.send_call("damaged", 60.0).await;
    fixture.until_started("damaged").await;
    fixture.host.kill().await.expect("it was running");
    let address = fixture.broker.kill().await;
    flip_every_record(&fixture.folder.path().join("state/journal"));
    fixture.broker = start_broker(fixture.folder.path(), &address.to_string()).await;
    fixture.host = start_host(fixture.folder.path(), &fixture.broker.url(), "state");
    assert_eq!(code(&worker.response().await), "TB0420");
    assert_eq!(fixture.effects_of("damaged"), 1);
}

fn flip_every_record(journal: &Path) {
    for entry in std::fs::read_dir(journal).expect("a journal").flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "log") {
            let mut bytes = std::fs::read(entry.path()).expect("a segment");
            bytes.iter_mut().skip(30).step_by(40).for_each(|byte| *byte ^= 1);
            std::fs::write(entry.path(), bytes).expect("writable");
        }
    }
}

#[tokio::test]
async fn a_host_that_is_stopped_lets_running_calls_end_and_starts_no_others() {
    let mut fixture = Fixture::start().await;
    let (mut running, mut queued) = (fixture.worker(), fixture.worker());
    running.send_call("running", 2.0).await;
    fixture.until_started("running").await;
    signal(&fixture.host, "-TERM").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    queued.send_call("queued", 0.0).await;
    assert_eq!(text(&running.response().await), "did running");
    let status = soon("the host ends", fixture.host.wait()).await.expect("it can be waited for");
    assert!(status.success(), "{status}");
    assert_eq!(fixture.effects_of("queued"), 0, "it stays in the mailbox");
    fixture.host = start_host(fixture.path(), &fixture.broker.url(), "state");
    assert_eq!(text(&queued.response().await), "did queued");
    assert_eq!((fixture.effects_of("running"), fixture.effects_of("queued")), (1, 1));
}

#[tokio::test]
async fn a_call_that_outlives_the_hosts_grace_time_has_an_unknown_outcome() {
    let mut fixture = Fixture::start().await;
    fixture.host.kill().await.expect("it was running");
    let mut host = toolbus(fixture.path());
    host.args(["host", "--mcp-config", "mcp.json", "--broker", &fixture.broker.url(), "--state", "state"]);
    host.args(["--drain", "1s"]).stdout(Stdio::null()).stderr(Stdio::null());
    fixture.host = host.spawn().expect("the binary starts");
    let mut worker = fixture.worker();
    worker.send_call("long", 60.0).await;
    fixture.until_started("long").await;
    let asked = Instant::now();
    signal(&fixture.host, "-TERM").await;
    soon("the host ends", fixture.host.wait()).await.expect("it can be waited for");
    assert!(asked.elapsed() < TIMEOUT / 2, "{:?}", asked.elapsed());
    fixture.host = start_host(fixture.path(), &fixture.broker.url(), "state");
    assert_eq!(code(&worker.response().await), "TB0420");
    assert_eq!(fixture.effects_of("long"), 1);
}

#[tokio::test]
async fn a_call_survives_a_stop_of_the_broker() {
    let mut fixture = Fixture::start().await;
    let mut worker = fixture.worker();
    worker.send_call("broker", 2.0).await;
    fixture.until_started("broker").await;
    let address = fixture.broker.address;
    signal(&fixture.broker.child, "-TERM").await;
    soon("the broker ends", fixture.broker.child.wait()).await.expect("it can be waited for");
    fixture.broker = start_broker(fixture.folder.path(), &address.to_string()).await;
    assert_eq!(text(&worker.response().await), "did broker");
    assert_eq!(fixture.effects_of("broker"), 1);
}

/// A call over `/mcp` whose response is never read.
async fn send_http_call(address: std::net::SocketAddr, token: &str, id: &str, seconds: f64) -> TcpStream {
    let params = params(id, seconds);
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}).to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\nMCP-Method: tools/call\r\n\
         MCP-Name: act\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut socket = TcpStream::connect(address).await.expect("the broker accepts");
    socket.write_all((head + &body).as_bytes()).await.expect("the request is sent");
    socket
}

#[tokio::test]
async fn a_call_over_http_that_a_stop_of_the_broker_cut_off_is_joined_when_it_is_repeated() {
    let mut fixture = Fixture::start().await;
    let address = fixture.broker.address;
    let token = std::fs::read_to_string(fixture.token()).expect("a token").trim().to_owned();
    let _client = send_http_call(address, &token, "http", 3.0).await;
    fixture.until_started("http").await;
    signal(&fixture.broker.child, "-TERM").await;
    soon("the broker ends", fixture.broker.child.wait()).await.expect("it can be waited for");
    fixture.broker = start_broker(fixture.folder.path(), &address.to_string()).await;
    let mut repeating = HttpClient::to(&format!("http://{address}/mcp"), &token);
    let params = params("http", 3.0).to_string();
    let repeated = soon("the response", repeating.request("tools/call", &params)).await;
    let response = serde_json::from_str(&repeated.response).expect("JSON");
    assert_eq!(text(&response), "did http");
    assert_eq!(fixture.effects_of("http"), 1);
}

#[tokio::test]
async fn a_legacy_session_over_http_survives_a_restart_of_the_broker_and_its_repeated_call_is_joined() {
    for name in ["-TERM", "-KILL"] {
        let mut fixture = Fixture::start().await;
        let address = fixture.broker.address;
        let token = std::fs::read_to_string(fixture.token()).expect("a token").trim().to_owned();
        let url = format!("http://{address}/mcp");
        let mut client = HttpClient::to(&url, &token);
        let hello = r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}"#;
        soon("a session", client.request("initialize", hello)).await;
        let session = client.session().to_owned();
        let arguments = json!({"name": "act", "arguments": {"id": name, "seconds": 3.0}});
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": arguments}).to_string();
        let call = |client: HttpClient| {
            let (session, body) = (session.clone(), body.clone());
            async move { client.send(&[("mcp-session-id", &session), ("mcp-protocol-version", "2025-11-25")], body).await }
        };
        let cut_off = tokio::spawn(call(client));
        fixture.until_started(name).await;
        // The response has become a stream.
        tokio::time::sleep(Duration::from_millis(400)).await;
        signal(&fixture.broker.child, name).await;
        soon("the broker ends", fixture.broker.child.wait()).await.expect("it can be waited for");
        match soon("the end of the stream", cut_off).await {
            Ok((_, text)) => assert!(name == "-TERM" && text.contains("TB0420"), "{name} {text}"),
            Err(_) => assert_eq!(name, "-KILL", "a stream that is stopped ends with an error for the call"),
        }
        fixture.broker = start_broker(fixture.folder.path(), &address.to_string()).await;
        let (status, text) = soon("the response", call(HttpClient::to(&url, &token))).await;
        assert_eq!(status, 200, "{name} {text}");
        assert!(text.contains(&format!("did {name}")) && text.contains("toolbus/joined"), "{name} {text}");
        assert_eq!(fixture.effects_of(name), 1, "{name}");
    }
}

#[tokio::test]
async fn up_is_not_ready_and_accepts_no_connections_while_its_running_calls_end() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let effects = folder.path().join("effects");
    configure(folder.path());
    let mut up = UpInstance::start_in(folder, &["--mcp-config", "mcp.json"]).await;
    soon("the tool is listed", async { while !up.run(&["tools"]).await.out.contains("act ") {} }).await;
    let token =
        std::fs::read_to_string(up.folder.path().join("data/toolbus/token")).expect("a token").trim().to_owned();
    let address = up.address().to_owned();
    let mut client = HttpClient::to(&format!("http://{address}/mcp"), &token);
    let running = tokio::spawn(async move { client.request("tools/call", &params("up", 3.0).to_string()).await });
    soon("the tool has started", async {
        while !effects.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    signal(&up.child, "-TERM").await;
    soon("/readyz answers 503", async {
        while !get(&address, "/readyz").await.starts_with("HTTP/1.1 503") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(get(&address, "/healthz").await.starts_with("HTTP/1.1 200"));
    let refused = toolbus::BrokerClient::connect(up.url(), toolbus::AgentRef::new("@"), &token).await;
    let refused = refused.err().expect("it is refused").to_string();
    assert!(refused.contains("stopping"), "{refused}");
    let answered = soon("the response", running).await.expect("a response");
    assert_eq!(text(&serde_json::from_str(&answered.response).expect("JSON")), "did up");
    let status = soon("the end", up.child.wait()).await.expect("it can be waited for");
    assert!(status.success(), "{status}");
    assert_eq!(std::fs::read_to_string(effects).expect("the effects"), "up\n");
}

async fn get(address: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(address).await.expect("the broker accepts");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    socket.write_all(request.as_bytes()).await.expect("the request is sent");
    let mut response = String::new();
    soon("a response", socket.read_to_string(&mut response)).await.expect("a response");
    response
}
