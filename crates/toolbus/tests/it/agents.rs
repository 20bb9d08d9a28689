//! `toolbus agent`, and the TLS options of a broker that other machines can reach.

use crate::support::{TOKEN, soon};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use toolbus_identity::{Authenticator, Credential, Registry};
use toolbus_protocol::{AgentRef, ErrorCode};

struct CommandOutput {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// Runs a command in this folder, with its subfolder `data` as the broker's data folder.
async fn toolbus(folder: &Path, args: &[&str]) -> CommandOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
    command.args(args).current_dir(folder).env("XDG_CONFIG_HOME", folder.join("config"));
    command.env("TOOLBUS_DATA", folder.join("data")).env_remove("TOOLBUS_CONFIG").kill_on_drop(true);
    soon("the command ends", command.output()).await.expect("the binary starts").into()
}

async fn run_ok(folder: &Path, args: &[&str]) -> CommandOutput {
    let output = toolbus(folder, args).await;
    assert_eq!(output.code, Some(0), "{args:?}: {}", output.err);
    output
}

fn authenticate(folder: &Path, token: &str) -> Result<String, ErrorCode> {
    let registry = Registry::open(&folder.join("data")).expect("a registry");
    let credential = Credential { token, certificate: None, claimed: &AgentRef::new("~") };
    registry
        .authenticate(&credential)
        .map(|identity| identity.agent.session_id.to_string())
        .map_err(|refusal| refusal.code)
}

#[tokio::test]
async fn a_token_is_printed_alone_and_is_valid_until_it_is_revoked() {
    let folder = TempDir::new().expect("a folder");
    let folder = folder.path();
    let added = run_ok(folder, &["agent", "add", "planner", "--role", "reader", "--expires", "30d"]).await;
    let token = added.out.trim_end();
    assert_eq!(added.out.lines().count(), 1, "only the token: {}", added.out);
    assert!(
        added.err.contains("planner") && added.err.contains("expires") && !added.err.contains(token),
        "{}",
        added.err
    );
    assert_eq!(authenticate(folder, token).as_deref(), Ok("planner"));

    let listed = run_ok(folder, &["agent", "list"]).await.out;
    assert!(listed.contains("planner") && listed.contains("valid until"), "{listed}");
    assert!(!listed.contains(&token[14..]), "no secret in {listed}");
    let rotated: Value =
        serde_json::from_str(&run_ok(folder, &["agent", "rotate", "planner", "--overlap", "1h", "--json"]).await.out)
            .expect("JSON");
    let next = rotated["token"].as_str().expect("a token").to_owned();
    assert!(rotated["overlap_ends"].is_string() && rotated["expires"].is_string(), "{rotated}");
    assert!(authenticate(folder, token).is_ok() && authenticate(folder, &next).is_ok());
    let listed: Value = serde_json::from_str(&run_ok(folder, &["agent", "list", "--json"]).await.out).expect("JSON");
    assert_eq!(listed["agents"][0]["keys"].as_array().map(Vec::len), Some(2), "{listed}");

    run_ok(folder, &["agent", "revoke", "planner"]).await;
    assert_eq!(authenticate(folder, &next), Err(ErrorCode::CredentialRevoked));
    assert!(run_ok(folder, &["agent", "list"]).await.out.contains("revoked"));
}

#[tokio::test]
async fn errors_have_a_hint() {
    let folder = TempDir::new().expect("a folder");
    let folder = folder.path();
    run_ok(folder, &["agent", "add", "planner", "--role", "local"]).await;
    let check = async |args: &[&str], parts: &[&str]| {
        let output = toolbus(folder, args).await;
        assert_eq!(output.code, Some(1), "{args:?} {}", output.err);
        assert_eq!(output.out, "", "{args:?}");
        for part in parts {
            assert!(output.err.contains(part), "{args:?} should print {part:?}, but prints: {}", output.err);
        }
    };
    check(&["agent", "add", "planner", "--role", "local"], &["already", "hint: `toolbus agent rotate planner`"]).await;
    check(&["agent", "rotate", "plannner"], &["no agent", "hint: known agents: planner"]).await;
    check(&["agent", "revoke", "nobody"], &["no agent"]).await;
    check(&["agent", "add", "a#b", "--role", "r"], &["invalid agent name", "suffix"]).await;
    check(&["agent", "add", "~", "--role", "r"], &["invalid agent name"]).await;
    std::fs::write(folder.join("precious"), "two words").expect("written");
    check(&["agent", "add", "w", "--role", "local", "--token-file", "precious"], &["not a token file"]).await;
    std::fs::write(folder.join("data/agents.json"), "{\n  \"version\": 1,\n  oops").expect("written");
    check(&["agent", "list"], &["agents.json", "line 3 column 3", "hint:"]).await;
    assert_eq!(toolbus(folder, &["agent", "add", "w"]).await.code, Some(2), "a role is required");
}

