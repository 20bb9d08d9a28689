//! `toolbus up` with a server that is slow to start: lists don't wait for it, clients are notified when it is there, and a
//! call of its tool waits.

use crate::mcp_client::StdioClient;
use crate::mcp_process::UpProcess;
use crate::support::soon;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;

/// A legacy server with one tool. It waits for a file, if there is one, and records its starts.
const SERVER: &str = r#"
import json, os, sys, time
name, starts, gate = sys.argv[1:]
with open(starts, "a") as file: file.write(name + "\n")
while gate and not os.path.exists(gate): time.sleep(0.02)
def send(id, **answer): print(json.dumps(dict(answer, jsonrpc="2.0", id=id)), flush=True)
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "initialize":
        send(m["id"], result={"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}},
            "serverInfo": {"name": name, "version": "1"}})
    elif m.get("method") == "tools/list":
        send(m["id"], result={"tools": [{"name": name, "inputSchema": {"type": "object"}}]})
    elif m.get("method") == "tools/call":
        send(m["id"], result={"content": [{"type": "text", "text": "from " + name}]})
    elif "id" in m:
        send(m["id"], error={"code": -32601, "message": "no"})
"#;

struct Slow {
    up: UpProcess,
    gate: PathBuf,
    starts: PathBuf,
}

impl Slow {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (gate, starts) = (folder.path().join("gate"), folder.path().join("starts"));
        let server = |name: &str, gate: &str| json!({"command": "python3", "args": ["-c", SERVER, name, starts, gate]});
        let config =
            json!({"mcpServers": {"slow": server("slow", &gate.display().to_string()), "fast": server("fast", "")}});
        let file = folder.path().join("mcp.json");
        std::fs::write(&file, config.to_string()).expect("the folder is writable");
        let up = UpProcess::start(folder, &["--mcp-config", &file.display().to_string()]).await;
        Self { up, gate, starts }
    }

    fn open(&self) {
        std::fs::write(&self.gate, "").expect("the folder is writable");
    }

    fn starts(&self, name: &str) -> usize {
        let starts = std::fs::read_to_string(&self.starts).unwrap_or_default();
        starts.lines().filter(|line| *line == name).count()
    }

    fn call(&self, tool: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
        command.args(["call", tool, "--broker", &self.up.bus_url(), "--token-file"]).arg(self.up.token_file());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }
}

/// The response to the tools/list with this id, without notifications before it.
async fn list(client: &mut StdioClient, id: u64) -> Vec<String> {
    client.send(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/list"}).to_string()).await;
    loop {
        let message: Value = serde_json::from_str(&client.next_line().await).expect("JSON");
        if message["id"] == id {
            let tools = message["result"]["tools"].as_array().expect("tools");
            return tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect();
        }
    }
}

#[tokio::test]
async fn a_list_has_the_running_servers_and_a_later_one_is_announced() {
    let slow = Slow::start().await;
    let mut client = StdioClient::start(&slow.up).await;
    let info = json!({"name": "c", "version": "1"});
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info});
    client.send(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}).to_string()).await;
    client.next_line().await;
    let mut id = 1;
    while list(&mut client, id).await != ["fast"] {
        id += 1;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    slow.open();
    let message: Value = serde_json::from_str(&client.next_line().await).expect("JSON");
    assert_eq!(message["method"], "notifications/tools/list_changed");
    assert_eq!(list(&mut client, id + 1).await, ["fast", "slow"]);
    for tool in ["slow", "fast"] {
        let call = json!({"jsonrpc": "2.0", "id": tool, "method": "tools/call", "params": {"name": tool}});
        client.send(&call.to_string()).await;
        assert!(client.next_line().await.contains(&format!("from {tool}")));
        assert_eq!(slow.starts(tool), 1);
    }
}

#[tokio::test]
async fn a_call_waits_for_the_server_of_its_tool_and_for_no_other() {
    let slow = Slow::start().await;
    let fast = soon("the call of a running server", slow.call("fast").output()).await.expect("the binary starts");
    assert_eq!(String::from_utf8_lossy(&fast.stdout), "from fast\n", "{fast:?}");
    let mut waiting = slow.call("slow").spawn().expect("the binary starts");
    let mut errors = BufReader::new(waiting.stderr.take().expect("a pipe")).lines();
    let line = soon("it says what it waits for", errors.next_line()).await.expect("text").expect("a line");
    assert_eq!(line, "waiting for slow: starting slow");
    slow.open();
    let mut output = String::new();
    let read = waiting.stdout.take().expect("a pipe").read_to_string(&mut output).await;
    read.expect("text");
    assert_eq!(output, "from slow\n");
}
