//! Regression tests for the known holes of the original that concern a broker, by their numbers. Each test fails if its
//! guard is removed; the other test files cover the same behaviour in detail.

use crate::support::{
    Bus, Credentials, Framing, HOST, Logs, OPERATOR, Peer, Seen, Setup, TOKEN, WORKER, deliver, hello, hello_as,
    request, upgrade_request, within,
};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use toolbus_broker::{CoreOptions, ServerOptions};
use toolbus_engine::EngineOptions;

async fn bus_with_credentials() -> (Bus, Credentials) {
    let credentials = Credentials::default()
        .add("worker", "reader", WORKER)
        .add("attacker", "reader", WORKER)
        .add("host", "host", HOST)
        .add("operator", "operator", OPERATOR);
    (Bus::with_credentials(Setup::default(), &credentials).await, credentials)
}

async fn join(bus: &Bus, name: &str) -> Peer {
    Peer::join(bus.address, hello_as(name, "~", None, Framing::Json)).await
}

async fn subscriber(bus: &Bus, name: &str) -> Peer {
    let mut peer = join(bus, name).await;
    peer.subscribe().await;
    peer
}

fn of_kind(kind: &str, to: &str, id: &str, correlation: &str) -> Value {
    let mut frame = deliver(to, id, json!(1));
    frame["message"]["kind"] = kind.into();
    frame["message"]["correlation_id"] = correlation.into();
    frame
}

#[tokio::test]
async fn hole_01_sender_and_role_come_from_the_credential() {
    let (bus, _) = bus_with_credentials().await;
    let mut host = subscriber(&bus, "host").await;
    let mut worker = join(&bus, "worker").await;
    let mut request = of_kind("mcp_request", "host", "q", "c");
    request["message"]["from"] = json!({"session_id": "operator", "role": "operator"});
    worker.send(request).await;
    let seen = host.expect_message("q").await;
    worker.next_of("delivered").await;
    assert_eq!(seen["message"]["from"], json!({"session_id": "worker", "role": "reader"}), "{seen}");
    for (claimed, role, code) in [("operator", None, "TB0114"), ("worker", Some("operator"), "TB0115")] {
        let mut impostor = Peer::connect(bus.address).await;
        impostor.send(hello_as("worker", claimed, role, Framing::Json)).await;
        impostor.expect_error(code).await;
    }
    worker.send(deliver("operator", "m", json!(1))).await;
    worker.expect_error("TB0216").await;
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path());
    let below = |path: PathBuf| if path.is_dir() { files_below(&path) } else { vec![path] };
    let mut files: Vec<PathBuf> = entries.flat_map(below).collect();
    files.sort();
    files
}

#[tokio::test]
async fn hole_02_names_and_ids_are_never_used_as_paths() {
    let outside = tempfile::TempDir::new().expect("a folder");
    fs::write(outside.path().join("victim"), "still here").expect("writable");
    let inside = tempfile::TempDir::new_in(outside.path()).expect("a folder");
    let bus = Bus::reopen(inside, Setup::default()).await;
    let before = files_below(outside.path());
    for path in ["../victim", "..", "../../victim", "/tmp/victim", "a/../../victim", "..\\victim"] {
        let mut peer = bus.peer("peer").await;
        peer.send(deliver(path, "m", json!(1))).await;
        peer.expect_error("TB0107").await;
        peer.send(deliver("host", path, json!(1))).await;
        peer.expect_error("TB0107").await;
        peer.send(json!({"kind": "ack", "id": path})).await;
        let error = peer.next_of("error").await;
        assert!(matches!(error["code"].as_str(), Some("TB0107" | "TB0205")), "{error}");
        let mut named = Peer::connect(bus.address).await;
        named.send(hello(path)).await;
        named.expect_error("TB0107").await;
    }
    assert_eq!(files_below(outside.path()), before);
    assert_eq!(fs::read_to_string(outside.path().join("victim")).expect("readable"), "still here");
}

