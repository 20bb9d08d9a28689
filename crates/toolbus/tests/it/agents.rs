//! `toolbus agent`, and a broker that other machines can reach, as a user types them.

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

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// In a folder of its own, in which `data` is the broker's.
async fn toolbus(folder: &Path, args: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
    command.args(args).current_dir(folder).env("XDG_CONFIG_HOME", folder.join("config"));
    command.env("TOOLBUS_DATA", folder.join("data")).env_remove("TOOLBUS_CONFIG").kill_on_drop(true);
    soon("the command ends", command.output()).await.expect("the binary starts").into()
}

async fn says(folder: &Path, args: &[&str]) -> Said {
    let said = toolbus(folder, args).await;
    assert_eq!(said.code, Some(0), "{args:?}: {}", said.err);
    said
}

fn entry(folder: &Path, token: &str) -> Result<String, ErrorCode> {
    let registry = Registry::open(&folder.join("data")).expect("it can be read");
    let credential = Credential { token, certificate: None, claimed: &AgentRef::new("~") };
    registry.authenticate(&credential).map(|identity| identity.agent.session_id.to_string()).map_err(|no| no.code)
}

#[tokio::test]
async fn a_token_is_printed_once_alone_and_works_until_it_is_revoked() {
    let folder = TempDir::new().expect("a folder");
    let folder = folder.path();
    let added = says(folder, &["agent", "add", "planner", "--role", "reader", "--expires", "30d"]).await;
    let token = added.out.trim_end();
    assert_eq!(added.out.lines().count(), 1, "nothing but the token: {}", added.out);
    assert!(
        added.err.contains("planner") && added.err.contains("expires") && !added.err.contains(token),
        "{}",
        added.err
    );
    assert_eq!(entry(folder, token).as_deref(), Ok("planner"));

    let listed = says(folder, &["agent", "list"]).await.out;
    assert!(listed.contains("planner") && listed.contains("valid until"), "{listed}");
    assert!(!listed.contains(&token[14..]), "no secret in {listed}");
    let rotated: Value =
        serde_json::from_str(&says(folder, &["agent", "rotate", "planner", "--overlap", "1h", "--json"]).await.out)
            .expect("JSON");
    let next = rotated["token"].as_str().expect("a token").to_owned();
    assert!(rotated["overlap_ends"].is_string() && rotated["expires"].is_string(), "{rotated}");
    assert!(entry(folder, token).is_ok() && entry(folder, &next).is_ok());
    let listed: Value = serde_json::from_str(&says(folder, &["agent", "list", "--json"]).await.out).expect("JSON");
    assert_eq!(listed["agents"][0]["keys"].as_array().map(Vec::len), Some(2), "{listed}");

    says(folder, &["agent", "revoke", "planner"]).await;
    assert_eq!(entry(folder, &next), Err(ErrorCode::CredentialRevoked));
    assert!(says(folder, &["agent", "list"]).await.out.contains("revoked"));
}

#[tokio::test]
async fn mistakes_are_told_with_a_way_out() {
    let folder = TempDir::new().expect("a folder");
    let folder = folder.path();
    says(folder, &["agent", "add", "planner", "--role", "local"]).await;
    let check = async |args: &[&str], parts: &[&str]| {
        let said = toolbus(folder, args).await;
        assert_eq!(said.code, Some(1), "{args:?} {}", said.err);
        assert_eq!(said.out, "", "{args:?}");
        for part in parts {
            assert!(said.err.contains(part), "{args:?} should say {part:?}, but says: {}", said.err);
        }
    };
    check(&["agent", "add", "planner", "--role", "local"], &["already", "hint: `toolbus agent rotate planner`"]).await;
    check(&["agent", "rotate", "plannner"], &["no agent", "hint: known agents: planner"]).await;
    check(&["agent", "revoke", "nobody"], &["no agent"]).await;
    check(&["agent", "add", "a#b", "--role", "r"], &["invalid agent name", "suffix"]).await;
    check(&["agent", "add", "~", "--role", "r"], &["invalid agent name"]).await;
    std::fs::write(folder.join("precious"), "two words").expect("written");
    check(&["agent", "add", "w", "--role", "local", "--token-file", "precious"], &["other than a token"]).await;
    std::fs::write(folder.join("data/agents.json"), "{\n  \"version\": 1,\n  oops").expect("written");
    check(&["agent", "list"], &["agents.json", "line 3 column 3", "hint:"]).await;
    assert_eq!(toolbus(folder, &["agent", "add", "w"]).await.code, Some(2), "a role is needed");
}

