//! Secrets reach only their server, and are fetched again when they expire.

use crate::support::{Server, guarded, probe_eras, text};
use serde_json::json;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use toolbus_config::{ConfigError, Document};
use toolbus_mcp::Era;
use toolbus_upstream::{ConnectionOptions, ServerConfig, ServerError, read_servers};

/// A server that reveals everything it was given, in every possible place.
const LEAKY_SERVER: &str = r#"
import os, sys, json
said = " ".join(os.environ.get(name, "") for name in ["API_TOKEN", "FROM_FILE", "FROM_EXEC", "PLAIN"])
for line in sys.stdin:
    message = json.loads(line)
    answer, name = {"jsonrpc": "2.0", "id": message["id"]}, message["params"]["name"]
    if name == "say":
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": said}}), flush=True)
        answer["result"] = {"text": said}
    if name == "fail":
        answer["error"] = {"code": 1, "message": said}
    if name == "die":
        sys.stderr.write("x" * 490 + os.environ["API_TOKEN"] + "\n" + said)
        sys.exit(3)
    print(json.dumps(answer), flush=True)
"#;

const TOKEN: &str = "sk-canary-0123456789";

fn read(text: &str) -> Result<ServerConfig, ConfigError> {
    let env = HashMap::from([("MY_TOKEN", TOKEN), ("COLOUR", "ultramarine")]);
    let mut read = read_servers(&Document::parse_toml(text)?, &|name| env.get(name).map(ToString::to_string))?;
    Ok(read.servers.remove(0))
}

fn leaky(folder: &Path, more: &str) -> ServerConfig {
    let script = folder.join("leaky.py");
    fs::write(&script, LEAKY_SERVER).expect("written");
    fs::write(folder.join("secret"), "file-päss\"word\n").expect("written");
    let folder = folder.display();
    let config = format!(
        "[servers.leaky]\ncommand = \"python3\"\nargs = [\"-u\", \"{folder}/leaky.py\"]\n{more}\n\
         [servers.leaky.env]\nAPI_TOKEN = \"${{MY_TOKEN}}\"\nFROM_FILE = \"${{file:{folder}/secret}}\"\n\
         FROM_EXEC = \"${{exec:sh -c 'echo run >> {folder}/runs; echo exec-secret'}}\"\nPLAIN = \"${{COLOUR}}\"\n"
    );
    read(&config).expect("valid configuration")
}

fn runs(folder: &Path) -> usize {
    fs::read_to_string(folder.join("runs")).unwrap_or_default().lines().count()
}

#[tokio::test]
async fn secrets_revealed_by_a_server_are_redacted() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let mut server = Server::open(&leaky(folder.path(), ""), Era::Legacy, &guarded()).await;
    let hidden = "[redacted] [redacted] [redacted] ultramarine";
    assert_eq!(text(server.call("say", json!({})).await), format!("{{\"text\":\"{hidden}\"}}").replace(":", ": "));
    assert!(text(server.call("fail", json!({})).await).contains(hidden));
    let error = server.call("die", json!({})).await.expect_err("server exited");
    let ServerError::Died { stderr, .. } = &error else { panic!("{error}") };
    assert!(stderr[1].ends_with(hidden), "{stderr:?}");
    let events = [format!("{:?}", server.next_event().await)];
    for said in stderr.iter().chain([&error.to_string()]).chain(&events) {
        for secret in [TOKEN, &TOKEN[..6], "file-p", "exec-se"] {
            assert!(!said.contains(secret), "{secret} in {said}");
        }
    }
}

#[tokio::test]
async fn redaction_of_results_is_optional_but_not_of_errors() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let server = Server::open(&leaky(folder.path(), "redact_results = false"), Era::Legacy, &guarded()).await;
    assert!(text(server.call("say", json!({})).await).contains(TOKEN));
    assert!(!text(server.call("fail", json!({})).await).contains(TOKEN));
}

#[tokio::test]
async fn names_in_the_configuration_make_other_values_secret() {
    let folder = tempfile::tempdir().expect("temporary directory");
    for name in ["PLAIN", "COLOUR"] {
        let config = leaky(folder.path(), &format!("secrets = [\"{name}\"]"));
        let server = Server::open(&config, Era::Legacy, &guarded()).await;
        assert!(!text(server.call("say", json!({})).await).contains("ultramarine"));
    }
}

#[tokio::test]
async fn a_command_runs_once_per_ttl() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let config = leaky(folder.path(), "");
    for _ in 0..3 {
        Server::open(&config, Era::Legacy, &guarded()).await;
    }
    assert_eq!(runs(folder.path()), 1);
    let config = leaky(folder.path(), "secret_ttl = \"1ms\"");
    for _ in 0..3 {
        Server::open(&config, Era::Legacy, &guarded()).await;
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    assert_eq!(runs(folder.path()), 4);
}

