//! Tokens reach no other user and no other program: not through a configuration that another user wrote, a relative home
//! folder, the environment or command line of child processes, or a squatter on the broker's port.

use crate::mcp_process::python;
use crate::support::{BrokerProcess, soon};
use crate::token_scope::Squatter;
use crate::up::{CommandOutput, toolbus};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const OTHER_USER: u32 = 12_345;
const SECRET: &str = "tb_environment_secret";
/// Answers `initialize` and lists no tools.
const SERVER: &str = r#"
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = {"tools": []}
    if message["method"] == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "s", "version": "1"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

async fn output(mut command: tokio::process::Command) -> CommandOutput {
    CommandOutput::of(soon("the command ends", command.output()).await.expect("the binary starts"))
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
}

/// Whether the tests may give files to another user.
fn is_root() -> bool {
    fs::metadata("/proc/self").expect("a process").uid() == 0
}

#[tokio::test]
async fn a_toolbus_toml_that_another_user_could_write_is_not_used_unless_it_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("toolbus.toml");
    fs::write(&file, "listen = '127.0.0.1:1'\n[servers.s]\ncommand = 'true'\n").expect("writable");
    let run = async |args: &[&str]| {
        let mut command = toolbus(folder.path());
        command.args(args);
        output(command).await
    };
    let commands: [&[&str]; 4] =
        [&["ps"], &["agent", "list"], &["up"], &["policy", "check", "--role", "r", "--tool", "t"]];
    set_mode(&file, 0o666);
    for args in commands {
        let refused = run(args).await;
        let err = &refused.err;
        assert!(err.contains("error[TB0411]") && err.contains("can be written by other users"), "{args:?}: {err}");
        assert!(err.contains("hint:") && err.contains("--config"), "{args:?}: {err}");
    }
    set_mode(&file, 0o644);
    run(&["agent", "list"]).await.check(0, &["AGENT"], &[]);
    if !is_root() {
        return;
    }
    chown(&file, Some(OTHER_USER), None).expect("given away");
    for args in commands {
        let err = run(args).await.err;
        assert!(
            err.contains("error[TB0411]") && err.contains("belongs to another user (uid 12345)"),
            "{args:?}: {err}"
        );
    }
    let mut named = toolbus(folder.path());
    named.args(["agent", "list"]).env("TOOLBUS_CONFIG", &file);
    output(named).await.check(0, &["AGENT"], &[]);
    // A link of another user to an own file chooses which file is used.
    let own = folder.path().join("own.toml");
    fs::write(&own, "").expect("writable");
    fs::remove_file(&file).expect("removed");
    symlink(&own, &file).expect("a link");
    run(&["agent", "list"]).await.check(0, &["AGENT"], &[]);
    std::os::unix::fs::lchown(&file, Some(OTHER_USER), None).expect("given away");
    run(&["agent", "list"]).await.check(1, &[], &["error[TB0411]", "belongs to another user"]);
}

#[tokio::test]
async fn a_token_file_that_another_user_could_write_is_refused_and_a_readable_one_is_reported() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("t");
    fs::write(&file, "tb_x").expect("writable");
    let run = async || {
        let mut command = toolbus(folder.path());
        command.args(["ps", "--broker", "ws://127.0.0.1:1/bus", "--token-file", "t"]);
        output(command).await
    };
    set_mode(&file, 0o622);
    run().await.check(
        1,
        &[],
        &["error[TB0304]: can't read the token file t", "can be written by other users", "hint:"],
    );
    set_mode(&file, 0o644);
    run().await.check(1, &[], &["warning: other users can read the token file t", "chmod 600"]);
    set_mode(&file, 0o600);
    assert!(!run().await.err.contains("warning"));
    if is_root() {
        chown(&file, Some(OTHER_USER), None).expect("given away");
        run().await.check(1, &[], &["can't read the token file t", "belongs to another user (uid 12345)"]);
    }
}

#[tokio::test]
async fn a_relative_or_empty_home_is_no_data_folder() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, value) in [("HOME", ""), ("HOME", "here"), ("XDG_DATA_HOME", "here"), ("XDG_DATA_HOME", ".")] {
        let mut command = toolbus(folder.path());
        command.args(["agent", "list"]).env_remove("XDG_DATA_HOME").env_remove("HOME").env(name, value);
        output(command).await.check(1, &[], &["no data folder"]);
    }
    let mut command = toolbus(folder.path());
    fs::create_dir_all(folder.path().join("here/toolbus")).expect("a folder");
    fs::write(folder.path().join("here/toolbus/toolbus.toml"), "bad").expect("writable");
    command.args(["agent", "list"]).env("XDG_CONFIG_HOME", "here");
    output(command).await.check(0, &["AGENT"], &[]);
}

