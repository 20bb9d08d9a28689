//! Agents with their own tokens, end to end: rights of a token, rejected claims, revocation and expiry.

use crate::support::{TOKEN, soon};
use crate::up::{CommandOutput, UpInstance, toolbus};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use toolbus::{AgentRef, Body, BrokerClient, ClientOptions, ErrorCode, InboxMessage, KnownHosts};

const ROLES: &str = r#"
[roles.reader]
allow = ["now"]

[roles.chatty]
allow = ["**"]
send = ["ann"]
"#;

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;

/// `toolbus up` with roles, to which tests add agents.
struct UpWithRoles(UpInstance);

impl UpWithRoles {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("toolbus.toml"), ROLES).expect("the folder is writable");
        Self(UpInstance::start_in(folder, &[]).await)
    }

    /// Adds an agent and returns the file with its token.
    async fn add(&self, name: &str, options: &[&str]) -> PathBuf {
        let mut args = vec!["agent", "add", name];
        args.extend(options);
        let output = self.0.run(&args).await;
        output.check(0, &["tb_"], &[]);
        let file = self.0.folder.path().join(format!("{name}.token"));
        let token = output.out.split_whitespace().find(|word| word.starts_with("tb_")).expect("a token");
        std::fs::write(&file, token).expect("the folder is writable");
        file
    }

    async fn run_as(&self, token: &Path, args: &[&str]) -> CommandOutput {
        let mut args: Vec<&str> = args.to_vec();
        let token = token.to_string_lossy().into_owned();
        args.extend(["--token-file", &token]);
        self.0.run(&args).await
    }

    async fn client(&self, token: &Path, name: &str) -> Result<BrokerClient, toolbus::BrokerError> {
        let token = std::fs::read_to_string(token).expect("a token file");
        let agent = AgentRef::new(name.to_owned());
        BrokerClient::connect_with(self.0.url(), agent, token.trim(), ClientOptions::default()).await
    }

    fn data(&self) -> PathBuf {
        self.0.folder.path().join("data/toolbus")
    }
}

fn task(correlation: Option<&str>, kind: &str) -> InboxMessage {
    let message = InboxMessage::new(AgentRef::new("overwritten-by-the-broker"), kind, Body::null());
    match correlation {
        Some(id) => message.correlated_to(id.to_owned().into()),
        None => message,
    }
}

#[tokio::test]
async fn a_token_determines_name_and_role() {
    let up = UpWithRoles::start().await;
    let bob = up.add("bob", &["--role", "reader"]).await;
    soon("the tools", async { while !up.run_as(&bob, &["tools"]).await.out.contains("now") {} }).await;
    let tools = up.run_as(&bob, &["tools"]).await;
    assert!(!tools.out.contains("countdown"), "{}", tools.out);
    up.run_as(&bob, &["call", "now"]).await.check(0, &["UTC"], &[]);
    up.run_as(&bob, &["tools", "--role", "chatty"]).await.check(1, &[], &["TB0115"]);
    up.run_as(&bob, &["ps"]).await.check(1, &[], &["TB0218"]);
    let ann = up.client(&bob, "ann").await.err().expect("another's name");
    assert_eq!(ann.code(), Some(ErrorCode::NotYourName), "{ann}");
    let own = up.client(&bob, "~#x").await.expect("its own name");
    assert_eq!((&*own.me().session_id, own.me().role.as_deref()), ("bob#x", Some("reader")));
}

