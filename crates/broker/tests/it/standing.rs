//! Consequences of a credential: expiry and revocation, displaced subscribers, identity and window in `welcome`, send
//! rules, and host status.

use crate::support::{Bus, Credentials, Framing, HOST, OPERATOR, Peer, Seen, Setup, WORKER, deliver, hello_as, within};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::net::TcpSocket;
use toolbus_broker::{AuthRefusal, Authenticator, Credential, DenyAll, Identity, SendRules, ServerOptions, Standing};
use toolbus_protocol::AgentRef;

const FRAMINGS: [Framing; 2] = [Framing::Json, Framing::Compact];

fn credentials() -> Credentials {
    Credentials::default().add("w", "worker", WORKER).add("h", "host", HOST).add("op", "operator", OPERATOR)
}

async fn join(bus: &Bus, name: &str, claimed: &str, framing: Framing) -> Peer {
    Peer::join(bus.address, hello_as(name, claimed, None, framing)).await
}

async fn subscriber(bus: &Bus, name: &str) -> Peer {
    let mut peer = join(bus, name, "~", Framing::Json).await;
    peer.subscribe().await;
    peer
}

fn of_kind(kind: &str, to: &str, id: &str, correlation: Option<&str>) -> Value {
    let mut frame = deliver(to, id, json!(1));
    frame["message"]["kind"] = kind.into();
    if let Some(correlation) = correlation {
        frame["message"]["correlation_id"] = correlation.into();
    }
    frame
}

#[tokio::test]
async fn a_revoked_peer_is_closed_within_a_second_and_refused_afterwards() {
    for framing in FRAMINGS {
        let credentials = credentials();
        let bus = Bus::with_credentials(Setup::default(), &credentials).await;
        let mut first = join(&bus, "w", "~", framing).await;
        let mut second = join(&bus, "w", "w#2", framing).await;
        let mut other = join(&bus, "op", "~", framing).await;
        let started = Instant::now();
        credentials.revoke("w");
        for peer in [&mut first, &mut second] {
            peer.expect_error("TB0113").await;
            peer.expect_close("TB0113").await;
        }
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        other.roundtrip().await;
        let mut again = Peer::connect(bus.address).await;
        again.send(hello_as("w", "~", None, framing)).await;
        again.expect_error("TB0103").await;
    }
}

/// The released connection permit proves that the socket is closed, although the peer did not read.
#[tokio::test]
async fn a_revoked_peer_that_does_not_read_is_closed_within_a_second() {
    let credentials = credentials();
    let server = ServerOptions { max_connections: 2, ..ServerOptions::default() };
    let bus = Bus::with_credentials(Setup { server, ..Setup::default() }, &credentials).await;
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(16 << 10).expect("a small buffer");
    let socket = socket.connect(bus.address).await.expect("the broker accepts");
    let mut non_reader = Peer::upgrade(socket, bus.address, b"").await;
    non_reader.send(hello_as("w", "~", None, Framing::Json)).await;
    assert_eq!(non_reader.frame().await["kind"], "welcome");
    non_reader.subscribe().await;
    let mut operator = join(&bus, "op", "~", Framing::Json).await;
    // More than the socket buffers hold.
    for number in 0..16 {
        operator.deliver("w", &number.to_string(), json!("x".repeat(1 << 20))).await;
    }
    let non_reader = non_reader.into_tcp();
    let started = Instant::now();
    credentials.revoke("w");
    within("the released permit", async {
        loop {
            let mut next = match tokio::time::timeout(Duration::from_secs(1), Peer::try_connect(bus.address)).await {
                Ok(Some(next)) => next,
                _ => continue,
            };
            next.send(hello_as("h", "~", None, Framing::Json)).await;
            if let Seen::Frame(_) = next.see().await {
                return;
            }
        }
    })
    .await;
    assert!(started.elapsed() < Duration::from_millis(1100), "{:?}", started.elapsed());
    drop(non_reader);
}

#[tokio::test]
async fn an_expired_credential_closes_its_connections_and_loses_no_message() {
    for framing in FRAMINGS {
        let soon = Standing::until(SystemTime::now() + Duration::from_millis(300));
        let credentials = credentials().add_until("brief", "worker", WORKER, soon);
        let bus = Bus::with_credentials(Setup::default(), &credentials).await;
        let mut brief = join(&bus, "brief", "~", framing).await;
        brief.send(json!({"kind": "subscribe"})).await;
        join(&bus, "op", "~", Framing::Json).await.deliver("brief", "m", json!(1)).await;
        brief.expect_message("m").await;
        let started = Instant::now();
        brief.expect_error("TB0112").await;
        brief.expect_close("TB0112").await;
        assert!(started.elapsed() < Duration::from_millis(1300), "{:?}", started.elapsed());
        let _renewed = credentials.clone().add("brief", "worker", WORKER);
        subscriber(&bus, "brief").await.expect_message("m").await;
    }
}

