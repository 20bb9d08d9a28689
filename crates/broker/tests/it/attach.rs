//! In-process bus connections: served like others, with the given identity, and counted towards the connection limit.

use crate::support::{Bus, Setup, within};
use serde_json::{Value, json};
use std::future::poll_fn;
use toolbus_broker::{BrokerError, ServerOptions};
use toolbus_protocol::{
    AgentRef, Body, BrokerFrame, ClientFrame, ClientLink, Deliver, ErrorCode, Hello, InboxMessage, MsgId,
    json as framing,
};

fn attach(bus: &Bus, agent: AgentRef) -> Result<ClientLink, BrokerError> {
    bus.server().attach(agent)
}

async fn next(link: &ClientLink) -> Option<BrokerFrame> {
    within("a frame", poll_fn(|cx| link.poll_receive(cx))).await
}

/// The error that the connection is closed with.
async fn refusal(link: &ClientLink) -> Option<ErrorCode> {
    loop {
        if let BrokerFrame::Error(refusal) = next(link).await? {
            assert_eq!(next(link).await, None, "the link is closed");
            return refusal.code;
        }
    }
}

fn deliver(to: &str, id: &str, body: Body) -> ClientFrame {
    let mut message = InboxMessage::new(AgentRef::new("forged"), "task", body);
    message.id = MsgId::from(id);
    let envelope = message.seal();
    ClientFrame::Deliver(Deliver { to: to.into(), envelope, deadline_ms: None, ack: None, age_ms: None })
}

fn number() -> Body {
    Body::parse("1").expect("JSON")
}

#[tokio::test]
async fn the_identity_is_the_given_one_and_not_the_claimed_one() {
    let bus = Bus::start().await;
    let mut watcher = bus.subscriber("watcher").await;
    let local = attach(&bus, AgentRef::new("inside").with_role("worker")).expect("a permit");
    assert!(matches!(next(&local).await, Some(BrokerFrame::Welcome(_))));
    local.send(deliver("watcher", "m1", number()));
    let message = watcher.expect_message("m1").await;
    assert_eq!(message["message"]["from"], json!({"session_id": "inside", "role": "worker"}));
}

#[tokio::test]
async fn frames_of_an_in_process_connection_are_checked_like_decoded_ones() {
    let server = ServerOptions { max_frame_bytes: 100 << 10, ..ServerOptions::default() };
    let bus = Bus::with(Setup { server, ..Setup::default() }).await;
    let large = Body::parse(Value::from("x".repeat(200 << 10)).to_string()).expect("JSON");
    let cancel = ClientFrame::Cancel { to: "../x".into(), correlation_id: "c".into(), request_id: None };
    let hello =
        framing::read_client(br#"{"kind":"hello","agent":{"session_id":"boss"},"token":"t"}"#).expect("a frame");
    assert!(matches!(hello, ClientFrame::Hello(Hello { .. })));
    let cases = [
        (deliver("../x", "m1", number()), ErrorCode::BadName),
        (deliver("watcher", "a/../b", number()), ErrorCode::BadName),
        (deliver("watcher", "m2", large), ErrorCode::FrameTooLarge),
        (cancel, ErrorCode::BadName),
        (hello, ErrorCode::AlreadyGreeted),
    ];
    for (frame, expected) in cases {
        let local = attach(&bus, AgentRef::new("inside")).expect("a permit");
        local.send(frame.clone());
        assert_eq!(refusal(&local).await, Some(expected), "{frame:?}");
    }
}

/// The window bounds what the broker sends to a peer that does not read, and the link what it sends to the broker.
#[tokio::test]
async fn an_in_process_peer_that_does_not_read_is_not_sent_more_than_the_link_holds() {
    let bus = Bus::start().await;
    let local = attach(&bus, AgentRef::new("inside")).expect("a permit");
    local.send(ClientFrame::Subscribe);
    let body = || Body::parse(Value::from("x".repeat(100 << 10)).to_string()).expect("JSON");
    let sender = attach(&bus, AgentRef::new("sender")).expect("a permit");
    for n in 0..20 {
        sender.send(deliver("inside", &format!("m{n}"), body()));
        within("room to send", poll_fn(|cx| sender.poll_flush(cx))).await.expect("the link is open");
    }
    let mut received = 0;
    while received < 20 {
        if let BrokerFrame::Message(push) = next(&local).await.expect("the link is open") {
            assert_eq!(&*push.envelope.id, format!("m{received}").as_str());
            received += 1;
        }
    }
}

#[tokio::test]
async fn an_in_process_connection_holds_a_permit_until_it_ends() {
    let server = ServerOptions { max_connections: 1, ..ServerOptions::default() };
    let bus = Bus::with(Setup { server, ..Setup::default() }).await;
    let first = attach(&bus, AgentRef::new("first")).expect("a permit");
    assert!(matches!(attach(&bus, AgentRef::new("second")), Err(BrokerError::NoSeat)));
    drop(first);
    within("the released permit", async {
        while attach(&bus, AgentRef::new("second")).is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(matches!(attach(&bus, AgentRef::new("../x")), Err(BrokerError::BadName(_))));
}