#[tokio::test]
async fn child_processes_get_no_token_by_environment_or_command_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    fs::write(path("server.py"), SERVER).expect("writable");
    fs::write(path("secret.sh"), "#!/bin/sh\nenv > exec.env\necho value\n").expect("writable");
    set_mode(&path("secret.sh"), 0o700);
    // A command of the working folder must not be found by a relative entry of PATH.
    fs::write(path("planted"), "#!/bin/sh\ntouch planted.ran\necho value\n").expect("writable");
    set_mode(&path("planted"), 0o700);
    let config = format!(
        "[servers.s]\ncommand = {:?}\nargs = ['-u', 'server.py']\nenv = {{ VALUE = '${{exec:{}}}' }}\n\
         [servers.p]\ncommand = {:?}\nargs = ['-u', 'server.py']\nenv = {{ VALUE = '${{exec:planted}}' }}\n\
         [servers.q]\ncommand = 'planted'\n",
        python(),
        path("secret.sh").display(),
        python()
    );
    fs::write(path("toolbus.toml"), config).expect("writable");
    let mut up = toolbus(folder.path());
    let search = format!(".::{}", std::env::var("PATH").expect("a path"));
    up.args(["up", "--listen", "127.0.0.1:0"]).env("TOOLBUS_TOKEN", SECRET).env("TOOLBUS_AUDIT_KEY", SECRET);
    up.env("PATH", search);
    let up = BrokerProcess::spawn(up).await;
    let url = up.url();
    soon("all servers were tried", async {
        loop {
            let mut tools = toolbus(folder.path());
            tools.args(["tools", "--json", "--broker", &url]);
            let listed: Value = serde_json::from_str(&output(tools).await.out).unwrap_or_default();
            let states = listed["servers"].as_array().map(|servers| servers.iter().map(|server| &server["state"]));
            let states: Vec<_> = states.into_iter().flatten().collect();
            if states.len() == 3 && states.iter().all(|state| **state != "starting") {
                break;
            }
        }
    })
    .await;
    let pid = up.child.id().expect("it runs");
    let children = descendants(pid);
    assert!(children.iter().any(|pid| read(*pid, "cmdline").contains("server.py")), "{children:?}");
    let data = path("data/toolbus");
    let tokens =
        ["token", "host.token", "operator.token", "broker.key"].map(|file| fs::read_to_string(data.join(file)));
    let mut secrets = tokens.map(|token| token.expect("a token").trim().to_owned()).to_vec();
    secrets.push(SECRET.to_owned());
    let command_lines = |pid: &u32| read(*pid, "cmdline");
    let mut texts: Vec<String> = children.iter().map(command_lines).collect();
    texts.extend(children.iter().map(|pid| read(*pid, "environ")));
    texts.push(command_lines(&pid));
    texts.push(fs::read_to_string(path("exec.env")).expect("the command ran"));
    for text in &texts {
        assert!(!text.contains("TOOLBUS_"), "{text}");
        assert!(secrets.iter().all(|secret| !text.contains(secret.as_str())), "{text}");
    }
    assert!(!path("planted.ran").exists(), "a relative entry of PATH was searched");
}

#[tokio::test]
async fn a_reconnecting_host_does_not_send_its_token_to_another_program_on_the_port() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("mcp.json"), r#"{"mcpServers":{"x":{"command":"true"}}}"#).expect("writable");
    let mut broker = toolbus(folder.path());
    broker.args(["broker", "--listen", "127.0.0.1:0"]);
    let broker = BrokerProcess::spawn(broker).await;
    let state = folder.path().join("state");
    let mut host = toolbus(folder.path());
    host.args(["host", "--mcp-config", "mcp.json", "--state", "state", "--broker", &broker.url()]);
    let mut host = host.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts");
    soon("the host is connected", async {
        while !state.join("journal").exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let squatter = Squatter::on(&broker.kill().await.to_string(), None).await;
    soon("the host tries again", async {
        while squatter.seen().matches("toolbus-challenge").count() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(host.try_wait().expect("a status").is_none(), "it keeps waiting for its broker");
    squatter.check_saw_no_token(folder.path());
}

fn read(pid: u32, file: &str) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default()).replace('\0', " ")
}

fn descendants(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children: Vec<u32> = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    children.iter().flat_map(|child| [vec![*child], descendants(*child)].concat()).collect()
}
