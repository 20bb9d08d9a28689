//! Agents with tokens of their own, end to end: what a token allows, what a peer says of itself, and how a token ends.

use crate::support::{TOKEN, soon};
use crate::up::{Place, Said, toolbus};
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

/// `toolbus up` with roles, and the tokens of agents that were added to it.
struct Team(Place);

impl Team {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("toolbus.toml"), ROLES).expect("the folder is writable");
        Self(Place::start_in(folder, &[]).await)
    }

    /// Adds an agent; returns the file with its token.
    async fn add(&self, name: &str, options: &[&str]) -> PathBuf {
        let mut args = vec!["agent", "add", name];
        args.extend(options);
        let said = self.0.run(&args).await;
        said.check(0, &["tb_"], &[]);
        let file = self.0.folder.path().join(format!("{name}.token"));
        let token = said.out.split_whitespace().find(|word| word.starts_with("tb_")).expect("a token");
        std::fs::write(&file, token).expect("the folder is writable");
        file
    }

    async fn run_as(&self, token: &Path, args: &[&str]) -> Said {
        let mut args: Vec<&str> = args.to_vec();
        let token = token.to_string_lossy().into_owned();
        args.extend(["--token-file", &token]);
        self.0.run(&args).await
    }

    async fn client(&self, token: &Path, name: &str) -> Result<BrokerClient, toolbus::BrokerError> {
        let token = std::fs::read_to_string(token).expect("the token is there");
        let agent = AgentRef::new(name.to_owned());
        BrokerClient::connect_with(self.0.url(), agent, token.trim(), ClientOptions::default()).await
    }

    fn data(&self) -> PathBuf {
        self.0.folder.path().join("data/toolbus")
    }
}

fn task(correlation: Option<&str>, kind: &str) -> InboxMessage {
    let message = InboxMessage::new(AgentRef::new("whoever"), kind, Body::null());
    match correlation {
        Some(id) => message.correlated_to(id.to_owned().into()),
        None => message,
    }
}

#[tokio::test]
async fn a_token_brings_its_role_and_no_flag_changes_it() {
    let team = Team::start().await;
    let bob = team.add("bob", &["--role", "reader"]).await;
    soon("the tools", async { while !team.run_as(&bob, &["tools"]).await.out.contains("now") {} }).await;
    let tools = team.run_as(&bob, &["tools"]).await;
    assert!(!tools.out.contains("countdown"), "{}", tools.out);
    team.run_as(&bob, &["call", "now"]).await.check(0, &["UTC"], &[]);
    team.run_as(&bob, &["tools", "--role", "chatty"]).await.check(1, &[], &["TB0115"]);
    team.run_as(&bob, &["ps"]).await.check(1, &[], &["TB0218"]);
    let ann = team.client(&bob, "ann").await.err().expect("another's name");
    assert_eq!(ann.code(), Some(ErrorCode::NotYourName), "{ann}");
    let own = team.client(&bob, "~#x").await.expect("its own name");
    assert_eq!((&*own.me().session_id, own.me().role.as_deref()), ("bob#x", Some("reader")));
}

