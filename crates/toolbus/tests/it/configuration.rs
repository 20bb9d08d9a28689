//! toolbus.toml and `--mcp-config`: the file of `init`, the hosted servers, and the errors for invalid files.

use crate::support::soon;
use crate::up::{CommandOutput, UpInstance, toolbus};
use serde_json::{Value, json};
use tempfile::TempDir;

fn folder_with(file: &str, text: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join(file), text).expect("writable");
    folder
}

async fn run(folder: &TempDir, args: &[&str]) -> CommandOutput {
    CommandOutput::of(
        soon("the command ends", toolbus(folder.path()).args(args).output()).await.expect("the binary starts"),
    )
}

#[tokio::test]
async fn a_file_without_servers_is_named_as_the_reason_for_the_demo_server() {
    let folder = folder_with("toolbus.toml", "[roles.reader]\nallow = ['now']\n");
    let instance = UpInstance::start_in(folder, &[]).await;
    assert!(instance.banner.contains("hosting the demo server, because toolbus.toml has no [servers.NAME]"));
    assert!(!instance.banner.contains("toolbus init"), "{}", instance.banner);
}

#[tokio::test]
async fn init_overwrites_a_file_only_with_force() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    run(&folder, &["init"]).await.check(0, &["wrote toolbus.toml"], &[]);
    let file = folder.path().join("toolbus.toml");
    let written = std::fs::read_to_string(&file).expect("the file exists");
    assert!(written.contains("[servers.files]") && written.contains("[roles.reader]"), "{written}");
    std::fs::write(&file, "mine").expect("writable");
    run(&folder, &["init"]).await.check(1, &[], &["already exists", "--force"]);
    assert_eq!(std::fs::read_to_string(&file).expect("the file exists"), "mine");
    run(&folder, &["init", "--force"]).await.check(0, &["wrote"], &[]);
    assert_eq!(std::fs::read_to_string(&file).expect("the file exists"), written);
}

#[tokio::test]
async fn configuration_errors_have_a_position_and_a_hint() {
    let check = async |file: &str, text: &str, args: &[&str], parts: &[&str]| {
        run(&folder_with(file, text), args).await.check(1, &[], parts);
    };
    let up = ["up", "--listen", "127.0.0.1:0"];
    let host = ["host", "--mcp-config", "mcp.json"];
    check("toolbus.toml", "lisen = 1", &up, &["line 1, column 1", "lisen", "did you mean listen?"]).await;
    check("toolbus.toml", "[servers.a]\ncommand = 'x'\nargz = []", &up, &["line 3, column 1", "argz", "args"]).await;
    check("toolbus.toml", "[servers.a]", &up, &["neither a command nor a url"]).await;
    check("toolbus.toml", "[servers.a]\ncomand = 'x'", &up, &["line 2, column 1", "comand", "did you mean command?"])
        .await;
    check("toolbus.toml", "[servers.'a/b']\ncommand = 'x'", &up, &["a/b", "slash"]).await;
    check(
        "toolbus.toml",
        "[servers.a]\nurl='http://x'\nheaders={A='${NO_SUCH}'}",
        &up,
        &["NO_SUCH", "is not set", "line 3"],
    )
    .await;
    check("toolbus.toml", "[servers.a]\ncommand='a'\n[servers.a]\ncommand='b'", &up, &["line 3", "[servers.a]"]).await;
    check("toolbus.toml", "[roles.a]\nallow=['x[']\n[servers.s]\ncommand='x'", &up, &["x[", "pattern"]).await;
    check("mcp.json", r#"{"mcpServers": {"a": {"command": "${NO_SUCH}"}}}"#, &host, &["NO_SUCH"]).await;
    let mistyped = "{\"mcpServers\": {\n  \"a\": {\"comand\": \"x\"}}}";
    check("mcp.json", mistyped, &host, &["line 2, column 9", "comand", "did you mean command?"]).await;
    check("mcp.json", r#"{"mcpServers": {}}"#, &host, &["no servers to host", "hint:"]).await;
    check("mcp.json", "{", &host, &["mcp.json", "line 1"]).await;
    check("other", "", &host, &["mcp.json", "can't be read"]).await;
}

#[tokio::test]
async fn a_broken_server_is_shown_with_its_stderr_and_does_not_affect_others() {
    let me = env!("CARGO_BIN_EXE_toolbus");
    let servers = json!({"mcpServers": {
        "broken": {"command": "sh", "args": ["-c", "echo out of cheese >&2; exit 3"]},
        "good": {"command": me, "args": ["demo-server"]},
    }});
    let folder = folder_with("mcp.json", &servers.to_string());
    let instance = UpInstance::start_in(folder, &["--mcp-config", "mcp.json", "--id", "admin"]).await;
    soon("the state of both servers", async {
        loop {
            let text = instance.run(&["tools"]).await.out;
            if text.contains("text_stats") && text.contains("broken on admin is down") {
                assert!(text.contains("| out of cheese"), "{text}");
                break;
            }
        }
    })
    .await;
    instance.run(&["call", "now"]).await.check(0, &["UTC"], &[]);
}

#[tokio::test]
async fn with_a_shared_token_a_chosen_role_sees_and_calls_only_allowed_tools() {
    let text = format!(
        "[servers.demo]\ncommand = {:?}\nargs = ['demo-server']\n[roles.clerk]\nallow = ['now', 'text_*']\n",
        env!("CARGO_BIN_EXE_toolbus")
    );
    let folder = folder_with("toolbus.toml", &text);
    // The default token file of commands.
    let token = folder.path().join("data/toolbus/token");
    std::fs::create_dir_all(token.parent().expect("a parent folder")).expect("writable");
    std::fs::write(&token, "one for all").expect("writable");
    let instance = UpInstance::start_in(folder, &["--shared-token-file", "data/toolbus/token"]).await;
    let tools = async |role: &[&str]| -> Vec<String> {
        let output = instance.run(&[&["tools", "--json"], role].concat()).await;
        let listed: Value = serde_json::from_str(&output.out).expect("JSON");
        let names = listed["tools"].as_array().into_iter().flatten();
        names.filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect()
    };
    soon("the clerk's tools", async { while tools(&["--role", "clerk"]).await != ["now", "text_stats"] {} }).await;
    assert_eq!(tools(&[]).await, Vec::<String>::new(), "no role, no tools");
    assert!(instance.banner.contains("--role clerk") && instance.banner.contains("--mcp-role"), "{}", instance.banner);
    instance.run(&["tools"]).await.check(0, &["callers without a role", "--role or TOOLBUS_ROLE"], &[]);
    instance.run(&["call", "now", "--role", "clrek"]).await.check(
        2,
        &[],
        &["no tools to the role \"clrek\"", "--role"],
    );
    instance.run(&["call", "now", "--role", "clerk"]).await.check(0, &["UTC"], &[]);
    instance.run(&["call", "slow", "--role", "clerk"]).await.check(2, &[], &["no tool"]);
}