#[tokio::test]
async fn a_displaced_connection_is_closed_and_the_new_one_gets_its_messages() {
    for framing in FRAMINGS {
        let bus = Bus::with_credentials(Setup::default(), &credentials()).await;
        let mut first = join(&bus, "w", "~", framing).await;
        first.subscribe().await;
        join(&bus, "op", "~", Framing::Json).await.deliver("w", "m", json!(1)).await;
        first.expect_message("m").await;
        // Another mailbox of the same agent does not displace it.
        let mut other = join(&bus, "w", "~#other", framing).await;
        other.subscribe().await;
        first.roundtrip().await;
        let mut second = subscriber(&bus, "w").await;
        first.expect_error("TB0206").await;
        first.expect_close("TB0206").await;
        assert_eq!(second.expect_message("m").await["attempt"], 2);
        other.roundtrip().await;
    }
}

#[tokio::test]
async fn welcome_has_the_identity_and_the_window_of_the_peer() {
    let bus = Bus::with_credentials(Setup::default(), &credentials()).await;
    for (name, claimed, mailbox, role, window) in [
        ("w", "~#mcp", "w#mcp", "worker", json!([1024, 2 << 20])),
        ("h", "h", "h", "host", json!([8192, 64 << 20])),
        ("op", "~", "op", "operator", json!([1024, 2 << 20])),
    ] {
        let mut peer = Peer::connect(bus.address).await;
        peer.send(hello_as(name, claimed, None, Framing::Compact)).await;
        let welcome = peer.frame().await;
        assert_eq!(welcome["agent"], json!({"session_id": mailbox, "role": role}));
        let limits = &welcome["limits"];
        assert_eq!(json!([limits["window_messages"], limits["window_bytes"]]), window, "{name}");
    }
    let mut long = Peer::connect(bus.address).await;
    long.send(hello_as("op", &format!("~#{}", "n".repeat(254)), None, Framing::Json)).await;
    long.expect_error("TB0107").await;
}

#[tokio::test]
async fn a_host_with_a_shared_token_has_a_larger_window_after_announcing() {
    let bus = Bus::start().await;
    let mut host = bus.compact_peer("host").await;
    host.subscribe().await;
    let mut sender = bus.peer("sender").await;
    for number in 0..1100 {
        sender.send(deliver("host", &format!("m-{number}"), json!(number))).await;
    }
    sender.roundtrip().await;
    let pushed = |frames: Vec<Value>| frames.iter().filter(|frame| frame["kind"] == "message").count();
    assert_eq!(pushed(host.drain().await), 1024);
    host.send(json!({"kind": "announce", "request_id": "a", "manifests": [{"manifest": 1}]})).await;
    for _ in 1024..1100 {
        host.next_of("message").await;
    }
}

struct AllWorkers;

impl SendRules for AllWorkers {
    fn may_message(&self, from_role: Option<&str>, _from_name: &str, _to: &str) -> bool {
        from_role == Some("worker")
    }
}

#[tokio::test]
async fn send_rules_can_change_at_runtime() {
    let bus = Bus::with_credentials(Setup::default(), &credentials()).await;
    let mut worker = join(&bus, "w", "~", Framing::Json).await;
    worker.send(deliver("h", "1", json!(1))).await;
    assert_eq!(worker.expect_error("TB0216").await["id"], "1");
    bus.server().set_send_rules(Arc::new(AllWorkers));
    worker.deliver("h", "2", json!(1)).await;
    bus.server().set_send_rules(Arc::new(DenyAll));
    worker.send(deliver("h", "3", json!(1))).await;
    worker.expect_error("TB0216").await;
    // A duplicate of an accepted message is still recognised.
    worker.deliver("h", "2", json!(1)).await;
}

/// Knows agents only by their tokens, like an external identity provider.
struct ExternalTokens;

impl Authenticator for ExternalTokens {
    fn authenticate(&self, credential: &Credential<'_>) -> Result<Identity, AuthRefusal> {
        let rights = if credential.token == "host" { HOST } else { WORKER };
        let agent = AgentRef::new(credential.claimed.session_id.clone());
        Ok(Identity { agent, rights, standing: Standing::forever(), incarnation: 0 })
    }
}

#[tokio::test]
async fn an_announced_host_gets_requests_also_while_offline() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let bus = Bus::open(folder, Setup::default(), Box::new(ExternalTokens)).await;
    let hello =
        |token: &str, name: &str| json!({"kind": "hello", "version": 2, "agent": {"session_id": name}, "token": token});
    let mut worker = Peer::join(bus.address, hello("worker", "w")).await;
    let mut host = Peer::join(bus.address, hello("host", "h")).await;
    worker.send(of_kind("mcp_request", "h", "1", None)).await;
    worker.expect_error("TB0216").await;
    host.send(json!({"kind": "announce", "request_id": "a", "manifests": [{"manifest": 1}]})).await;
    host.next_of("announced").await;
    worker.send(of_kind("mcp_request", "h", "2", None)).await;
    worker.next_of("receipts").await;
    drop(host);
    worker.send(of_kind("mcp_request", "h", "3", None)).await;
    worker.next_of("receipts").await;
    let mut host = Peer::join(bus.address, hello("host", "h")).await;
    host.send(json!({"kind": "subscribe"})).await;
    host.expect_message("2").await;
    host.send(of_kind("mcp_reply", "w", "r", Some("2"))).await;
    host.next_of("receipts").await;
}
