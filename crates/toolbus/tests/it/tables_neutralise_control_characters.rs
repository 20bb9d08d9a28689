//! What a hostile server or agent chooses can't control the terminal of those who look at it, or reorder or hide text:
//! commands print no control, bidirectional or invisible characters of others, and escape them in JSON.

use crate::mcp_process::python;
use crate::support::soon;
use crate::up::UpInstance;
use serde_json::Value;
use std::fs;
use std::process::Stdio;

/// In names, titles, texts, arguments, errors, log lines and results.
const HOSTILE: &str =
    "\u{1b}[2J\u{7}\u{8}\r\u{9b}31m\u{202e}\u{2066}\u{200e}\u{61c}\u{200b}\u{2028}\u{2029}\u{feff}\u{e0041}";
const SERVER: &str = r#"
import json, sys, time
bad = json.loads(open(sys.argv[1]).read())
tools = [{"name": name, "title": bad, "description": bad + open(sys.argv[2]).read(), "inputSchema": {"type": "object"}}
         for name in ["fine", "fails", "refuses", "waits", "asks", "evil" + bad]]
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {"result": {"content": [{"type": "text", "text": "text" + bad}, {"type": "other" + bad, "x": bad},
        {"type": "resource_link", "uri": "file:///" + bad, "name": bad}]}}
    method = message["method"]
    if method == "initialize":
        answer = {"result": {"protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {"listChanged": True}, "logging": {}}, "serverInfo": {"name": "s" + bad, "version": bad}}}
    elif method == "tools/list":
        answer = {"result": {"tools": tools}}
    elif method == "tools/call":
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": bad}}))
        token = message["params"].get("_meta", {}).get("progressToken")
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params":
            {"progressToken": token, "progress": 1, "message": bad}}))
        sys.stderr.write("stderr" + bad + "\n")
        name = message["params"]["name"]
        if name == "waits":
            continue
        if name == "fails":
            answer["result"] = {"isError": True, "content": [{"type": "text", "text": bad}], "structuredContent": {bad: bad}}
        if name == "refuses":
            answer = {"error": {"code": -32000, "message": "refused" + bad, "data": bad}}
        if name.startswith("evil"):
            answer = {"result": {"content": [], "structuredContent": {bad: bad}}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"#;

fn is_hostile(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t') || (HOSTILE.contains(c) && !c.is_ascii())
}

#[track_caller]
fn check_clean(what: &str, text: &str) {
    let found: Vec<u32> = text.chars().filter(|c| is_hostile(*c)).map(u32::from).collect();
    assert!(found.is_empty(), "{what}: {found:x?} in {text:?}");
}

async fn start() -> (UpInstance, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| folder.path().join(name);
    fs::write(file("server.py"), SERVER).expect("writable");
    fs::write(file("bad.json"), serde_json::to_string(HOSTILE).expect("JSON")).expect("writable");
    fs::write(file("description"), "first").expect("writable");
    let roles = "[roles.local]\nallow = ['*']\nask = ['asks']\n[roles.operator]\nallow = ['*']\napprove = true\n";
    let config = format!(
        "{roles}[servers.s]\ncommand = {:?}\nargs = ['-u', 'server.py', 'bad.json', 'description']\nera = 'legacy'\n",
        python()
    );
    fs::write(file("toolbus.toml"), config).expect("writable");
    let log = file("log");
    let output = Stdio::from(fs::File::create(&log).expect("a file"));
    (UpInstance::start_with_log(folder, &[], output).await, log)
}

#[tokio::test]
async fn no_command_prints_a_control_bidirectional_or_invisible_character_of_a_server() {
    let (instance, log) = start().await;
    soon("the tools", async { while !instance.run(&["tools"]).await.out.contains("refuses") {} }).await;
    let evil = format!("evil{HOSTILE}");
    let arguments = serde_json::json!({ HOSTILE: HOSTILE }).to_string();
    let mut running = Vec::new();
    for tool in ["waits", "asks"] {
        let mut call = instance.command(&["call", tool, &arguments]);
        running.push(call.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts"));
    }
    let pending = soon("the approval", async {
        loop {
            let listed = instance.run(&["approvals", "--json"]).await;
            check_clean("approvals --json", &listed.out);
            let listed: Value = serde_json::from_str(&listed.out).expect("JSON");
            if let Some(id) = listed["approvals"][0]["id"].as_str() {
                break id.to_owned();
            }
        }
    })
    .await;
    let body = serde_json::to_string(HOSTILE).expect("JSON");
    instance.run(&["agent", "add", "bob", "--role", "local", "--token-file", "bob.token"]).await.check(0, &[], &[]);
    instance.run(&["send", "--to", "bob", "--kind", "task", "--body", &body]).await.check(0, &[], &[]);
    let commands: [&[&str]; 30] = [
        &["tools"],
        &["tools", "--json"],
        &["call", "fine", &arguments],
        &["call", "fine", "--json"],
        &["call", "fails"],
        &["call", "fails", "--json"],
        &["call", "refuses"],
        &["call", "refuses", "--json"],
        &["call", &evil, &arguments],
        &["call", HOSTILE],
        &["call", &evil, "--detach"],
        &["call", "now", "--host", HOSTILE],
        &["task", "list", "--all"],
        &["task", "list", "--all", "--json"],
        &["task", "show", HOSTILE],
        &["ps"],
        &["ps", "--json"],
        &["calls", "--all"],
        &["calls", "--all", "--json"],
        &["approvals"],
        &["approvals", "show", &pending],
        &["approvals", "show", &pending, "--json"],
        &["dead", "list"],
        &["agent", "add", HOSTILE, "--role", "r"],
        &["agent", "list"],
        &["audit", "tail", "-n", "1000"],
        &["audit", "tail", "-n", "1000", "--json"],
        &["pin", "approve", HOSTILE],
        &["recv", "--token-file", "bob.token", "--no-ack", "--max", "1"],
        &["recv", "--token-file", "bob.token", "--json", "--max", "1"],
    ];
    for args in commands {
        let output = instance.run(args).await;
        check_clean(&format!("stdout of {args:?}"), &output.out);
        check_clean(&format!("stderr of {args:?}"), &output.err);
    }
    let shown = instance.run(&["call", "fine", "--json"]).await.out;
    let result: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(result["content"][0]["text"], format!("text{HOSTILE}"), "JSON keeps the value");
    check_clean("the log", &fs::read_to_string(&log).expect("text"));
}

#[tokio::test]
async fn a_changed_definition_is_shown_without_such_characters() {
    let (first, _) = start().await;
    soon("the tools", async { while !first.run(&["tools"]).await.out.contains("refuses") {} }).await;
    fs::write(first.folder.path().join("description"), "second").expect("writable");
    let UpInstance { folder, mut child, .. } = first;
    crate::up::signal(&child, "TERM").await;
    soon("exit", child.wait()).await.expect("a status");
    let second = UpInstance::start_in(folder, &[]).await;
    let diff = soon("the difference", async {
        loop {
            let diff = second.run(&["pin", "diff"]).await;
            if diff.out.contains("second") {
                break diff;
            }
        }
    })
    .await;
    check_clean("pin diff", &diff.out);
    for args in [&["pin", "diff", "--json"][..], &["pin", "list"], &["pin", "approve", "--all"], &["pin"], &["tools"]] {
        let output = second.run(args).await;
        check_clean(&format!("{args:?}"), &(output.out + &output.err));
    }
}
