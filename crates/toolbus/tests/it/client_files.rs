//! `--mcp-config` with the files of MCP clients, and what `up` and `tools` show after a change of the configuration.

use crate::elicitation::terminal;
use crate::support::soon;
use crate::up::{UpInstance, toolbus};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

const ME: &str = env!("CARGO_BIN_EXE_toolbus");

fn folder_with(file: &str, text: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write(folder.path(), file, text);
    folder
}

fn write(folder: &Path, file: &str, text: &str) {
    let path = folder.join(file);
    std::fs::create_dir_all(path.parent().expect("a parent folder")).expect("writable");
    std::fs::write(path, text).expect("writable");
}

#[tokio::test]
async fn files_of_other_clients_are_hosted_unchanged() {
    let vs_code = format!(
        "{{ // VS Code\n \"servers\": {{\"demo\": {{\"type\": \"stdio\", \"command\": {ME:?}, \"args\": [\"demo-server\"], \
         \"cwd\": \"${{workspaceFolder}}\", \"env\": {{\"N\": 1, \"X\": null}},}},}},}}"
    );
    let codex = format!("[mcp_servers.demo]\ncommand = {ME:?}\nargs = ['demo-server']\nstartup_timeout_sec = 20\n");
    let goose = format!("extensions:\n  demo: {{enabled: true, type: stdio, cmd: {ME:?}, args: [demo-server]}}\n");
    for (file, text) in [(".vscode/mcp.json", vs_code), ("config.toml", codex), ("config.yaml", goose)] {
        let instance = UpInstance::start_in(folder_with(file, &text), &["--mcp-config", file]).await;
        assert!(instance.banner.contains("\nhosting demo\n"), "{file}: {}", instance.banner);
        instance.run(&["call", "now"]).await.check(0, &["UTC"], &[]);
    }
}

#[tokio::test]
async fn an_input_is_asked_for_once_at_the_terminal() {
    let text = r#"{"inputs": [{"id": "name", "type": "promptString", "description": "Your name", "default": "nobody"}],
        "servers": {"s": {"command": "sh", "args": ["-c", "echo ${input:name} $OTHER > answer; exit 3"],
                          "env": {"OTHER": "${input:name}"}, "cwd": "${workspaceFolder}"}}}"#;
    let folder = folder_with("mcp.json", text);
    let (mut ours, theirs) = terminal();
    ours.write_all(b"ada\n").expect("the terminal buffers it");
    let mut up = toolbus(folder.path());
    let clone = || Stdio::from(theirs.try_clone().expect("a descriptor"));
    up.args(["up", "--listen", "127.0.0.1:0", "--mcp-config", "mcp.json"]);
    let mut child = up.stdin(clone()).stderr(clone()).stdout(Stdio::null()).spawn().expect("the binary starts");
    drop((theirs, up));
    let answer = folder.path().join("answer");
    soon("the server's start", async {
        while std::fs::read_to_string(&answer).unwrap_or_default() != "ada ada\n" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    soon("the end of the process", child.kill()).await.expect("it is killed");
    let mut shown = Vec::new();
    // Ends with an error, because the other end is closed.
    ours.read_to_end(&mut shown).ok();
    let shown = String::from_utf8_lossy(&shown);
    assert_eq!(shown.matches("Your name [nobody]: ").count(), 1, "{shown}");
}

#[tokio::test]
async fn disabled_and_unusable_servers_are_not_named_as_hosted_and_the_log_says_why() {
    let text = format!(
        r#"{{"mcpServers": {{"off": {{"command": "x", "disabled": true}}, "demo": {{"command": {ME:?}, "args": ["demo-server"]}},
            "bad": {{"command": "x", "env": {{"KEY": "${{NO_SUCH_KEY}}"}}}}}}}}"#
    );
    let folder = folder_with("mcp.json", &text);
    let log = folder.path().join("log");
    let file = std::fs::File::create(&log).expect("writable");
    let instance = UpInstance::start_with_log(folder, &["--mcp-config", "mcp.json"], file.into()).await;
    assert!(instance.banner.contains("\nhosting demo\n"), "{}", instance.banner);
    instance.run(&["call", "now"]).await.check(0, &["UTC"], &[]);
    let log = std::fs::read_to_string(log).expect("readable");
    for part in ["NO_SUCH_KEY is not set", "server \"bad\" is not hosted", "hint: set NO_SUCH_KEY"] {
        assert!(log.contains(part), "{part}: {log}");
    }
}

#[tokio::test]
async fn after_a_change_of_the_configuration_only_the_new_tools_are_listed() {
    let instance = UpInstance::start(&["--id", "one"]).await.settled().await;
    let UpInstance { folder, mut child, .. } = instance;
    soon("the end of the process", child.kill()).await.expect("it is killed");
    let server = "import sys, json\nfor line in sys.stdin:\n  m = json.loads(line)\n  r = {'initialize': {'protocolVersion': \
                  '2025-06-18', 'capabilities': {'tools': {}}, 'serverInfo': {'name': 's', 'version': '1'}}, 'tools/list': \
                  {'tools': [{'name': 'fresh', 'inputSchema': {'type': 'object'}}]}}.get(m['method'])\n  e = {'result': r} if r \
                  else {'error': {'code': -32601, 'message': 'no'}}\n  if 'id' in m: print(json.dumps({'jsonrpc': '2.0', 'id': \
                  m['id'], **e}), flush=True)\n";
    write(folder.path(), "server.py", server);
    let text = "name = 'two'\n[servers.other]\ncommand = 'python3'\nargs = ['server.py']\n";
    write(folder.path(), "toolbus.toml", text);
    let instance = UpInstance::start_in(folder, &[]).await;
    let listed = instance.run(&["tools"]).await;
    listed.check(0, &["fresh", "two"], &[]);
    assert!(!listed.out.contains("away") && !listed.out.contains("text_stats"), "{}", listed.out);
}