#[tokio::test]
async fn this_machines_own_tokens_are_apart_and_need_rules_like_all() {
    let team = Team::start().await;
    team.0.run(&["ps"]).await.check(0, &[], &[]);
    let tools = team.0.run(&["tools", "--json"]).await;
    let listed: Value = serde_json::from_str(&tools.out).expect("JSON");
    assert_eq!(listed["tools"].as_array().map(Vec::len), Some(0), "the role \"local\" has no rules: {listed}");
    for file in ["token", "operator.token", "host.token", "agents.json"] {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(team.data().join(file)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

#[tokio::test]
async fn secrets_are_kept_as_hashes_and_told_once() {
    let team = Team::start().await;
    let bob = team.add("bob", &["--role", "reader"]).await;
    let token = std::fs::read_to_string(&bob).expect("written above");
    let secret = token.rsplit('_').next().expect("it has parts").to_owned();
    let kept = std::fs::read_to_string(team.data().join("agents.json")).expect("it is there");
    assert!(kept.contains("bob") && !kept.contains(&secret));
    let list = team.0.run(&["agent", "list"]).await;
    list.check(0, &["bob", "reader"], &[]);
    assert!(!list.out.contains(&secret));
    team.0.run(&["agent", "add", "bob", "--role", "reader"]).await.check(1, &[], &["bob"]);
}

#[tokio::test]
async fn a_revoked_token_ends_live_connections_within_a_second() {
    let team = Team::start().await;
    let bob = team.add("bob", &["--role", "reader"]).await;
    let ann = team.add("ann", &["--role", "reader"]).await;
    let bobs = soon("a connection", connected(&team, &bob)).await;
    let anns = soon("a connection", connected(&team, &ann)).await;
    bobs.subscribe().await.expect("open");
    anns.subscribe().await.expect("open");
    team.0.run(&["agent", "revoke", "bob"]).await.check(0, &[], &[]);
    let asked = Instant::now();
    assert!(soon("the end", bobs.next_message()).await.is_none());
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    assert!(anns.reader_alive(), "another agent's connection stays");
    let refused = team.client(&bob, "bob").await.err().expect("revoked");
    assert!(matches!(refused.code(), Some(ErrorCode::CredentialRevoked | ErrorCode::BadCredentials)), "{refused}");
}

/// The broker looks at the agents' file a few times a second.
async fn connected(team: &Team, token: &Path) -> BrokerClient {
    loop {
        match team.client(token, "~").await {
            Ok(client) => return client,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

#[tokio::test]
async fn a_rotated_token_holds_for_its_overlap_and_an_expired_one_not_at_all() {
    let team = Team::start().await;
    let bob = team.add("bob", &["--role", "reader"]).await;
    let old = soon("a connection", connected(&team, &bob)).await;
    let rotated = team.0.run(&["agent", "rotate", "bob", "--overlap", "1s"]).await;
    rotated.check(0, &["tb_"], &[]);
    let new = team.0.folder.path().join("new.token");
    let token = rotated.out.split_whitespace().find(|word| word.starts_with("tb_")).expect("a token");
    std::fs::write(&new, token).expect("writable");
    let _new = soon("the new one is good", connected(&team, &new)).await;
    assert!(old.reader_alive(), "the old one still holds");
    soon("the old one ends", async {
        while old.reader_alive() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(team.client(&bob, "~").await.is_err());

    let brief = team.add("brief", &["--role", "reader", "--expires", "1s"]).await;
    let client = soon("a connection", connected(&team, &brief)).await;
    client.subscribe().await.expect("open");
    assert!(soon("the end", client.next_message()).await.is_none());
    let refused = team.client(&brief, "~").await.err().expect("expired");
    assert_eq!(refused.code(), Some(ErrorCode::CredentialExpired), "{refused}");
}

#[tokio::test]
async fn nobody_answers_for_another_and_messages_go_where_the_role_allows() {
    let team = Team::start().await;
    let bob = soon("bob", connected(&team, &team.add("bob", &["--role", "reader"]).await)).await;
    let ann = soon("ann", connected(&team, &team.add("ann", &["--role", "reader"]).await)).await;
    let carl = soon("carl", connected(&team, &team.add("carl", &["--role", "chatty"]).await)).await;
    let refused = |outcome: Result<_, toolbus::BrokerError>| outcome.map(drop).expect_err("refused").code();
    assert_eq!(refused(bob.deliver("ann", task(None, "task")).await), Some(ErrorCode::MayNotSend));
    assert_eq!(refused(carl.deliver("bob", task(None, "task")).await), Some(ErrorCode::MayNotSend));
    soon("receipt", carl.deliver("ann", task(None, "task"))).await.expect("its role may");
    assert_eq!(refused(bob.deliver("ann", task(None, "mcp_request")).await), Some(ErrorCode::MayNotSend));
    // ann asks the host; bob answers in its place.
    let request = task(None, "mcp_request");
    let id = request.id.to_string();
    soon("receipt", ann.deliver("host", request)).await.expect("hosts may be asked");
    for kind in ["mcp_reply", "reply"] {
        assert_eq!(refused(bob.deliver("ann", task(Some(&id), kind)).await), Some(ErrorCode::NotYourRequest));
    }
    let refused = soon("an answer", bob.announce(vec![(None, Body::null())])).await.expect_err("no host");
    assert_eq!(refused.code(), Some(ErrorCode::NotAHost), "{refused}");
}

#[tokio::test]
async fn a_worker_s_token_hosts_nothing_and_the_host_ends_with_the_reason() {
    let team = Team::start().await;
    team.add("bob", &["--role", "reader"]).await;
    let me = env!("CARGO_BIN_EXE_toolbus");
    let servers = format!(r#"{{"mcpServers": {{"demo": {{"command": {me:?}, "args": ["demo-server"]}}}}}}"#);
    std::fs::write(team.0.folder.path().join("mine.json"), servers).expect("writable");
    let host = ["host", "--mcp-config", "mine.json", "--token-file", "bob.token"];
    team.0.run(&host).await.check(1, &[], &["TB0217", "toolbus agent add"]);
}

#[tokio::test]
async fn a_revoked_host_offers_nothing_and_is_asked_nothing() {
    let team = Team::start().await;
    let far = team.add("far", &["--host"]).await;
    let bob = soon("bob", connected(&team, &team.add("bob", &["--role", "reader"]).await)).await;
    let host = soon("the host", connected(&team, &far)).await;
    soon("announced", host.announce(vec![(None, Body::null())])).await.expect("a host may");
    let offers = async || {
        let hosts = soon("hosts", bob.hosts(&KnownHosts::new())).await.expect("answered");
        hosts.iter().any(|host| &*host.id == "far")
    };
    assert!(offers().await);
    soon("receipt", bob.deliver("far", task(None, "mcp_request"))).await.expect("hosts may be asked");
    let made_up = bob.deliver("far#1", task(None, "mcp_request")).await.map(drop).expect_err("no mailbox of a host");
    assert_eq!(made_up.code(), Some(ErrorCode::MayNotSend));
    team.0.run(&["agent", "revoke", "far"]).await.check(0, &[], &[]);
    soon("its end", async { while offers().await {} }).await;
    let refused = bob.deliver("far", task(None, "mcp_request")).await.map(drop).expect_err("no host any more");
    assert_eq!(refused.code(), Some(ErrorCode::MayNotSend));
}

#[tokio::test]
async fn names_of_agents_in_the_brokers_process_are_nobody_elses() {
    let team = Team::start().await;
    for (name, options) in [("loopback", ["--role", "reader"]), ("host2", ["--role", "reader"])] {
        let token = team.add(name, &options).await;
        let outcome = team.client(&token, "~").await.map(drop).map_err(|error| error.code());
        let expected = if name == "loopback" { Err(Some(ErrorCode::NotYourName)) } else { Ok(()) };
        assert_eq!(outcome, expected, "{name}");
    }
    let host = team.client(&team.data().join("host.token"), "~").await.map(drop).expect_err("it is in use");
    assert_eq!(host.code(), Some(ErrorCode::NotYourName), "{host}");
}

#[tokio::test]
async fn an_operator_reads_the_dead_letters_of_others_and_says_nothing_in_their_name() {
    let team = Team::start().await;
    team.add("bob", &["--role", "reader"]).await;
    let operator = team.data().join("operator.token");
    let reader = team.client(&operator, "bob#dead").await.expect("to read");
    let refused = reader.deliver("bob", task(None, "task")).await.map(drop).expect_err("not as bob");
    assert_eq!(refused.code(), Some(ErrorCode::MayNotSend));
    let own = team.client(&operator, "~#dead").await.expect("its own");
    assert_eq!(&*own.me().session_id, "operator#dead");
    let refused = team.client(&operator, "bob").await.map(drop).expect_err("not bob");
    assert_eq!(refused.code(), Some(ErrorCode::NotYourName));
}

#[tokio::test]
async fn over_http_a_token_is_its_agent_and_its_streams_end_with_it() {
    let team = Team::start().await;
    let bob = team.add("bob", &["--role", "reader"]).await;
    let token = std::fs::read_to_string(&bob).expect("written above");
    let client = soon("the token is known", connected(&team, &bob)).await;
    let answer = initialize(&team, &token).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let session = answer.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).expect("a session").to_owned();
    let mut stream = TcpStream::connect(team.0.address()).await.expect("it listens");
    let head = format!(
        "GET /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nMcp-Session-Id: {session}\r\nAccept: \
         text/event-stream\r\nConnection: close\r\n\r\n",
        team.0.address()
    );
    stream.write_all(head.as_bytes()).await.expect("open");
    let mut line = String::new();
    let mut reader = BufReader::new(stream);
    soon("the stream begins", reader.read_line(&mut line)).await.expect("text");
    assert!(line.contains("200"), "{line}");
    team.0.run(&["agent", "revoke", "bob"]).await.check(0, &[], &[]);
    let asked = Instant::now();
    let mut rest = Vec::new();
    soon("the stream ends", reader.read_to_end(&mut rest)).await.ok();
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    let refused = initialize(&team, &token).await;
    assert!(refused.starts_with("HTTP/1.1 401") && refused.contains("TB01"), "{refused}");
    drop(client);
}

async fn initialize(team: &Team, token: &str) -> String {
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
    let address = team.0.address();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut socket = TcpStream::connect(address).await.expect("it listens");
    socket.write_all(head.as_bytes()).await.expect("open");
    let mut answer = Vec::new();
    soon("the answer", socket.read_to_end(&mut answer)).await.expect("readable");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn hole_13_one_secret_for_all_is_for_this_machine_only_and_said_loudly() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("shared"), TOKEN).expect("writable");
    let shared = ["--shared-token-file", "shared"];
    refuses_to_start(&folder, &[&["--listen", "0.0.0.0:0"], &shared[..]].concat(), "loopback").await;
    refuses_to_start(&folder, &["--listen", "0.0.0.0:0"], "--insecure").await;
    let place = Place::start_in(folder, &shared).await;
    assert!(place.said.contains("WARNING") && place.said.contains("shared"), "{}", place.said);
}

async fn refuses_to_start(folder: &TempDir, args: &[&str], why: &str) {
    let mut command = toolbus(folder.path());
    command.arg("up").args(args).stdin(Stdio::null());
    let said = Said::of(soon("it gives up", command.output()).await.expect("the binary starts"));
    said.check(1, &[], &[why]);
}