#[tokio::test]
async fn hole_03_a_mailbox_is_taken_over_only_with_its_credential() {
    let (bus, _) = bus_with_credentials().await;
    let mut host = subscriber(&bus, "host").await;
    let mut worker = subscriber(&bus, "worker").await;
    worker.send(of_kind("mcp_request", "host", "q", "c")).await;
    host.expect_message("q").await;
    // Another agent can neither claim the name nor forge a reply.
    let mut attacker = Peer::connect(bus.address).await;
    attacker.send(hello_as("attacker", "host", None, Framing::Json)).await;
    attacker.expect_error("TB0114").await;
    let mut attacker = subscriber(&bus, "attacker").await;
    attacker.send(of_kind("mcp_reply", "worker", "forged", "q")).await;
    attacker.expect_error("TB0215").await;
    // The same credential displaces the first subscriber.
    let mut second = subscriber(&bus, "host").await;
    host.expect_error("TB0206").await;
    host.expect_close("TB0206").await;
    assert_eq!(second.expect_message("q").await["attempt"], 2);
    second.send(of_kind("mcp_reply", "worker", "r", "q")).await;
    let reply = worker.next_of("message").await;
    assert_eq!((&reply["message"]["id"], &reply["message"]["from"]["session_id"]), (&json!("r"), &json!("host")));
}

