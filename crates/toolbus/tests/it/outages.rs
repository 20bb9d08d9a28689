//! Commands without a broker or a host, and clients that exit during a call.

use crate::support::soon;
use crate::up::{CommandOutput, UpInstance, descendants, signal, toolbus};
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

fn initialize() -> String {
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}, "clientInfo": {"name": "t", "version": "1"}});
    format!("{}\n", json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}))
}

fn piped(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
}

#[tokio::test]
async fn without_a_broker_commands_hint_how_to_start_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("toolbus.toml"), "listen = '127.0.0.1:1'").expect("writable");
    let output = soon("exit", toolbus(folder.path()).arg("tools").output()).await.expect("it starts");
    CommandOutput::of(output).check(1, &[], &["no broker at ws://127.0.0.1:1/bus", "toolbus up"]);
}

#[tokio::test]
async fn connect_without_a_broker_answers_with_an_error_and_exits_at_end_of_input() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut connect = toolbus(folder.path());
    connect.args(["connect", "--broker", "ws://127.0.0.1:1/bus"]).env("TOOLBUS_TOKEN", "t");
    let idle = soon("exit", connect.stdin(Stdio::null()).output()).await.expect("it starts");
    CommandOutput::of(idle).check(0, &[], &[]);
    let mut child = piped(&mut connect);
    let mut input = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    input.write_all(initialize().as_bytes()).await.expect("it reads its input");
    let answer = soon("an answer", lines.next_line()).await.expect("text").expect("a line");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32050)), "{answer}");
    assert!(answer["error"]["data"]["hint"].as_str().is_some_and(|hint| hint.contains("toolbus up")), "{answer}");
    drop(input);
    let rest = soon("exit", child.wait_with_output()).await.expect("an exit status");
    let log = String::from_utf8_lossy(&rest.stderr).into_owned();
    assert!(rest.status.success() && !log.contains('\u{1b}'), "{log}");
    assert!((1..=8).contains(&log.lines().count()), "warnings with a growing interval: {log}");
}