#[tokio::test]
async fn local_tokens_are_private_files_and_subject_to_rules() {
    let up = UpWithRoles::start().await;
    up.0.run(&["ps"]).await.check(0, &[], &[]);
    let tools = up.0.run(&["tools", "--json"]).await;
    let listed: Value = serde_json::from_str(&tools.out).expect("JSON");
    assert_eq!(listed["tools"].as_array().map(Vec::len), Some(0), "the role \"local\" has no rules: {listed}");
    for file in ["token", "operator.token", "host.token", "agents.json"] {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(up.data().join(file)).expect("the file exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

#[tokio::test]
async fn secrets_are_stored_as_hashes_and_printed_once() {
    let up = UpWithRoles::start().await;
    let bob = up.add("bob", &["--role", "reader"]).await;
    let token = std::fs::read_to_string(&bob).expect("written above");
    let secret = token.rsplit('_').next().expect("it has parts").to_owned();
    let kept = std::fs::read_to_string(up.data().join("agents.json")).expect("the file exists");
    assert!(kept.contains("bob") && !kept.contains(&secret));
    let list = up.0.run(&["agent", "list"]).await;
    list.check(0, &["bob", "reader"], &[]);
    assert!(!list.out.contains(&secret));
    up.0.run(&["agent", "add", "bob", "--role", "reader"]).await.check(1, &[], &["bob"]);
}

#[tokio::test]
async fn revoking_an_agent_closes_its_connections_within_a_second() {
    let up = UpWithRoles::start().await;
    let bob = up.add("bob", &["--role", "reader"]).await;
    let ann = up.add("ann", &["--role", "reader"]).await;
    let bobs = soon("a connection", connect_retrying(&up, &bob)).await;
    let anns = soon("a connection", connect_retrying(&up, &ann)).await;
    bobs.subscribe().await.expect("open");
    anns.subscribe().await.expect("open");
    up.0.run(&["agent", "revoke", "bob"]).await.check(0, &[], &[]);
    let start = Instant::now();
    assert!(soon("the end", bobs.next_message()).await.is_none());
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(anns.reader_alive(), "another agent's connection stays open");
    let refused = up.client(&bob, "bob").await.err().expect("revoked");
    assert!(matches!(refused.code(), Some(ErrorCode::CredentialRevoked | ErrorCode::BadCredentials)), "{refused}");
}

/// Connects, with retries: the broker polls the agents' file a few times a second.
async fn connect_retrying(up: &UpWithRoles, token: &Path) -> BrokerClient {
    loop {
        match up.client(token, "~").await {
            Ok(client) => return client,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

#[tokio::test]
async fn a_rotated_token_is_valid_for_its_overlap_and_tokens_expire() {
    let up = UpWithRoles::start().await;
    let bob = up.add("bob", &["--role", "reader"]).await;
    let old = soon("a connection", connect_retrying(&up, &bob)).await;
    let rotated = up.0.run(&["agent", "rotate", "bob", "--overlap", "1s"]).await;
    rotated.check(0, &["tb_"], &[]);
    let new = up.0.folder.path().join("new.token");
    let token = rotated.out.split_whitespace().find(|word| word.starts_with("tb_")).expect("a token");
    std::fs::write(&new, token).expect("writable");
    let _new = soon("the new token is accepted", connect_retrying(&up, &new)).await;
    assert!(old.reader_alive(), "the old token is still valid");
    soon("the old token ends", async {
        while old.reader_alive() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(up.client(&bob, "~").await.is_err());

    let brief = up.add("brief", &["--role", "reader", "--expires", "1s"]).await;
    let client = soon("a connection", connect_retrying(&up, &brief)).await;
    client.subscribe().await.expect("open");
    assert!(soon("the end", client.next_message()).await.is_none());
    let refused = up.client(&brief, "~").await.err().expect("expired");
    assert_eq!(refused.code(), Some(ErrorCode::CredentialExpired), "{refused}");
}

#[tokio::test]
async fn forged_replies_and_disallowed_messages_are_refused() {
    let up = UpWithRoles::start().await;
    let bob = soon("bob", connect_retrying(&up, &up.add("bob", &["--role", "reader"]).await)).await;
    let ann = soon("ann", connect_retrying(&up, &up.add("ann", &["--role", "reader"]).await)).await;
    let carl = soon("carl", connect_retrying(&up, &up.add("carl", &["--role", "chatty"]).await)).await;
    let refused = |outcome: Result<_, toolbus::BrokerError>| outcome.map(drop).expect_err("refused").code();
    assert_eq!(refused(bob.deliver("ann", task(None, "task")).await), Some(ErrorCode::MayNotSend));
    assert_eq!(refused(carl.deliver("bob", task(None, "task")).await), Some(ErrorCode::MayNotSend));
    soon("receipt", carl.deliver("ann", task(None, "task"))).await.expect("its role allows it");
    assert_eq!(refused(bob.deliver("ann", task(None, "mcp_request")).await), Some(ErrorCode::MayNotSend));
    // ann sends a request to the host; bob tries to answer it.
    let request = task(None, "mcp_request");
    let id = request.id.to_string();
    soon("receipt", ann.deliver("host", request)).await.expect("requests to hosts are allowed");
    for kind in ["mcp_reply", "reply"] {
        assert_eq!(refused(bob.deliver("ann", task(Some(&id), kind)).await), Some(ErrorCode::NotYourRequest));
    }
    let refused = soon("an answer", bob.announce(vec![(None, Body::null())])).await.expect_err("no host");
    assert_eq!(refused.code(), Some(ErrorCode::NotAHost), "{refused}");
}

#[tokio::test]
async fn a_host_with_a_worker_token_exits_with_the_reason() {
    let up = UpWithRoles::start().await;
    up.add("bob", &["--role", "reader"]).await;
    let me = env!("CARGO_BIN_EXE_toolbus");
    let servers = format!(r#"{{"mcpServers": {{"demo": {{"command": {me:?}, "args": ["demo-server"]}}}}}}"#);
    std::fs::write(up.0.folder.path().join("mine.json"), servers).expect("writable");
    let host = ["host", "--mcp-config", "mine.json", "--token-file", "bob.token"];
    up.0.run(&host).await.check(1, &[], &["TB0217", "toolbus agent add"]);
}

#[tokio::test]
async fn a_revoked_host_is_not_listed_and_gets_no_requests() {
    let up = UpWithRoles::start().await;
    let far = up.add("far", &["--host"]).await;
    let bob = soon("bob", connect_retrying(&up, &up.add("bob", &["--role", "reader"]).await)).await;
    let host = soon("the host", connect_retrying(&up, &far)).await;
    soon("announced", host.announce(vec![(None, Body::null())])).await.expect("hosts may announce");
    let offers = async || {
        let hosts = soon("hosts", bob.hosts(&KnownHosts::new())).await.expect("answered");
        hosts.iter().any(|host| &*host.id == "far")
    };
    assert!(offers().await);
    soon("receipt", bob.deliver("far", task(None, "mcp_request"))).await.expect("requests to hosts are allowed");
    let made_up =
        bob.deliver("far#1", task(None, "mcp_request")).await.map(drop).expect_err("an unused mailbox of a host");
    assert_eq!(made_up.code(), Some(ErrorCode::MayNotSend));
    up.0.run(&["agent", "revoke", "far"]).await.check(0, &[], &[]);
    soon("it is no longer listed", async { while offers().await {} }).await;
    let refused = bob.deliver("far", task(None, "mcp_request")).await.map(drop).expect_err("no longer a host");
    assert_eq!(refused.code(), Some(ErrorCode::MayNotSend));
}

#[tokio::test]
async fn names_of_in_process_agents_are_reserved() {
    let up = UpWithRoles::start().await;
    for (name, options) in [("loopback", ["--role", "reader"]), ("host2", ["--role", "reader"])] {
        let token = up.add(name, &options).await;
        let outcome = up.client(&token, "~").await.map(drop).map_err(|error| error.code());
        let expected = if name == "loopback" { Err(Some(ErrorCode::NotYourName)) } else { Ok(()) };
        assert_eq!(outcome, expected, "{name}");
    }
    let host = up.client(&up.data().join("host.token"), "~").await.map(drop).expect_err("a reserved name");
    assert_eq!(host.code(), Some(ErrorCode::NotYourName), "{host}");
}

#[tokio::test]
async fn an_operator_reads_dead_letters_of_others_but_sends_nothing_in_their_name() {
    let up = UpWithRoles::start().await;
    up.add("bob", &["--role", "reader"]).await;
    let operator = up.data().join("operator.token");
    let reader = up.client(&operator, "bob#dead").await.expect("to read");
    let refused = reader.deliver("bob", task(None, "task")).await.map(drop).expect_err("not as bob");
    assert_eq!(refused.code(), Some(ErrorCode::MayNotSend));
    let own = up.client(&operator, "~#dead").await.expect("its own");
    assert_eq!(&*own.me().session_id, "operator#dead");
    let refused = up.client(&operator, "bob").await.map(drop).expect_err("not bob");
    assert_eq!(refused.code(), Some(ErrorCode::NotYourName));
}

#[tokio::test]
async fn over_http_a_revoked_token_ends_its_streams() {
    let up = UpWithRoles::start().await;
    let bob = up.add("bob", &["--role", "reader"]).await;
    let token = std::fs::read_to_string(&bob).expect("written above");
    let client = soon("the token is accepted", connect_retrying(&up, &bob)).await;
    let answer = initialize(&up, &token).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let session = answer.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).expect("a session").to_owned();
    let mut stream = TcpStream::connect(up.0.address()).await.expect("it listens");
    let head = format!(
        "GET /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nMcp-Session-Id: {session}\r\nAccept: \
         text/event-stream\r\nConnection: close\r\n\r\n",
        up.0.address()
    );
    stream.write_all(head.as_bytes()).await.expect("open");
    let mut line = String::new();
    let mut reader = BufReader::new(stream);
    soon("the stream begins", reader.read_line(&mut line)).await.expect("text");
    assert!(line.contains("200"), "{line}");
    up.0.run(&["agent", "revoke", "bob"]).await.check(0, &[], &[]);
    let start = Instant::now();
    let mut rest = Vec::new();
    soon("the stream ends", reader.read_to_end(&mut rest)).await.ok();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    let refused = initialize(&up, &token).await;
    assert!(refused.starts_with("HTTP/1.1 401") && refused.contains("TB01"), "{refused}");
    drop(client);
}

#[tokio::test]
async fn over_http_every_request_of_a_connection_needs_a_valid_token() {
    let up = UpWithRoles::start().await;
    let bob = up.add("bob", &["--role", "reader"]).await;
    drop(soon("the token is accepted", connect_retrying(&up, &bob)).await);
    let token = std::fs::read_to_string(&bob).expect("written above").trim().to_owned();
    let mut other = token.clone();
    let last = other.pop();
    other.push(if last == Some('A') { 'B' } else { 'A' });
    let mut socket = TcpStream::connect(up.0.address()).await.expect("it listens");
    for (presented, expected) in [(&token, "200"), (&token, "200"), (&other, "401")] {
        assert_eq!(status_of_next(&up, &mut socket, presented).await, expected);
    }
    let mut socket = TcpStream::connect(up.0.address()).await.expect("it listens");
    assert_eq!(status_of_next(&up, &mut socket, &token).await, "200");
    up.0.run(&["agent", "revoke", "bob"]).await.check(0, &[], &[]);
    soon("the revocation is known", async {
        while initialize(&up, &token).await.starts_with("HTTP/1.1 200") {
            let status = status_of_next(&up, &mut socket, &token).await;
            assert!(["200", "401"].contains(&&*status), "{status:?}");
            // Each request opens a session, of which an agent has a share.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let refused = status_of_next(&up, &mut socket, &token).await;
    assert!(refused == "401" || refused.is_empty(), "refused, or closed after a refusal: {refused}");
}

/// Sends a request on a connection that is kept open. Returns the status of the response, or nothing if it was closed.
async fn status_of_next(up: &UpWithRoles, socket: &mut TcpStream, token: &str) -> String {
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nAccept: \
         */*\r\nContent-Length: {}\r\n\r\n{INITIALIZE}",
        up.0.address(),
        INITIALIZE.len(),
    );
    socket.write_all(request.as_bytes()).await.ok();
    let (mut reader, mut head, mut length) = (BufReader::new(socket), String::new(), 0);
    while !head.ends_with("\r\n\r\n") && soon("the head", reader.read_line(&mut head)).await.is_ok_and(|read| read > 0)
    {
        let line = head.lines().last().unwrap_or_default().to_ascii_lowercase();
        length = line.strip_prefix("content-length: ").map_or(length, |length| length.parse().expect("a length"));
    }
    soon("the body", reader.read_exact(&mut vec![0; length])).await.ok();
    head.split(' ').nth(1).unwrap_or_default().to_owned()
}

async fn initialize(up: &UpWithRoles, token: &str) -> String {
    answer_to(&mut begin_post(up, token, INITIALIZE.len(), INITIALIZE).await).await
}

/// Sends the head of a request, and its body or the first part of it.
async fn begin_post(up: &UpWithRoles, token: &str, length: usize, body: &str) -> TcpStream {
    let address = up.0.address();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n",
    );
    let mut socket = TcpStream::connect(address).await.expect("it listens");
    socket.write_all(head.as_bytes()).await.expect("open");
    // A refusal closes the connection, possibly before all was read.
    socket.write_all(body.as_bytes()).await.ok();
    socket
}

async fn answer_to(socket: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    soon("the answer", socket.read_to_end(&mut answer)).await.ok();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn incomplete_http_bodies_of_one_agent_are_refused_at_its_share_and_leave_room_for_others() {
    const PART: usize = 14 << 20;
    let up = UpWithRoles::start().await;
    let mut tokens = Vec::new();
    for name in ["bob", "ann"] {
        let file = up.add(name, &["--role", "reader"]).await;
        drop(soon("the token is accepted", connect_retrying(&up, &file)).await);
        tokens.push(std::fs::read_to_string(&file).expect("written above"));
    }
    let spaces = " ".repeat(PART);
    let first = begin_post(&up, &tokens[0], PART + 1, &spaces).await;
    let refused = answer_to(&mut begin_post(&up, &tokens[0], PART + 1, &spaces).await).await;
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("TB0220"), "{refused}");
    let others = answer_to(&mut begin_post(&up, &tokens[1], PART, &spaces).await).await;
    assert!(others.starts_with("HTTP/1.1 400"), "complete, though not JSON: {others}");
    drop(first);
    soon("the share is free again", async {
        while !answer_to(&mut begin_post(&up, &tokens[0], PART, &spaces).await).await.starts_with("HTTP/1.1 400") {}
    })
    .await;
}

#[tokio::test]
async fn hole_13_a_shared_token_is_refused_beyond_loopback_and_causes_a_warning() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("shared"), TOKEN).expect("writable");
    let shared = ["--shared-token-file", "shared"];
    refuses_to_start(&folder, &[&["--listen", "0.0.0.0:0"], &shared[..]].concat(), "loopback").await;
    refuses_to_start(&folder, &["--listen", "0.0.0.0:0"], "--insecure").await;
    let instance = UpInstance::start_in(folder, &shared).await;
    assert!(instance.banner.contains("WARNING") && instance.banner.contains("shared"), "{}", instance.banner);
}

async fn refuses_to_start(folder: &TempDir, args: &[&str], why: &str) {
    let mut command = toolbus(folder.path());
    command.arg("up").args(args).stdin(Stdio::null());
    let output = CommandOutput::of(soon("it exits", command.output()).await.expect("the binary starts"));
    output.check(1, &[], &[why]);
}
