//! Hosts and their manifests at the broker: manifests by role, change notifications, and renewal after a reconnect.

use crate::support::{Cutter, TOKEN, TestBus, connect, soon};
use std::time::Duration;
use toolbus::{AgentRef, Body, BrokerClient, ClientOptions, ErrorCode, HostEntry, KnownHosts};
use toolbus_protocol::Framing;

fn manifest(text: &str) -> Body {
    Body::parse(text.to_owned()).expect("JSON")
}

async fn client(url: &str, name: &'static str, role: Option<&'static str>, framing: Framing) -> BrokerClient {
    let agent = AgentRef { session_id: name.into(), role: role.map(Into::into) };
    let quick = Duration::from_millis(20);
    let options = ClientOptions { framing, backoff: quick, longest_backoff: quick, ..ClientOptions::default() };
    BrokerClient::connect_with(url, agent, TOKEN, options).await.expect("a connection")
}

async fn hosts(client: &BrokerClient) -> Vec<HostEntry> {
    soon("hosts", client.hosts(&KnownHosts::new())).await.expect("answered")
}

/// Polls the hosts until the condition holds.
async fn until(client: &BrokerClient, what: &str, right: impl Fn(&[HostEntry]) -> bool) {
    soon(what, async {
        while !client.hosts(&KnownHosts::new()).await.is_ok_and(|hosts| right(&hosts)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// The number of connections of that agent.
async fn connections(client: &BrokerClient, name: &str) -> usize {
    let status = soon("the status", client.status()).await.expect("answered");
    status.connections.iter().filter(|connection| *connection.agent.session_id == *name).count()
}

#[tokio::test]
async fn each_role_sees_its_own_manifest_or_the_default_or_none() {
    for framing in [Framing::Compact, Framing::Json] {
        let bus = TestBus::start().await;
        let open = client(&bus.url(), "open", None, framing).await;
        let closed = client(&bus.url(), "closed", None, framing).await;
        let common = vec![(None, manifest(r#"{ "n": 1.0 }"#)), (Some("boss".to_owned()), manifest("[2]"))];
        soon("announced", open.announce(common)).await.expect("accepted");
        soon("announced", closed.announce(vec![(Some("boss".to_owned()), manifest("3"))])).await.expect("accepted");
        for (role, expected) in [
            (Some("boss"), vec![("open", "[2]"), ("closed", "3")]),
            (Some("worker"), vec![("open", r#"{ "n": 1.0 }"#)]),
            (None, vec![("open", r#"{ "n": 1.0 }"#)]),
        ] {
            let asking = client(&bus.url(), "asking", role, framing).await;
            let hosts = hosts(&asking).await;
            let seen: Vec<_> =
                hosts.iter().map(|host| (&*host.id, host.manifest.clone().expect("it is new"))).collect();
            let expected: Vec<_> = expected.into_iter().map(|(id, text)| (id, manifest(text))).collect();
            assert_eq!(seen, expected, "{role:?}");
            assert!(hosts.iter().all(|host| host.online));
            let known: KnownHosts = hosts.iter().map(|host| (host.id.to_string(), host.version)).collect();
            let again = soon("hosts", asking.hosts(&known)).await.expect("answered");
            assert!(again.len() == hosts.len() && again.iter().all(|host| host.manifest.is_none()), "{again:?}");
        }
        soon("withdrawn", open.announce(vec![])).await.expect("done");
        assert!(
            hosts(&closed).await.is_empty(),
            "one has no manifest for this role, the other has withdrawn its manifests"
        );
        bus.stop().await;
    }
}

#[tokio::test]
async fn watchers_are_notified_when_hosts_connect_announce_and_disconnect() {
    let bus = TestBus::start().await;
    let watching = bus.client("watching").await;
    let mut watch = watching.watch_hosts();
    assert!(hosts(&watching).await.is_empty());
    let host = bus.client("host").await;
    for number in 1..=3u64 {
        soon("announced", host.announce(vec![(None, Body::of(&number).expect("a number"))])).await.expect("accepted");
        soon("a change", watch.changed()).await.expect("open");
        let hosts = hosts(&watching).await;
        assert_eq!(hosts[0].manifest.as_ref().map(|manifest| manifest.to::<u64>().expect("a number")), Some(number));
    }
    host.close().await;
    soon("a change", watch.changed()).await.expect("open");
    until(&watching, "the host is away and still listed", |hosts| {
        hosts.len() == 1 && !hosts[0].online && hosts[0].manifest.is_some()
    })
    .await;
    drop(watching);
    soon("the end of the watch", async { while watch.changed().await.is_some() {} }).await;
    bus.stop().await;
}

#[tokio::test]
async fn announcements_and_watches_are_renewed_after_a_reconnect() {
    let bus = TestBus::start().await;
    let cutter = Cutter::start(bus.address).await;
    let host = client(&cutter.url(), "host", None, Framing::Compact).await;
    let asking = client(&cutter.url(), "asking", None, Framing::Compact).await;
    let outside = bus.client("outside").await;
    soon("announced", host.announce(vec![(None, manifest("1"))])).await.expect("accepted");
    let mut watch = asking.watch_hosts();
    let mut connection = 1;
    for round in 0..3u64 {
        cutter.cut();
        connection = soon("a new connection", host.next_connection(connection)).await.expect("open");
        // Answered on the new connection, so the broker knows it; the cut one may still be there.
        hosts(&host).await;
        soon("the end of the cut connection", async {
            while connections(&outside, "host").await > 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        until(&outside, "the host is back", |hosts| hosts[0].online).await;
        soon("a notification after the reconnect", watch.changed()).await.expect("open");
        until(&asking, "the watch is renewed", |hosts| hosts.len() == 1).await;
        let body = Body::of(&round).expect("a number");
        let other = bus.client("other").await;
        soon("announced", other.announce(vec![(None, body)])).await.expect("accepted");
        soon("a change", async {
            while hosts(&asking).await.len() < 2 {
                watch.changed().await.expect("open");
            }
        })
        .await;
        soon("withdrawn", other.announce(vec![])).await.expect("done");
        until(&asking, "one host", |hosts| hosts.len() == 1).await;
    }
    bus.stop().await;
}

#[tokio::test]
async fn manifests_larger_than_one_response_arrive_in_several() {
    let bus = TestBus::start().await;
    let mut all = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let host = connect(&bus.url(), name, Framing::Compact).await;
        let large = Body::of(&name.repeat(5 << 20)).expect("a string");
        soon("announced", host.announce(vec![(None, large)])).await.expect("accepted");
        all.push(host);
    }
    let hosts = hosts(&all[0]).await;
    let sizes: Vec<_> =
        hosts.iter().map(|host| host.manifest.as_ref().map(|manifest| manifest.as_bytes().len())).collect();
    assert_eq!(sizes, [Some((5 << 20) + 2); 4]);
    bus.stop().await;
}

#[tokio::test]
async fn manifests_beyond_the_limits_are_rejected() {
    let bus = TestBus::start().await;
    let host = bus.client("host").await;
    let large = Body::of(&"x".repeat(8 << 20)).expect("a string");
    let many = (0..65).map(|role| (Some(format!("r{role}")), manifest("1"))).collect();
    let twice = vec![(None, manifest("1")), (None, manifest("2"))];
    for manifests in [vec![(None, large)], many, twice] {
        let refused = soon("refusal", host.announce(manifests)).await.expect_err("beyond the limit");
        assert_eq!(refused.code(), Some(ErrorCode::ManifestRefused), "{refused}");
    }
    let forged = Body::from_trusted("1}],\"x\":[{\"y\":2".into());
    soon("refusal", host.announce(vec![(None, forged)])).await.expect_err("not JSON");
    assert!(hosts(&host).await.is_empty());
    soon("announced", host.announce(vec![(None, manifest("1"))])).await.expect("within the limits");
    bus.stop().await;
}
