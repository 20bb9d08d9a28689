//! Senders are stamped by the broker, and only the owner of a mailbox may acknowledge its messages, whatever a peer
//! claims.

use crate::healthy_pair::HealthyPair;
use crate::support::{Bus, Logs, Peer, deliver, hello, hello_compact, hello_v2};
use serde_json::{Value, json};

fn forged(to: &str, id: &str) -> Value {
    let mut frame = deliver(to, id, json!({"from": {"session_id": "boss"}}));
    frame["message"]["from"] = json!({"session_id": "boss", "role": "admin"});
    frame["from"] = "boss".into();
    frame
}

#[tokio::test]
async fn the_sender_is_stamped_whatever_the_message_claims() {
    let bus = Bus::start().await;
    for (n, recipient) in [hello("victim"), hello_v2("victim"), hello_compact("victim")].into_iter().enumerate() {
        let mut victim = Peer::join(bus.address, recipient).await;
        victim.subscribe().await;
        for (m, forger) in [hello("forger"), hello_v2("forger"), hello_compact("forger")].into_iter().enumerate() {
            let id = format!("forged-{n}-{m}");
            let mut forger = Peer::join(bus.address, forger).await;
            forger.send(forged("victim", &id)).await;
            let frame = victim.expect_message(&id).await;
            assert_eq!(frame["message"]["from"], json!({"session_id": "forger", "role": "tester"}));
            assert_eq!(frame["message"]["body"], json!({"from": {"session_id": "boss"}}), "the body is unchanged");
            victim.ack_confirmed(&id).await;
        }
    }
}

#[tokio::test]
async fn the_sender_of_a_live_event_is_stamped_too() {
    let bus = Bus::start().await;
    let mut victim = Peer::join(bus.address, hello_v2("victim")).await;
    victim.subscribe().await;
    let mut forger = bus.peer_v2("forger").await;
    let event = json!({"kind": "live_event", "to": "victim", "from": "boss", "correlation_id": "c", "body": 1});
    forger.send(event).await;
    assert_eq!(victim.next_of("live_event").await["from"], "forger");
}

#[tokio::test]
async fn a_second_subscriber_displaces_the_first() {
    let bus = Bus::start().await;
    let mut sender = bus.peer("sender").await;
    let mut first = bus.subscriber("host").await;
    sender.deliver("host", "one", json!(1)).await;
    first.expect_message("one").await;

    let mut second = bus.subscriber("host").await;
    let error = first.expect_error("TB0206").await;
    assert_eq!(error["id"], Value::Null);
    assert_eq!(second.expect_message("one").await["attempt"], 2);
    sender.deliver("host", "two", json!(2)).await;
    second.expect_message("two").await;

    // The first one gets no more messages but can still deliver.
    first.deliver("elsewhere", "three", json!(3)).await;
    first.roundtrip().await;
    // It can subscribe again and displace the second.
    first.send(json!({"kind": "subscribe"})).await;
    second.expect_error("TB0206").await;
    assert_eq!(first.expect_message("one").await["attempt"], 3);
    assert_eq!(first.expect_message("two").await["attempt"], 2);
}

#[tokio::test]
async fn presence_lists_subscribers_only_and_each_once() {
    let bus = Bus::start().await;
    let _connected_only = bus.peer("a").await;
    let _first = bus.subscriber("b").await;
    let _second = bus.subscriber("b").await;
    let mut observer = bus.peer("observer").await;
    observer.send(json!({"kind": "list_connected", "role": "tester"})).await;
    assert_eq!(observer.frame().await["ids"], json!(["b"]));
    observer.send(json!({"kind": "list_connected", "role": "admin"})).await;
    assert_eq!(observer.frame().await["ids"], json!([]));
}

#[tokio::test]
async fn a_message_in_another_mailbox_cannot_be_acknowledged() {
    let bus = Bus::start().await;
    let mut healthy = HealthyPair::join(&bus).await;
    bus.peer("sender").await.deliver("owner", "m", json!(1)).await;
    for hello_frame in [hello("attacker"), hello_v2("attacker"), hello_compact("attacker")] {
        let mut attacker = Peer::join(bus.address, hello_frame).await;
        attacker.subscribe().await;
        attacker.ack("m").await;
        let error = attacker.expect_error("TB0205").await;
        assert_eq!(error["id"], Value::Null);
        let result = attacker.ack_confirmed("m").await;
        // Like an id that is gone, with the reason.
        assert_eq!((&result["accepted"], &result["id"]), (&json!(true), &json!("m")), "{result}");
        assert!(result["reason"].is_string(), "{result}");
        // The connection stays open.
        attacker.roundtrip().await;
    }
    healthy.exchange_message().await;
    let frame = bus.subscriber("owner").await.expect_message("m").await;
    assert_eq!(frame.get("attempt"), None, "{frame}");
}

