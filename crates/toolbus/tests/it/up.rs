//! `toolbus up` and the commands for it, with real processes, the demo server and no configuration.

use crate::support::{TIMEOUT, soon};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

/// A temporary folder with a running `toolbus up`.
pub struct UpInstance {
    pub folder: TempDir,
    pub child: Child,
    url: String,
    pub banner: String,
}

pub fn toolbus(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
    for name in ["TOOLBUS_TOKEN", "TOOLBUS_BROKER", "TOOLBUS_CONFIG", "TOOLBUS_ROLE", "TOOLBUS_DATA"] {
        command.env_remove(name);
    }
    command.current_dir(folder).env("XDG_DATA_HOME", folder.join("data")).env("XDG_CONFIG_HOME", folder.join("config"));
    command.kill_on_drop(true);
    command
}

impl UpInstance {
    pub async fn start(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self::start_in(folder, args).await
    }

    pub async fn start_in(folder: TempDir, args: &[&str]) -> Self {
        Self::start_with_log(folder, args, Stdio::null()).await
    }

    pub async fn start_with_log(folder: TempDir, args: &[&str], log: Stdio) -> Self {
        let mut command = toolbus(folder.path());
        command.arg("up").args(["--listen", "127.0.0.1:0"]).args(args).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut banner = String::new();
        let mut url = String::new();
        soon("the banner", async {
            while let Some(line) = lines.next_line().await.expect("its output is text") {
                banner.push_str(&line);
                banner.push('\n');
                if let Some(address) = line.strip_prefix("listening on ") {
                    url = address.to_owned();
                }
                if line.contains("Try in another terminal") {
                    break;
                }
            }
        })
        .await;
        Self { folder, child, url, banner }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn address(&self) -> &str {
        self.url.trim_start_matches("ws://").trim_end_matches("/bus")
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = toolbus(self.folder.path());
        command.args(args).env("TOOLBUS_BROKER", &self.url);
        command
    }

    pub async fn run(&self, args: &[&str]) -> CommandOutput {
        CommandOutput::of(soon("the command ends", self.command(args).output()).await.expect("the binary starts"))
    }

    /// Waits until the demo server's tools are listed.
    pub async fn settled(self) -> Self {
        soon("the tools", async { while !self.run(&["tools"]).await.out.contains("text_stats") {} }).await;
        self
    }
}

pub struct CommandOutput {
    code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl CommandOutput {
    pub fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    #[track_caller]
    pub fn check(&self, code: i32, out: &[&str], err: &[&str]) {
        assert_eq!(self.code, Some(code), "out: {} err: {}", self.out, self.err);
        for part in out {
            assert!(self.out.contains(part), "stdout should contain {part:?}, but is: {}", self.out);
        }
        for part in err {
            assert!(self.err.contains(part), "stderr should contain {part:?}, but is: {}", self.err);
        }
    }
}

#[tokio::test]
async fn up_prints_its_banner_and_serves_the_demo_tools() {
    let instance = UpInstance::start(&[]).await;
    for part in ["token in", "hosting the demo server", "claude mcp add", "\"mcpServers\"", "/mcp", "Bearer"] {
        assert!(instance.banner.contains(part), "{part}: {}", instance.banner);
    }
    assert!(!instance.banner.contains("WARNING"), "{}", instance.banner);
    instance.run(&["tools"]).await.check(0, &["NAME", "demo", "host", "read-only", "chart"], &[]);
    instance.run(&["call", "now", "--arg", "zone=Asia/Tokyo"]).await.check(0, &["JST"], &[]);
    let json = instance.run(&["call", "text_stats", r#"{"text": "a bee"}"#, "--json"]).await;
    let result: Value = serde_json::from_str(&json.out).expect("the raw result");
    assert_eq!(result["structuredContent"]["words"], 2);
    let tools: Value = serde_json::from_str(&instance.run(&["tools", "--json"]).await.out).expect("JSON");
    assert_eq!(tools["servers"][0]["state"], "up");
    assert_eq!(tools["tools"].as_array().map(Vec::len), Some(5));
}

#[tokio::test]
async fn exit_codes_distinguish_tool_errors_from_other_errors() {
    let instance = UpInstance::start(&[]).await.settled().await;
    let no_zone = instance.run(&["call", "now", "--arg", "zone=Nowhere"]).await;
    no_zone.check(1, &[], &["no time zone \"Nowhere\"", "now failed"]);
    instance.run(&["call", "cuontdown"]).await.check(2, &[], &["no tool", "did you mean countdown?"]);
    instance.run(&["call", "text_stats"]).await.check(2, &[], &["text is missing (The text to analyse)", "hint:"]);
    instance.run(&["call", "text_stats", "--arg", "txet=a"]).await.check(2, &[], &["did you mean text?"]);
    instance.run(&["call", "countdown", "--arg", "from=0"]).await.check(2, &[], &["from: must be >=1, but got 0"]);
    instance.run(&["call", "countdown", "--arg", "from=many"]).await.check(2, &[], &["from must be of type integer"]);
    instance.run(&["call", "now", "--arg", "zone=a", "--arg", "zone=b"]).await.check(
        2,
        &[],
        &["2 times", "give it once"],
    );
    instance.run(&["call", "now", "--host", "nohost"]).await.check(
        2,
        &[],
        &["no host \"nohost\"", "known hosts: host"],
    );
    instance.run(&["tools", "--host", "nohost"]).await.check(1, &[], &["no host \"nohost\"", "known hosts: host"]);
    instance.run(&["call", "now", "{zone}"]).await.check(2, &[], &["not JSON", "hint: quote"]);
    instance.run(&["call", "now", "{}", "--arg", "a=b"]).await.check(2, &[], &["cannot be used with"]);
    let nowhere = ["call", "now", "--broker", "ws://127.0.0.1:1/bus", "--fail-fast"];
    instance.run(&nowhere).await.check(2, &[], &["can't reach"]);
}

#[tokio::test]
async fn progress_is_printed_and_images_are_saved_without_overwriting() {
    let instance = UpInstance::start(&[]).await.settled().await;
    let counted = instance.run(&["call", "countdown", "--arg", "from=3", "--arg", "interval_ms=1"]).await;
    counted.check(0, &["Counted from 3 to 0."], &["progress 1/3 2 to go", "progress 3/3 0 to go"]);
    let out = instance.folder.path().join("new/pictures");
    for name in ["chart.png", "chart-1.png"] {
        let drawn = instance.run(&["call", "chart", "--arg", "values=1,-2,3.5", "--out", "new/pictures"]).await;
        drawn.check(0, &["A chart of 3 numbers.", &format!("saved to new/pictures/{name}")], &[]);
        assert!(std::fs::read(out.join(name)).expect("it was saved").starts_with(b"\x89PNG"));
    }
}

#[tokio::test]
async fn ctrl_c_cancels_the_call_at_its_server() {
    let instance = UpInstance::start(&[]).await.settled().await;
    let mut call = instance.command(&["call", "slow", "--arg", "seconds=3000"]);
    let mut call = call.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut lines = BufReader::new(call.stderr.take().expect("a pipe")).lines();
    let first = soon("progress", lines.next_line()).await.expect("text").expect("a line");
    assert_eq!(first, "progress 0/3000 3000 s left");
    let began = Instant::now();
    signal(&call, "INT").await;
    let status = soon("exit", call.wait()).await.expect("an exit status");
    assert_eq!(status.code(), Some(130));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let mut rest = Vec::new();
    while let Some(line) = soon("the rest", lines.next_line()).await.expect("text") {
        rest.push(line);
    }
    assert_eq!(rest.last().map(String::as_str), Some("cancelled"), "{rest:?}");
    // Neither the request nor a reply is left in a mailbox.
    soon("all mailboxes are empty", async {
        loop {
            let ps: Value = serde_json::from_str(&instance.run(&["ps", "--json"]).await.out).expect("JSON");
            let idle = |mailbox: &Value| mailbox["messages"] == 0;
            if ps["mailboxes"].as_array().is_some_and(|mailboxes| mailboxes.iter().all(idle)) {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn child_processes_end_on_sigterm_sigint_and_sigkill() {
    for way in ["TERM", "INT", "KILL"] {
        let mut instance = UpInstance::start(&[]).await.settled().await;
        let parent = instance.child.id().expect("it runs");
        let children = descendants(parent);
        assert!(children.len() >= 2, "a guard and a server: {children:?}");
        signal(&instance.child, way).await;
        let status = soon("exit", instance.child.wait()).await.expect("an exit status");
        assert_eq!(status.success(), way != "KILL", "{way}: {status}");
        soon("the children end", async {
            while children.iter().any(|child| is_running(*child)) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn mcp_needs_a_token_unless_a_loopback_role_is_set() {
    let initialize = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    });
    let instance = UpInstance::start(&[]).await.settled().await;
    let token = std::fs::read_to_string(instance.folder.path().join("data/toolbus/token")).expect("a token file");
    let answer = post(&instance.url, Some(token.trim()), &initialize).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("toolbus-demo"), "{answer}");
    for wrong in [None, Some("wrong")] {
        let answer = post(&instance.url, wrong, &initialize).await;
        assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("TB0103"), "{answer}");
    }
    let open = UpInstance::start(&["--loopback-role", "guest"]).await.settled().await;
    assert!(open.banner.contains("WARNING") && open.banner.contains("'guest'"), "{}", open.banner);
    assert!(open.banner.contains("--loopback-role guest: there are no [roles]"), "{}", open.banner);
    let answer = post(&open.url, None, &initialize).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = post(&open.url, Some("wrong"), &initialize).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "a wrong token is refused even with a loopback role: {answer}");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let args = ["up", "--listen", "0.0.0.0:0", "--insecure", "--loopback-role", "guest"];
    let refused = soon("exit", toolbus(folder.path()).args(args).output()).await.expect("it starts");
    CommandOutput::of(refused).check(1, &[], &["other machines can reach", "hint:"]);
}

#[tokio::test]
async fn connect_is_an_mcp_server_on_stdin_and_stdout() {
    let instance = UpInstance::start(&[]).await.settled().await;
    let mut command = instance.command(&["connect"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the binary starts");
    let mut input = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({"_meta": meta, "name": "text_stats", "arguments": {"text": "one two"}});
    let request = json!({"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": params});
    input.write_all(format!("{request}\n").as_bytes()).await.expect("it reads its input");
    let answer = soon("an answer", lines.next_line()).await.expect("text").expect("a line");
    let answer: Value = serde_json::from_str(&answer).expect("nothing but MCP on stdout");
    assert_eq!(answer["id"], "x");
    assert_eq!(answer["result"]["structuredContent"]["words"], 2);
    drop(input);
    assert!(soon("exit", child.wait()).await.expect("an exit status").success());
}

pub async fn signal(child: &Child, name: &str) {
    let pid = child.id().expect("it runs").to_string();
    let sent = Command::new("kill").args(["-s", name, &pid]).status().await.expect("kill exists");
    assert!(sent.success());
}

pub fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

pub fn descendants(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children: Vec<u32> = text.split_whitespace().filter_map(|child| child.parse().ok()).collect();
    children.iter().flat_map(|child| [vec![*child], descendants(*child)].concat()).collect()
}

/// Sends one HTTP request and returns the whole response.
async fn post(bus_url: &str, token: Option<&str>, body: &Value) -> String {
    use tokio::io::AsyncReadExt;
    let address = bus_url.trim_start_matches("ws://").trim_end_matches("/bus");
    let body = body.to_string();
    let credential = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\n{credential}Content-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut socket = tokio::net::TcpStream::connect(address).await.expect("it listens");
    socket.write_all(request.as_bytes()).await.expect("it reads its input");
    let mut answer = String::new();
    tokio::time::timeout(TIMEOUT, socket.read_to_string(&mut answer)).await.expect("in time").expect("text");
    answer
}