#[tokio::test]
async fn requests_before_the_broker_started_are_answered_once_it_runs() {
    let instance = UpInstance::start(&[]).await.settled().await;
    let mut stopped = instance;
    let address = stopped.banner.lines().find_map(|line| line.strip_prefix("listening on ws://")).expect("its address");
    let address = address.trim_end_matches("/bus").to_owned();
    let url = format!("ws://{address}/bus");
    signal(&stopped.child, "TERM").await;
    soon("exit", stopped.child.wait()).await.expect("an exit status");
    let mut child = piped(stopped.command(&["connect"]).env("TOOLBUS_BROKER", &url));
    let mut input = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut log = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    input.write_all(initialize().as_bytes()).await.expect("it reads its input");
    soon("the warning that there is no broker", log.next_line()).await.expect("text").expect("a line");
    let mut up = toolbus(stopped.folder.path());
    let _up = up.args(["up", "--listen", &address]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let answer = soon("an answer", lines.next_line()).await.expect("text").expect("a line");
    assert!(answer.contains("toolbus-demo"), "{answer}");
}

#[tokio::test]
async fn sessions_of_exited_clients_are_closed_at_the_host() {
    // A legacy server has one process per session, and the host's own is only for a client without capabilities.
    let server = "import sys, json\n\
        for line in iter(sys.stdin.readline, ''):\n\
        \x20 m = json.loads(line); method = m.get('method')\n\
        \x20 if 'id' not in m: continue\n\
        \x20 known = {'initialize': {'protocolVersion': '2025-11-25', 'capabilities': {'tools': {}},\n\
        \x20     'serverInfo': {'name': 's', 'version': '1'}}, 'tools/list': {'tools': [{'name': 'hi',\n\
        \x20     'inputSchema': {'type': 'object'}}]}, 'tools/call': {'content': []}, 'ping': {}}\n\
        \x20 end = {'result': known[method]} if method in known else {'error': {'code': -32601, 'message': 'no'}}\n\
        \x20 print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], **end}), flush=True)\n";
    let folder = tempfile::tempdir().expect("a temporary folder");
    let servers = json!({"mcpServers": {"s": {"command": "python3", "args": ["-c", server]}}});
    std::fs::write(folder.path().join("mcp.json"), servers.to_string()).expect("writable");
    let instance = UpInstance::start_in(folder, &["--mcp-config", "mcp.json"]).await;
    soon("the tools", async { while !instance.run(&["tools"]).await.out.contains("hi") {} }).await;
    let processes = || descendants(instance.child.id().expect("it runs")).len();
    let at_first = processes();
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "hi", "arguments": {}}});
    for way in ["EOF", "TERM", "INT"] {
        let mut child = piped(&mut instance.command(&["connect"]));
        let mut input = child.stdin.take().expect("a pipe");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        input.write_all(format!("{}{call}\n", initialize()).as_bytes()).await.expect("it reads its input");
        for _ in 0..2 {
            soon("an answer", lines.next_line()).await.expect("text").expect("a line");
        }
        assert!(processes() > at_first, "{way}: a session of its own");
        match way {
            "EOF" => drop(input),
            signal_name => signal(&child, signal_name).await,
        }
        assert!(soon("exit", child.wait()).await.expect("an exit status").success(), "{way}");
        soon("the session's end", async {
            while processes() > at_first {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
}

/// A second host with the tools of the demo server, whose names begin with `far_`.
async fn start_far_host(instance: &UpInstance) -> Child {
    let demo = json!({"mcpServers": {"far": {
        "command": env!("CARGO_BIN_EXE_toolbus"), "args": ["demo-server"], "prefix": "far_",
    }}});
    std::fs::write(instance.folder.path().join("far.json"), demo.to_string()).expect("writable");
    let added = instance.run(&["agent", "add", "far", "--role", "host", "--host", "--token-file", "far.token"]).await;
    added.check(0, &[], &[]);
    let options = ["--mcp-config", "far.json", "--id", "far", "--token-file", "far.token"];
    let mut host = piped(&mut instance.command(&[&["host"], &options[..]].concat()));
    let mut start_lines = BufReader::new(host.stdout.take().expect("a pipe")).lines();
    assert_eq!(
        soon("its start", start_lines.next_line()).await.expect("text").as_deref(),
        Some("hosting far as \"far\"")
    );
    soon("its tools", async { while !instance.run(&["tools"]).await.out.contains("far_slow") {} }).await;
    host
}

#[tokio::test]
async fn a_queued_call_is_withdrawn_by_ctrl_c() {
    let instance = UpInstance::start(&["--id", "admin"]).await.settled().await;
    start_far_host(&instance).await.kill().await.expect("it runs");
    soon("the host is away", async { while !instance.run(&["ps"]).await.out.contains("away for") {} }).await;
    let mut call = piped(&mut instance.command(&["call", "far_now"]));
    let mut lines = BufReader::new(call.stderr.take().expect("a pipe")).lines();
    let waiting = soon("a notice", lines.next_line()).await.expect("text").expect("a line");
    assert!(waiting.contains("far is away"), "{waiting}");
    signal(&call, "INT").await;
    let mut stderr = String::new();
    while let Some(line) = soon("the end", lines.next_line()).await.expect("text") {
        stderr.push_str(&line);
    }
    assert_eq!(soon("exit", call.wait()).await.expect("an exit status").code(), Some(130), "{stderr}");
    assert!(stderr.ends_with("cancelled") && !stderr.contains("error"), "{stderr}");
    assert!(!instance.run(&["calls"]).await.out.contains("far_now"), "it is no longer queued");
}

#[tokio::test]
async fn a_call_reports_that_its_host_or_broker_is_away() {
    let mut instance = UpInstance::start(&["--id", "admin"]).await.settled().await;
    let mut host = start_far_host(&instance).await;

    let mut call = piped(&mut instance.command(&["call", "far_slow", "--arg", "seconds=3000", "--deadline", "4s"]));
    let mut lines = BufReader::new(call.stderr.take().expect("a pipe")).lines();
    soon("progress", lines.next_line()).await.expect("text").expect("a line");
    host.kill().await.expect("it runs");
    let mut stderr = String::new();
    while let Some(line) = soon("the end", lines.next_line()).await.expect("text") {
        stderr.push_str(&line);
        stderr.push('\n');
    }
    for part in ["far is away; waiting until it is back", "error[TB0401]", "whether far_slow was run is unknown"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    let away = instance.run(&["call", "far_now", "--deadline", "300ms"]).await;
    away.check(2, &[], &["far is away (for", "error[TB0401]", "far_now was not run"]);
    let slow = instance.run(&["call", "slow", "--arg", "seconds=3000", "--deadline", "300ms"]).await;
    slow.check(2, &[], &["error[TB0407]: slow did not answer within 300ms", "--deadline"]);

    let call = piped(&mut instance.command(&["call", "slow", "--arg", "seconds=3000", "--deadline", "3s"]));
    soon("it runs", async { while !instance.run(&["ps"]).await.out.contains("cli-") {} }).await;
    signal(&instance.child, "KILL").await;
    soon("exit", instance.child.wait()).await.expect("an exit status");
    let output = CommandOutput::of(soon("the end", call.wait_with_output()).await.expect("an exit status"));
    output.check(2, &[], &["the broker is away"]);
}

#[tokio::test]
async fn sigterm_cancels_a_call_as_ctrl_c_does() {
    let instance = UpInstance::start(&[]).await.settled().await;
    let mut call = piped(&mut instance.command(&["call", "slow", "--arg", "seconds=3000"]));
    let mut lines = BufReader::new(call.stderr.take().expect("a pipe")).lines();
    soon("progress", lines.next_line()).await.expect("text").expect("a line");
    let began = Instant::now();
    signal(&call, "TERM").await;
    assert_eq!(soon("exit", call.wait()).await.expect("an exit status").code(), Some(130));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_broker_without_a_host_reads_listen_and_data_from_its_configuration() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = "listen = '127.0.0.1:0'\ndata = 'mail'\n[servers.s]\nurl = 'https://${NO_SUCH}'\n";
    std::fs::write(folder.path().join("mine.toml"), text).expect("writable");
    let mut broker = piped(toolbus(folder.path()).args(["broker", "--config", "mine.toml"]));
    let mut lines = BufReader::new(broker.stdout.take().expect("a pipe")).lines();
    assert_eq!(soon("its start", lines.next_line()).await.expect("text").as_deref(), Some("data in mail"));
    let mut refused = toolbus(folder.path());
    refused.args(["broker", "--config", "none.toml"]);
    CommandOutput::of(soon("exit", refused.output()).await.expect("it starts")).check(
        1,
        &[],
        &["none.toml", "can't be read"],
    );
}

#[tokio::test]
async fn a_call_waits_for_a_broker_that_is_away_from_the_start() {
    let mut instance = UpInstance::start(&[]).await.settled().await;
    let address = instance.address().to_owned();
    instance.child.kill().await.expect("it runs");
    let late = instance.run(&["call", "now", "--deadline", "300ms"]).await;
    late.check(2, &[], &["the deadline of 300ms has passed, and now was not run", "start the broker again"]);
    instance.run(&["call", "now", "--fail-fast"]).await.check(2, &[], &["is the broker running?"]);
    let mut call = instance.command(&["call", "now"]);
    let mut call = call.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut log = BufReader::new(call.stderr.take().expect("a pipe")).lines();
    soon("the notice", log.next_line()).await.expect("text").expect("a line");
    let mut up = toolbus(instance.folder.path());
    let _up = up.args(["up", "--listen", &address]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let output = soon("the answer", call.wait_with_output()).await.expect("an exit status");
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("UTC"), "{output:?}");
}