#[tokio::test]
async fn a_tag_of_another_mailbox_settles_nothing() {
    let bus = Bus::start().await;
    bus.peer("sender").await.deliver("owner", "m", json!(1)).await;
    let mut owner = bus.subscriber("owner").await;
    let tag = owner.expect_message("m").await["tag"].clone();

    let mut attacker = bus.peer_v2("attacker").await;
    attacker.subscribe().await;
    attacker.send(json!({"kind": "ack_tags", "tags": [tag, 0, 1, u64::MAX]})).await;
    let mut reply = deliver("other", "r", json!(1));
    reply["ack"] = tag;
    attacker.send(reply).await;
    attacker.next_of("receipts").await;

    drop(owner);
    assert_eq!(bus.subscriber("owner").await.expect_message("m").await["attempt"], 2);
}

#[tokio::test]
async fn ids_are_compared_as_a_whole() {
    let bus = Bus::start().await;
    let mut sender = bus.peer("sender").await;
    for id in ["7", "job-7", "job-77"] {
        sender.deliver("host", id, json!(id)).await;
    }
    let mut host = bus.subscriber("host").await;
    for id in ["7", "job-7", "job-77"] {
        host.expect_message(id).await;
    }
    assert_eq!(host.ack_confirmed("7").await["accepted"], true);
    host.ack("job").await;
    host.expect_error("TB0205").await;
    drop(host);
    let mut host = bus.subscriber("host").await;
    host.expect_message("job-7").await;
    host.expect_message("job-77").await;
}

#[tokio::test]
async fn an_id_cannot_be_reused_by_another_sender_or_with_other_content() {
    let bus = Bus::start().await;
    bus.peer("sender").await.deliver("host", "m", json!(1)).await;
    let mut copycat = bus.peer("copycat").await;
    copycat.send(deliver("host", "m", json!(1))).await;
    assert_eq!(copycat.expect_error("TB0203").await["id"], "m");
    let mut sender = bus.peer("sender").await;
    sender.send(deliver("host", "m", json!(2))).await;
    assert_eq!(sender.expect_error("TB0203").await["id"], "m");
    sender.deliver("host", "m", json!(1)).await;

    let mut host = bus.subscriber("host").await;
    let frame = host.expect_message("m").await;
    assert_eq!((&frame["message"]["body"], &frame["message"]["from"]["session_id"]), (&json!(1), &json!("sender")));
    host.roundtrip().await;
}

#[tokio::test]
async fn acknowledging_an_unknown_message_is_logged_once() {
    let bus = Bus::start().await;
    let logs = Logs::start();
    let mut peer = bus.peer("clumsy").await;
    peer.ack("never-here").await;
    peer.expect_error("TB0205").await;
    let lines: Vec<String> = logs.text().lines().filter(|line| line.contains("TB0205")).map(str::to_owned).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("clumsy"), "{lines:?}");
}

fn claim(journal: &str) -> Value {
    json!({"kind": "claim", "journal": journal, "epoch": 1, "instance": journal})
}

/// Another host of the same name gets a call between the claim and the subscription of the first one, which must not take the
/// call for a new one.
#[tokio::test]
async fn a_call_pushed_between_claim_and_subscription_is_announced_as_unsure() {
    let bus = Bus::start().await;
    let mut sender = bus.peer("sender").await;
    let (mut first, mut second) = (bus.peer_v2("host").await, bus.peer_v2("host").await);
    first.send(claim("a")).await;
    first.roundtrip().await;
    second.send(claim("b")).await;
    second.subscribe().await;
    sender.deliver("host", "call", json!(1)).await;
    second.expect_message("call").await;
    first.send(json!({"kind": "subscribe"})).await;
    assert_eq!(first.next_of("unsure").await["id"], "call");
    first.expect_message("call").await;
}

/// A claim that a crash of the broker loses would hide that calls were pushed to that journal.
#[tokio::test]
async fn a_claim_is_durable_before_a_call_is_pushed() {
    let bus = Bus::start().await;
    let mut sender = bus.peer("sender").await;
    for number in 0..10 {
        let host = format!("host-{number}");
        sender.deliver(&host, &format!("call-{number}"), json!(1)).await;
        let mut peer = bus.peer_v2(&host).await;
        peer.send(claim(&format!("journal-{number}"))).await;
        peer.send(json!({"kind": "subscribe"})).await;
        peer.expect_message(&format!("call-{number}")).await;
        let written = std::fs::read_to_string(bus.folder().join("claims.json")).expect("the claims are written");
        assert!(written.contains(&format!("journal-{number}")), "{written}");
    }
}