#[tokio::test]
async fn a_secret_that_cannot_be_fetched_is_reported_and_nothing_is_started() {
    let check = async |reference: &str, reason: &str| {
        let config = format!("[servers.x]\ncommand = \"true\"\nenv = {{ KEY = {reference:?} }}");
        let config = read(&config).expect("valid configuration");
        let error = probe_eras(&config, &guarded()).await.expect_err(reference);
        assert_eq!(error.code(), "TB0402");
        assert!(error.was_not_run() && error.to_string().contains(reason), "{error}");
    };
    check("${file:/no/such/file}", "${file:/no/such/file}: No such file").await;
    check("${file:/dev/zero}", "longer than 65536 bytes").await;
    check("${file:/dev/null}", "it is empty").await;
    let folder = tempfile::tempdir().expect("temporary directory");
    let theirs = folder.path().join("theirs");
    fs::write(&theirs, "secret").expect("written");
    // Only root can give a file away.
    if std::os::unix::fs::chown(&theirs, Some(65_534), None).is_ok() {
        check(&format!("${{file:{}}}", theirs.display()), "belongs to another user (uid 65534)").await;
    }
    check("${exec:no-such-command --password hidden}", "${exec:no-such-command …}: it could not be started").await;
    check("${exec:sh -c 'echo hidden; exit 3'}", "it failed: exit status: 3").await;
    check("${exec:sh -c 'yes'}", "longer than 65536 bytes").await;
}

#[test]
fn references_are_rejected_in_unsupported_settings() {
    let check = |config: &str, message: &str| {
        let error = read(config).expect_err(config);
        assert!(error.to_string().contains(message), "{error}");
    };
    check(
        "[servers.x]\ncommand = \"${file:/x}\"",
        "line 2, column 11: servers.x.command: the value can't be fetched from a file or a command",
    );
    check(
        "[servers.x]\ncommand = \"x\"\nargs = [\"${exec:}\"]",
        "servers.x.args[0]: a reference names no file or command",
    );
    check("[servers.x]\nurl = \"${file:/x}\"", "url has to be an http:// or https:// address");
}

#[test]
fn debug_output_of_a_configuration_shows_no_secret() {
    let config = read("[servers.x]\nurl = \"https://x/${MY_TOKEN}?k=${MY_TOKEN}\"\nheaders = { A = \"${MY_TOKEN}\" }");
    let config = config.expect("valid configuration");
    assert!(!format!("{:?}", config.secrets).contains(TOKEN));
}

/// An HTTP server that accepts one token and echoes any other.
async fn token_server(folder: &Path) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("free port");
    let port = listener.local_addr().expect("local address").port();
    let wanted = folder.join("wanted");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let wanted = wanted.clone();
            tokio::spawn(async move { answer_all(BufReader::new(stream), &wanted).await });
        }
    });
    port
}

async fn answer_all(mut stream: BufReader<tokio::net::TcpStream>, wanted: &Path) -> Option<()> {
    loop {
        let (mut length, mut token) = (0, String::new());
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            match line.trim().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.parse().ok()?,
                Some((name, value)) if name.eq_ignore_ascii_case("authorization") => token = value.to_owned(),
                None if line.trim().is_empty() => break,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        let request: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let is_good = token.strip_prefix("Bearer ") == Some(fs::read_to_string(wanted).ok()?.trim());
        let (status, body) = match is_good {
            true => ("200 OK", json!({"jsonrpc": "2.0", "id": request["id"], "result": {"you": token}}).to_string()),
            false => ("401 Unauthorized", format!("{}{token}", "x".repeat(290))),
        };
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.get_mut().write_all(format!("{head}{body}").as_bytes()).await.ok()?;
    }
}

#[tokio::test]
async fn a_rejected_header_is_fetched_again() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let port = token_server(folder.path()).await;
    let set = |file: &str, token: &str| fs::write(folder.path().join(file), token).expect("written");
    set("wanted", "first-token-0123456789");
    set("token", "first-token-0123456789\n");
    let file = folder.path().join("token").display().to_string();
    let config = format!(
        "[servers.x]\nurl = \"http://127.0.0.1:{port}/mcp\"\nheaders = {{ Authorization = \"Bearer ${{file:{file}}}\" }}"
    );
    let config = read(&config).expect("valid configuration");
    let server = Server::open(&config, Era::Modern, &ConnectionOptions::default()).await;
    assert_eq!(text(server.request("x", json!({})).await), r#"{"you":"[redacted]"}"#);
    set("wanted", "second-token-0123456789");
    set("token", "second-token-0123456789\n");
    assert_eq!(text(server.request("x", json!({})).await), r#"{"you":"[redacted]"}"#);
    // Without a new token the rejection is final, and the error shows no part of the token.
    set("wanted", "third-token-0123456789");
    let error = server.request("x", json!({})).await.expect_err("rejected");
    assert!(matches!(error, ServerError::HttpStatus { status: 401, .. }), "{error}");
    assert!(!error.to_string().contains("Bea"), "{error}");
}