#[tokio::test]
async fn a_token_file_is_private_and_a_role_without_rules_causes_a_warning() {
    let folder = TempDir::new().expect("a folder");
    let folder = folder.path();
    let output = run_ok(folder, &["agent", "add", "h", "--host", "--token-file", "h.token"]).await;
    assert!(
        !output.out.contains("tb_") && output.out.contains("h.token") && output.err.is_empty(),
        "{} {}",
        output.out,
        output.err
    );
    let file = folder.join("h.token");
    assert_eq!(std::fs::metadata(&file).expect("the file exists").permissions().mode() & 0o777, 0o600);
    assert_eq!(authenticate(folder, std::fs::read_to_string(&file).expect("text").trim()).as_deref(), Ok("h"));

    let warning = run_ok(folder, &["agent", "add", "a", "--role", "reader"]).await;
    assert!(warning.err.contains("WARNING") && warning.err.contains("[roles.reader]"), "{}", warning.err);
    std::fs::write(folder.join("toolbus.toml"), "[roles.reader]\nallow = [\"*\"]\n").expect("written");
    let fine = run_ok(folder, &["agent", "add", "b", "--role", "reader"]).await;
    assert!(!fine.err.contains("WARNING"), "{}", fine.err);
    let warning = run_ok(folder, &["agent", "add", "c", "--role", "raeder"]).await;
    assert!(warning.err.contains("did you mean reader?"), "{}", warning.err);
}

#[tokio::test]
async fn a_broker_beyond_loopback_needs_tls_or_insecure() {
    let folder = TempDir::new().expect("a folder");
    let folder = folder.path();
    let output = toolbus(folder, &["broker", "--listen", "0.0.0.0:0"]).await;
    assert_eq!(output.code, Some(1));
    for part in ["0.0.0.0:0", "without TLS", "--tls-cert", "--insecure"] {
        assert!(output.err.contains(part), "{}", output.err);
    }
    assert!(!folder.join("data").exists(), "nothing was created");
    std::fs::write(folder.join("c.pem"), "nothing").expect("written");
    let output =
        toolbus(folder, &["broker", "--listen", "127.0.0.1:0", "--tls-cert", "c.pem", "--tls-key", "c.pem"]).await;
    assert!(output.code == Some(1) && output.err.contains("c.pem") && output.err.contains("hint:"), "{}", output.err);
    assert_eq!(
        toolbus(folder, &["broker", "--tls-cert", "c.pem"]).await.code,
        Some(2),
        "a certificate without its key"
    );
}

#[tokio::test]
async fn commands_reach_a_broker_over_tls() {
    let folder = TempDir::new().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    std::fs::write(path("cert.pem"), made.cert.pem()).expect("written");
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).expect("written");
    std::fs::write(path("token"), TOKEN).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
    command.args(["broker", "--listen", "127.0.0.1:0", "--data", &path("data")]);
    command.args(["--tls-cert", &path("cert.pem"), "--tls-key", &path("key.pem")]);
    command.args(["--shared-token-file", &path("token")]).stdout(Stdio::piped()).kill_on_drop(true);
    let mut broker = command.spawn().expect("the binary starts");
    let mut lines = BufReader::new(broker.stdout.take().expect("a pipe")).lines();
    let port = soon("its address", async {
        loop {
            let line = lines.next_line().await.expect("text").expect("it prints its address");
            if let Some(address) = line.strip_prefix("listening on wss://127.0.0.1:") {
                break address.trim_end_matches("/bus").to_owned();
            }
        }
    })
    .await;
    let url = format!("wss://localhost:{port}/bus");
    let (token, cert) = (path("token"), path("cert.pem"));
    let ps = ["ps", "--json", "--token-file", &token, "--broker", &url];
    let output = run_ok(folder.path(), &[&ps[..], &["--ca-cert", &cert]].concat()).await;
    assert!(output.out.contains("connections"), "{}", output.out);
    let output = toolbus(folder.path(), &ps).await;
    assert!(output.code == Some(1) && output.err.contains("untrusted issuer"), "{}", output.err);
    let plain = url.replace("wss:", "ws:");
    let output = toolbus(folder.path(), &["ps", "--token-file", &token, "--broker", &plain]).await;
    assert!(output.code == Some(1) && output.err.contains("wss://"), "{}", output.err);
    broker.kill().await.expect("it was running");
}

#[tokio::test]
async fn an_agents_name_has_no_blank() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let added = toolbus(folder.path(), &["agent", "add", "bob smith", "--role", "r"]).await;
    assert_eq!(added.code, Some(1), "{}", added.out);
    for part in ["\"bob smith\": it has a blank", "hint: separate words with - or _"] {
        assert!(added.err.contains(part), "{}", added.err);
    }
}