/// The test with few file descriptors is in the `toolbus` crate.
#[tokio::test]
async fn hole_07_silent_sockets_do_not_block_new_connections() {
    let server =
        ServerOptions { max_unknown_peers: 4, hello_timeout: Duration::from_millis(300), ..ServerOptions::default() };
    let bus = Bus::with(Setup { server, ..Setup::default() }).await;
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(TcpStream::connect(bus.address).await.expect("the kernel accepts"));
    }
    within("a free permit", async {
        loop {
            if let Some(mut peer) = Peer::try_connect(bus.address).await {
                peer.send(hello("new")).await;
                if matches!(peer.see().await, Seen::Frame(frame) if frame["kind"] == "welcome") {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    drop(silent);
}

#[tokio::test]
async fn hole_08_large_hellos_and_foreign_origins_are_refused() {
    let bus = Bus::start().await;
    let mut unauthenticated = Peer::connect(bus.address).await;
    unauthenticated.send_text(format!("{}{}", hello("big"), " ".repeat(64 << 10))).await;
    unauthenticated.expect_error("TB0105").await;
    let page = upgrade_request(bus.address, "/bus", "Origin: https://evil.example\r\n");
    let answer = request(bus.address, page).await;
    assert_eq!(answer.status, 403, "{}", answer.body);
    assert!(answer.body.contains("TB0110"), "{}", answer.body);
}

#[tokio::test]
async fn hole_09_unacknowledged_messages_are_bounded_by_the_window() {
    let engine = EngineOptions { window_messages: 8, version1_window_messages: None, ..EngineOptions::default() };
    let core = CoreOptions { engine, ..CoreOptions::default() };
    let bus = Bus::with(Setup { core, ..Setup::default() }).await;
    let mut sender = bus.peer("sender").await;
    let mut live = bus.subscriber("live").await;
    for number in 0..100 {
        sender.deliver("lazy", &number.to_string(), json!(number)).await;
        sender.deliver("live", &number.to_string(), json!(number)).await;
    }
    let pushed = live.drain().await;
    assert_eq!(pushed.iter().filter(|frame| frame["kind"] == "message").count(), 8);
    let mut lazy = bus.subscriber("lazy").await;
    for number in 0..8 {
        lazy.expect_message(&number.to_string()).await;
    }
    sender.deliver("lazy", "one more", json!(1)).await;
    let more = lazy.drain().await;
    assert!(!more.iter().any(|frame| frame["kind"] == "message"), "{more:?}");
    lazy.ack_confirmed("0").await;
    lazy.ack_confirmed("1").await;
    lazy.expect_message("8").await;
}

#[tokio::test]
async fn hole_10_a_silent_connection_is_dropped() {
    let heartbeat = Duration::from_millis(200);
    let server = ServerOptions { heartbeat, ..ServerOptions::default() };
    let bus = Bus::with(Setup { server, ..Setup::default() }).await;
    let silent = bus.subscriber("silent").await.into_tcp();
    let mut observer = bus.peer("observer").await;
    within("the end of the silent connection", async {
        loop {
            observer.send(json!({"kind": "list_connected", "role": "tester"})).await;
            if observer.next_of("connected").await["ids"] == json!([]) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    drop(silent);
}

/// Power loss is tested in the `store` crate, on a simulated disk.
#[tokio::test]
async fn hole_11_a_damaged_record_loses_only_itself() {
    let bus = Bus::start().await;
    let mut sender = bus.peer("sender").await;
    for number in 0..200 {
        sender.deliver("recipient", &format!("m-{number}"), json!("x".repeat(100))).await;
    }
    let folder = bus.stop().await;
    let log = files_below(folder.path())
        .into_iter()
        .max_by_key(|file| fs::metadata(file).map_or(0, |metadata| metadata.len()));
    let log = log.expect("there is a log");
    let mut bytes = fs::read(&log).expect("readable");
    let record = bytes.windows(5).position(|five| five == b"m-100").expect("the record of m-100");
    bytes[record + 60] ^= 1;
    fs::write(&log, bytes).expect("writable");
    let bus = Bus::reopen(folder, Setup::default()).await;
    let mut recipient = bus.subscriber("recipient").await;
    for number in (0..200).filter(|number| *number != 100) {
        recipient.expect_message(&format!("m-{number}")).await;
    }
}

#[tokio::test]
async fn hole_12_an_id_is_compared_as_a_whole_and_names_one_message() {
    let bus = Bus::start().await;
    let mut sender = bus.peer("sender").await;
    for id in ["7", "job-7"] {
        sender.deliver("host", id, json!(id)).await;
    }
    // Same id and time, other content.
    sender.send(deliver("host", "7", json!("other"))).await;
    sender.expect_error("TB0203").await;
    let mut host = bus.subscriber("host").await;
    assert_eq!(host.expect_message("7").await["message"]["body"], "7");
    host.expect_message("job-7").await;
    host.ack_confirmed("7").await;
    drop(host);
    let mut host = bus.subscriber("host").await;
    assert_eq!(host.expect_message("job-7").await["attempt"], 2);
    // The mailbox becomes empty while the next message arrives.
    host.ack_confirmed("job-7").await;
    for number in 0..100 {
        let id = number.to_string() + "!";
        sender.send(deliver("host", &id, json!(number))).await;
        host.expect_message(&id).await;
        host.ack(&id).await;
    }
}

#[tokio::test]
async fn hole_13_revocation_closes_connections_and_no_secret_is_logged() {
    let logs = Logs::start();
    let (bus, credentials) = bus_with_credentials().await;
    let mut attacker = subscriber(&bus, "attacker").await;
    let mut worker = join(&bus, "worker").await;
    let started = Instant::now();
    credentials.revoke("attacker");
    attacker.expect_error("TB0113").await;
    attacker.expect_close("TB0113").await;
    assert!(started.elapsed() < Duration::from_secs(1));
    worker.roundtrip().await;
    let mut wrong = Peer::connect(bus.address).await;
    wrong.send(json!({"kind": "hello", "agent": {"session_id": "worker"}, "token": TOKEN})).await;
    wrong.expect_error("TB0103").await;
    let text = logs.text();
    assert!(text.contains("TB0113") && text.contains("TB0103"), "{text}");
    assert!(!text.contains(TOKEN) && !text.contains("secret of"), "{text}");
}
