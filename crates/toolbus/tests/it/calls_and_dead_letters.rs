//! `toolbus calls`, `dead` and `task`, with broker and host as separate processes.

use crate::mcp_process::python;
use crate::support::{BrokerProcess, soon};
use crate::up::{CommandOutput, toolbus};
use serde_json::Value;
use std::process::Stdio;
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// `hold` never answers, `die` crashes its server.
const SERVER: &str = r#"
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = {}
    if message["method"] == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "s", "version": "1"}}
    if message["method"] == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ["hold", "die"]]}
    if message["method"] == "tools/call":
        if message["params"]["name"] == "die":
            os._exit(3)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

struct Bus {
    folder: TempDir,
    broker: BrokerProcess,
    host: Child,
}

impl Bus {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let server = folder.path().join("server.py");
        std::fs::write(&server, SERVER).expect("written");
        let config = format!(
            "[servers.s]\ncommand = {:?}\nargs = ['-u', {server:?}]\nera = 'legacy'\ntool_replay = {{ die = 'safe' }}\n",
            python()
        );
        std::fs::write(folder.path().join("toolbus.toml"), config).expect("written");
        let mut command = toolbus(folder.path());
        command.args(["broker", "--listen", "127.0.0.1:0"]);
        let broker = BrokerProcess::spawn(command).await;
        let host = host(&folder, &broker);
        let bus = Self { folder, broker, host };
        soon("the tools", async { while !bus.run(&["tools"]).await.out.contains("hold") {} }).await;
        bus
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = toolbus(self.folder.path());
        command.args(args).env("TOOLBUS_BROKER", self.broker.url());
        command
    }

    async fn run(&self, args: &[&str]) -> CommandOutput {
        CommandOutput::of(soon("the command ends", self.command(args).output()).await.expect("the binary starts"))
    }

    fn spawn(&self, args: &[&str]) -> Child {
        self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    }

    /// Waits until one call is listed and is in that state.
    async fn wait_for_call(&self, state: &str) -> Value {
        soon("the call", async {
            loop {
                let listed: Value = serde_json::from_str(&self.run(&["calls", "--json"]).await.out).expect("JSON");
                if let Some([call]) = listed["calls"].as_array().map(Vec::as_slice)
                    && call["state"] == state
                {
                    return call.clone();
                }
            }
        })
        .await
    }
}

fn host(folder: &TempDir, broker: &BrokerProcess) -> Child {
    let mut command = toolbus(folder.path());
    command.arg("host").env("TOOLBUS_BROKER", broker.url()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("it starts")
}

async fn finish(child: Child) -> CommandOutput {
    CommandOutput::of(soon("the call ends", child.wait_with_output()).await.expect("an exit status"))
}

#[tokio::test]
async fn calls_are_listed_counted_and_cancelled() {
    let bus = Bus::start().await;
    bus.run(&["calls"]).await.check(0, &["no calls under way"], &[]);
    let pending = bus.spawn(&["call", "hold"]);
    let call = bus.wait_for_call("running").await;
    assert_eq!((&call["tool"], &call["agent"], &call["attempts"]), (&"hold".into(), &"local".into(), &1.into()));
    let id = call["id"].as_str().expect("an id");
    bus.run(&["calls"]).await.check(0, &["s/hold", "local", "running", id], &[]);
    bus.run(&["ps"]).await.check(0, &["HOST", "1 running"], &[]);
    bus.run(&["calls", "cancel", &id[..8]]).await.check(0, &["cancelled"], &[]);
    finish(pending).await.check(2, &[], &["TB0214", "cancelled by operator"]);
    bus.run(&["calls", "cancel", id]).await.check(1, &[], &["TB0424"]);
    bus.run(&["calls", "--all"]).await.check(0, &["s/hold", "cancelled"], &[]);
    bus.run(&["calls", "cancel", "nothing"]).await.check(1, &[], &["toolbus calls --all"]);
}

#[tokio::test]
async fn a_queued_call_is_listed_and_withdrawn_and_fail_fast_queues_none() {
    let mut bus = Bus::start().await;
    bus.host.kill().await.expect("it was running");
    soon("the host is away", async { while !bus.run(&["ps"]).await.out.contains("away for") {} }).await;
    bus.run(&["call", "hold", "--fail-fast"]).await.check(2, &[], &["TB0427", "it was not run"]);
    let pending = bus.spawn(&["call", "hold"]);
    let call = bus.wait_for_call("queued").await;
    bus.run(&["calls"]).await.check(0, &["queued", "host away for"], &[]);
    bus.run(&["calls", "cancel", call["id"].as_str().expect("an id")]).await.check(0, &["cancelled"], &[]);
    finish(pending).await.check(2, &[], &["at position 1", "TB0214"]);
}

#[tokio::test]
async fn a_queued_task_is_withdrawn_by_another_command_of_the_agent() {
    let mut bus = Bus::start().await;
    bus.host.kill().await.expect("it was running");
    soon("the host is away", async { while !bus.run(&["ps"]).await.out.contains("away for") {} }).await;
    bus.run(&["call", "hold", "--detach", "--fail-fast"]).await.check(2, &[], &["TB0427", "it was not run"]);
    bus.run(&["call", "hold", "--detach", "--deadline", "5s"]).await.check(2, &[], &["cannot be used with"]);
    let started = bus.run(&["call", "hold", "--detach"]).await;
    started.check(0, &["toolbus:"], &["is away; the task waits for it"]);
    let task = started.out.trim();
    bus.run(&["task", "wait", task, "--timeout", "1s"]).await.check(2, &[], &["waiting until it is back", "TB0401"]);
    let id = task.rsplit(':').next().expect("an id");
    bus.run(&["task", "cancel", &id[..8]]).await.check(0, &[task, "cancelled"], &[]);
    bus.run(&["calls"]).await.check(0, &["no calls under way"], &[]);
    bus.run(&["task", "cancel", task]).await.check(2, &[], &["TB0401"]);
    bus.run(&["calls", "cancel", id]).await.check(1, &[], &["TB0429"]);
}

#[tokio::test]
async fn dead_letters_are_shown_retried_and_dropped() {
    let bus = Bus::start().await;
    bus.run(&["dead", "list"]).await.check(0, &["no dead letters"], &[]);
    bus.run(&["call", "die"]).await.check(2, &[], &["TB0421", "toolbus dead show"]);
    let listed = bus.run(&["dead", "list"]).await;
    listed.check(0, &["s/die", "local", "attempt 3"], &[]);
    let listed: Value = serde_json::from_str(&bus.run(&["dead", "list", "--json"]).await.out).expect("JSON");
    let id = listed["letters"][0]["id"].as_str().expect("an id").to_owned();
    bus.run(&["dead", "show", &id[..8]]).await.check(0, &["3 attempts", "attempt 1", "params"], &[]);
    bus.run(&["dead", "retry", &id]).await.check(0, &["runs once more as task"], &[]);
    // The retry crashes the server again and is dead-lettered under its new id.
    let again = soon("the dead letter", async {
        loop {
            let listed: Value = serde_json::from_str(&bus.run(&["dead", "list", "--json"]).await.out).expect("JSON");
            if let Some(again) = listed["letters"][0]["id"].as_str().filter(|again| *again != id) {
                return again.to_owned();
            }
        }
    })
    .await;
    bus.run(&["dead", "drop", &again]).await.check(0, &["dropped"], &[]);
    bus.run(&["dead", "drop", &again]).await.check(1, &[], &["dead letter"]);
}
