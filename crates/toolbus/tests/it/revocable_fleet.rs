//! A broker and a host as processes, agents `bob` and `ana`, and a server that logs what it is asked to do.

use crate::mcp_process::python;
use crate::support::{BrokerProcess, soon};
use crate::up::{CommandOutput, toolbus};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// `hold` never answers, the other tools do at once. All log their argument.
const SERVER: &str = r#"
import json, sys
def log(text):
    with open(sys.argv[1], "a") as file:
        file.write(text + "\n")
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "notifications/cancelled":
        log("cancelled")
    if "id" not in message:
        continue
    result = {}
    if message["method"] == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "s", "version": "1"}}
    if message["method"] == "tools/list":
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        result = {"tools": [{"name": name, "inputSchema": schema} for name in ["hold", "say", "wipe"]]}
    if message["method"] == "tools/call":
        name, text = message["params"]["name"], message["params"]["arguments"]["text"]
        log(name + " " + text)
        if name == "hold":
            continue
        result = {"content": [{"type": "text", "text": "said " + text}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

pub struct Fleet {
    pub folder: TempDir,
    pub broker: BrokerProcess,
    pub host: Child,
}

impl Fleet {
    /// `bob` and `ana` have tokens; two calls run at a time, and `wipe` needs an approval.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        configure(folder.path());
        let broker = start_broker(&folder, "127.0.0.1:0").await;
        let host = start_host(&folder, &broker);
        let fleet = Self { folder, broker, host };
        fleet.add("bob", "bob").await;
        fleet.add("ana", "ana").await;
        fleet.until("the tools", async || fleet.run_as("bob", &["tools"]).await.out.contains("hold")).await;
        fleet
    }

    /// Adds an agent, with its token in a file of that name.
    pub async fn add(&self, name: &str, token: &str) {
        let added = self.run(&["agent", "add", name, "--role", "user", "--token-file", token]).await;
        added.check(0, &[token], &[]);
    }

    pub async fn kill_host(&mut self) {
        self.host.kill().await.expect("it was running");
        self.until("the host is away", async || self.run(&["ps"]).await.out.contains("away for")).await;
    }

    pub fn restart_host(&mut self) {
        self.host = start_host(&self.folder, &self.broker);
    }

    /// Kills the broker, does something, and starts it again at the same address.
    pub async fn restart_broker(self, meanwhile: impl AsyncFnOnce(&TempDir)) -> Self {
        let Self { folder, broker, host } = self;
        let address = broker.kill().await.to_string();
        meanwhile(&folder).await;
        let broker = start_broker(&folder, &address).await;
        Self { folder, broker, host }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = toolbus(self.folder.path());
        command.args(args).env("TOOLBUS_BROKER", self.broker.url());
        command
    }

    pub async fn run(&self, args: &[&str]) -> CommandOutput {
        CommandOutput::of(soon("the command ends", self.command(args).output()).await.expect("the binary starts"))
    }

    /// Runs a command with the token in that file.
    pub async fn run_as(&self, token: &str, args: &[&str]) -> CommandOutput {
        self.run(&[args, &["--token-file", token]].concat()).await
    }

    pub fn spawn_as(&self, token: &str, args: &[&str]) -> Child {
        let mut command = self.command(args);
        command.args(["--token-file", token]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    }

    /// The calls at the host and in its mailbox, as agent and state, sorted.
    pub async fn calls(&self) -> Vec<(String, String)> {
        let listed: Value = serde_json::from_str(&self.run(&["calls", "--json"]).await.out).expect("JSON");
        let text = |call: &Value, key: &str| call[key].as_str().unwrap_or_default().to_owned();
        let calls = listed["calls"].as_array().expect("a list").iter();
        let mut calls: Vec<_> = calls.map(|call| (text(call, "agent"), text(call, "state"))).collect();
        calls.sort();
        calls
    }

    pub async fn until(&self, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
        soon(what, async { while !is_so().await {} }).await;
    }

    /// Waits until the server has logged that line.
    pub async fn until_logged(&self, line: &str) {
        self.until(line, async || {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            self.log().lines().any(|logged| logged == line)
        })
        .await;
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).expect("a log")
    }

    /// All lines of an audit log: `broker`, or that of the host.
    pub fn audit(&self, of_host: bool) -> String {
        let data = self.folder.path().join("data/toolbus");
        let folder: PathBuf = if of_host { data.join("hosts/host/audit") } else { data.join("audit") };
        std::fs::read_to_string(folder.join("audit-000001.jsonl")).expect("a log")
    }
}

/// Writes the server and a toolbus.toml with the role `user`.
pub fn configure(folder: &Path) {
    let file = |name: &str| folder.join(name);
    std::fs::write(file("server.py"), SERVER).expect("written");
    std::fs::write(file("log"), "").expect("written");
    let config = format!(
        "[roles.user]\nallow = ['hold', 'say']\nask = ['wipe']\nsend = ['*']\n\
         [servers.s]\ncommand = {:?}\nargs = ['-u', {:?}, {:?}]\nera = 'legacy'\nmax_concurrency = 2\n",
        python(),
        file("server.py"),
        file("log")
    );
    std::fs::write(file("toolbus.toml"), config).expect("written");
}

async fn start_broker(folder: &TempDir, address: &str) -> BrokerProcess {
    let mut command = toolbus(folder.path());
    command.args(["broker", "--listen", address]);
    BrokerProcess::spawn(command).await
}

fn start_host(folder: &TempDir, broker: &BrokerProcess) -> Child {
    let mut command = toolbus(folder.path());
    command.arg("host").env("TOOLBUS_BROKER", broker.url()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("it starts")
}
