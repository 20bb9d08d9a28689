//! `toolbus call --host` reaches a tool of that host whose name belongs to another one, unless rules limit the host; and
//! a host that is silent does not delay what the others answer.

use crate::mcp_process::python;
use crate::support::soon;
use crate::up::{UpInstance, signal};
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::Child;

/// Offers `now`, like the demo server, on the second page of its list.
const SERVER: &str = r#"
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = {"content": [{"type": "text", "text": "second's own"}]}
    if message["method"] == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "s", "version": "1"}}
    if message["method"] == "tools/list":
        name = "now" if message.get("params", {}).get("cursor") else "other"
        schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
        result = {"tools": [{"name": name, "inputSchema": schema}]}
        if name == "other":
            result["nextCursor"] = "2"
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

/// A broker with the demo server's host, and a second host that offers one of its names.
async fn start(rules: &str) -> (UpInstance, Child) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| folder.path().join(name);
    fs::write(file("server.py"), SERVER).expect("writable");
    fs::write(file("toolbus.toml"), rules).expect("writable");
    let servers = serde_json::json!({"mcpServers": {"s": {"command": python(), "args": ["-u", file("server.py")]}}});
    fs::create_dir(file("second")).expect("a folder");
    fs::write(file("second/mcp.json"), servers.to_string()).expect("writable");
    let instance = UpInstance::start_in(folder, &[]).await.settled().await;
    let add = ["agent", "add", "second", "--host", "--token-file", "second/token"];
    instance.run(&add).await.check(0, &[], &[]);
    let mut host = instance.command(&["host", "--mcp-config", "mcp.json", "--token-file", "token", "--state", "state"]);
    host.current_dir(instance.folder.path().join("second")).stdout(Stdio::null()).stderr(Stdio::null());
    let host = host.spawn().expect("the binary starts");
    let seen = async { while !instance.run(&["tools", "--host", "second"]).await.out.contains("second") {} };
    soon("the second host", seen).await;
    (instance, host)
}

#[tokio::test]
async fn a_tool_of_the_chosen_host_is_called_although_another_host_owns_its_name() {
    let (instance, _host) = start("").await;
    instance.run(&["call", "now"]).await.check(0, &["UTC"], &[]);
    soon("the other tool", async { while !instance.run(&["tools"]).await.out.contains("other") {} }).await;
    instance.run(&["call", "now", "--host", "second"]).await.check(0, &["second's own"], &[]);
    let wrong = instance.run(&["call", "now", "--host", "second", "--arg", "number=x"]).await;
    wrong.check(2, &[], &["number must be of type integer"]);
    instance.run(&["call", "nwo", "--host", "second"]).await.check(2, &[], &["no tool"]);
}

#[tokio::test]
async fn rules_for_a_host_hold_for_callers_that_choose_it() {
    let (instance, _host) = start("[hosts.second]\noffers = ['other']\n").await;
    soon("the other tool", async { while !instance.run(&["tools"]).await.out.contains("other") {} }).await;
    instance.run(&["call", "other", "--host", "second"]).await.check(0, &["second's own"], &[]);
    instance.run(&["call", "now", "--host", "second"]).await.check(2, &[], &["no tool \"now\""]);
}

#[tokio::test]
async fn a_silent_host_does_not_delay_the_lists_of_the_others() {
    let (instance, host) = start("").await;
    signal(&host, "STOP").await;
    for args in [&["approvals"][..], &["calls"], &["calls", "--all"], &["task", "list", "--all"], &["dead", "list"]] {
        let began = Instant::now();
        let listed = instance.run(args).await;
        listed.check(0, &[], &["host second is not included"]);
        // The limit of a query to all hosts is 3 s, and that of a query to one host 10 s.
        assert!(began.elapsed() < Duration::from_secs(8), "{args:?}: {:?}", began.elapsed());
    }
    signal(&host, "CONT").await;
}