#[tokio::test]
async fn a_token_file_is_its_owners_and_a_role_without_rules_is_worth_a_warning() {
    let folder = TempDir::new().expect("a folder");
    let folder = folder.path();
    let said = says(folder, &["agent", "add", "h", "--host", "--token-file", "h.token"]).await;
    assert!(
        !said.out.contains("tb_") && said.out.contains("h.token") && said.err.is_empty(),
        "{} {}",
        said.out,
        said.err
    );
    let file = folder.join("h.token");
    assert_eq!(std::fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    assert_eq!(entry(folder, std::fs::read_to_string(&file).expect("text").trim()).as_deref(), Ok("h"));

    let warned = says(folder, &["agent", "add", "a", "--role", "reader"]).await;
    assert!(warned.err.contains("WARNING") && warned.err.contains("[roles.reader]"), "{}", warned.err);
    std::fs::write(folder.join("toolbus.toml"), "[roles.reader]\nallow = [\"*\"]\n").expect("written");
    let fine = says(folder, &["agent", "add", "b", "--role", "reader"]).await;
    assert!(!fine.err.contains("WARNING"), "{}", fine.err);
    let warned = says(folder, &["agent", "add", "c", "--role", "raeder"]).await;
    assert!(warned.err.contains("did you mean reader?"), "{}", warned.err);
}

#[tokio::test]
async fn a_broker_that_others_can_reach_wants_tls_or_an_explicit_word() {
    let folder = TempDir::new().expect("a folder");
    let folder = folder.path();
    let said = toolbus(folder, &["broker", "--listen", "0.0.0.0:0"]).await;
    assert_eq!(said.code, Some(1));
    for part in ["0.0.0.0:0", "without TLS", "--tls-cert", "--insecure"] {
        assert!(said.err.contains(part), "{}", said.err);
    }
    assert!(!folder.join("data").exists(), "nothing was made");
    std::fs::write(folder.join("c.pem"), "nothing").expect("written");
    let said =
        toolbus(folder, &["broker", "--listen", "127.0.0.1:0", "--tls-cert", "c.pem", "--tls-key", "c.pem"]).await;
    assert!(said.code == Some(1) && said.err.contains("c.pem") && said.err.contains("hint:"), "{}", said.err);
    assert_eq!(toolbus(folder, &["broker", "--tls-cert", "c.pem"]).await.code, Some(2), "half a pair");
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
    let mut lines = BufReader::new(broker.stdout.take().expect("it is piped")).lines();
    let port = soon("its address", async {
        loop {
            let line = lines.next_line().await.expect("text").expect("it says where it listens");
            if let Some(address) = line.strip_prefix("listening on wss://127.0.0.1:") {
                break address.trim_end_matches("/bus").to_owned();
            }
        }
    })
    .await;
    let url = format!("wss://localhost:{port}/bus");
    let (token, cert) = (path("token"), path("cert.pem"));
    let ps = ["ps", "--json", "--token-file", &token, "--broker", &url];
    let said = says(folder.path(), &[&ps[..], &["--ca-cert", &cert]].concat()).await;
    assert!(said.out.contains("connections"), "{}", said.out);
    let said = toolbus(folder.path(), &ps).await;
    assert!(said.code == Some(1) && said.err.contains("untrusted issuer"), "{}", said.err);
    let plain = url.replace("wss:", "ws:");
    let said = toolbus(folder.path(), &["ps", "--token-file", &token, "--broker", &plain]).await;
    assert!(said.code == Some(1) && said.err.contains("wss://"), "{}", said.err);
    broker.kill().await.expect("it was running");
}
