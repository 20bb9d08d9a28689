//! One effect per call, whatever ends in between.

use crate::crashing::{CrashingHost, Place, begin, safe, server};
use crate::support::{PATIENCE, Rig, Worker, fake, finish, open_host, within};
use serde_json::{Value, json};
use std::sync::Arc;
use toolbus_client::{AgentRef, CallItem, InboxKind, InboxMessage};
use toolbus_journal::Stage;
use toolbus_mcp::{ClientHello, HostReply, HostRequest, raw};
use toolbus_protocol::Body;
use toolbus_upstream::{HostConfig, Replay};

#[track_caller]
fn code(error: &Value) -> &str {
    error["data"]["code"].as_str().unwrap_or_default()
}

/// Every pairing of a client's era with a server's.
const ERAS: [(&str, bool); 4] = [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)];

async fn worker(rig: &Rig, legacy: bool) -> Worker {
    if legacy { rig.legacy("w").await } else { rig.modern("w").await }
}

#[tokio::test]
async fn a_call_that_its_host_did_not_survive_is_unknown_and_never_run_again() {
    for (era, legacy) in ERAS {
        let (rig, place) = (Rig::bus().await, Place::new());
        let host = CrashingHost::start(&rig, &place, vec![fake("one", era)]).await;
        let worker = worker(&rig, legacy).await;
        let call = begin(&worker, "effect", &place.waiting()).await;
        let before = jiff::Timestamp::now();
        place.effects_are(1).await;
        host.crash().await;
        let host = CrashingHost::start(&rig, &place, vec![fake("one", era)]).await;
        let error = finish(call).await.error();
        assert_eq!(code(&error), "TB0420", "{era} {legacy}: {error}");
        let data = &error["data"];
        assert_eq!(
            (&data["outcome"], &data["server"], &data["tool"]),
            (&json!("unknown"), &json!("one"), &json!("effect"))
        );
        assert_eq!(data["attempt"], 1);
        let began: jiff::Timestamp = data["startedAt"].as_str().expect("a time").parse().expect("RFC 3339");
        assert!(began.duration_since(before).as_secs().abs() < 60, "{data}");
        // The host goes on, and so does the tool.
        place.release();
        assert_eq!(worker.tool("one", "effect", place.waiting()).await.text(), "effected");
        place.effects_are(2).await;
        host.crash().await;
        let summary = place.journal().calls();
        assert!(summary.iter().all(|call| matches!(call.stage, Stage::Ended(_))), "{summary:?}");
    }
}

#[tokio::test]
async fn a_call_that_may_run_twice_runs_again_after_its_host_ended() {
    for (era, legacy) in ERAS {
        let (rig, place) = (Rig::bus().await, Place::new());
        let host = CrashingHost::start(&rig, &place, vec![safe(fake("one", era))]).await;
        let worker = worker(&rig, legacy).await;
        let call = begin(&worker, "effect", &place.waiting()).await;
        place.effects_are(1).await;
        host.crash().await;
        place.release();
        let _host = CrashingHost::start(&rig, &place, vec![safe(fake("one", era))]).await;
        assert_eq!(finish(call).await.text(), "effected", "{era} {legacy}");
        place.effects_are(2).await;
    }
}

#[tokio::test]
async fn a_trusted_servers_hint_lets_a_call_run_again_before_the_server_is_read() {
    let trusted = |trust| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fake_server.py");
        let mut server =
            toolbus_upstream::ServerConfig::stdio("one", "python3", &[script, "legacy", "one", "idem_effect"]);
        server.calls.trust_hints = trust;
        server
    };
    for (trust, effects) in [(true, 2), (false, 1)] {
        let (rig, place) = (Rig::bus().await, Place::new());
        let host = CrashingHost::start(&rig, &place, vec![trusted(trust)]).await;
        let worker = rig.legacy("w").await;
        let call = begin(&worker, "idem_effect", &place.waiting()).await;
        place.effects_are(1).await;
        host.crash().await;
        place.release();
        let _host = CrashingHost::start(&rig, &place, vec![trusted(trust)]).await;
        let reply = finish(call).await;
        match trust {
            true => assert_eq!(reply.text(), "effected"),
            false => assert_eq!(code(&reply.error()), "TB0420"),
        }
        place.effects_are(effects).await;
    }
}

/// Another bus has nothing but the worker's word that it sends the request again.
async fn again_elsewhere(place: &Place, message: &InboxMessage, legacy: bool) -> (Value, CrashingHost) {
    let rig = Rig::bus().await;
    let host = CrashingHost::start(&rig, place, vec![server()]).await;
    let worker = worker(&rig, legacy).await;
    let mut call = worker.bus.start_call("host", message.clone(), PATIENCE).await.expect("a call");
    let reply = match within("a reply", call.next()).await {
        Some(CallItem::Reply(reply)) => reply.expect("a reply"),
        other => panic!("{other:?}"),
    };
    let body: Value = reply.body.to().expect("JSON");
    (json!({"id": reply.id.as_str(), "body": body}), host)
}

#[tokio::test]
async fn an_answered_call_gets_the_same_answer_under_the_same_id() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let host = CrashingHost::start(&rig, &place, vec![server()]).await;
    let worker = rig.legacy("w").await;
    let message = worker.request("one", "tools/call", json!({"name": "effect", "arguments": place.quick()}));
    let mut call = worker.bus.start_call("host", message.clone(), PATIENCE).await.expect("a call");
    let first = match within("a reply", call.next()).await {
        Some(CallItem::Reply(reply)) => reply.expect("a reply"),
        other => panic!("{other:?}"),
    };
    host.crash().await;
    for _ in 0..2 {
        let (again, host) = again_elsewhere(&place, &message, true).await;
        assert_eq!(again["id"], first.id.as_str());
        assert_eq!(again["body"], first.body.to::<Value>().expect("JSON"));
        host.crash().await;
    }
    place.effects_are(1).await;

    let mut other = message.clone();
    other.body = worker.request("one", "tools/call", json!({"name": "effect", "arguments": place.waiting()})).body;
    let (refused, _host) = again_elsewhere(&place, &other, true).await;
    assert_eq!(code(&refused["body"]["rpc"]["error"]), "TB0203", "{refused}");
    place.effects_are(1).await;
}

#[tokio::test]
async fn the_originals_calls_are_journaled_as_well() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let host = CrashingHost::start(&rig, &place, vec![fake_with_effect()]).await;
    let client = rig.client(AgentRef::new("old")).await;
    client.subscribe().await.expect("a mailbox");
    let bus = client.into_multiplexed();
    let arguments = place.waiting().to_string();
    let body = Body::of(&json!({"op": "call", "tool": "idem_effect", "arguments": arguments})).expect("JSON");
    let message = InboxMessage::new(bus.client().me(), InboxKind::McpRequest, body);
    let mut call = bus.start_call("host", message, PATIENCE).await.expect("a call");
    place.effects_are(1).await;
    host.crash().await;
    place.release();
    let _host = CrashingHost::start(&rig, &place, vec![fake_with_effect()]).await;
    let reply = match within("a reply", call.next()).await {
        Some(CallItem::Reply(reply)) => reply.expect("a reply").body.to::<Value>().expect("JSON"),
        other => panic!("{other:?}"),
    };
    assert!(reply["error"].as_str().is_some_and(|error| error.contains("is unknown")), "{reply}");
    place.effects_are(1).await;
}

/// The original finds tools by their names, so this one has to be listed.
fn fake_with_effect() -> toolbus_upstream::ServerConfig {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fake_server.py");
    toolbus_upstream::ServerConfig::stdio("one", "python3", &[script, "legacy", "one", "idem_effect"])
}

#[tokio::test]
async fn what_a_client_answers_to_a_server_counts_as_begun() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let host = CrashingHost::start(&rig, &place, vec![server()]).await;
    let worker = rig.modern("w").await;
    let asked = worker.tool("one", "ask", json!({})).await.result();
    let key = asked["inputRequests"].as_object().expect("requests").keys().next().expect("one").clone();
    let answer = json!({"name": "ask", "arguments": {}, "requestState": asked["requestState"],
        "inputResponses": {key: {"action": "accept", "content": {"name": "x"}}}});
    assert!(worker.rpc("one", "tools/call", answer).await.text().contains("accept"));
    host.crash().await;
    let calls = place.journal().calls();
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert!(calls.iter().all(|call| call.stage == Stage::Ended(toolbus_journal::End::Done)), "{calls:?}");
}

#[tokio::test]
async fn reads_leave_nothing_in_the_journal() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let host = CrashingHost::start(&rig, &place, vec![server()]).await;
    let worker = rig.legacy("w").await;
    worker.rpc("one", "tools/list", json!({})).await.result();
    worker.rpc("one", "resources/read", json!({"uri": "test://one"})).await.result();
    host.crash().await;
    assert!(place.journal().calls().is_empty());
}

#[tokio::test]
async fn a_call_whose_deadline_passed_while_it_waited_is_never_run() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let mut one = server();
    one.max_concurrency = 1;
    let host = CrashingHost::start(&rig, &place, vec![one]).await;
    let worker = rig.legacy("w").await;
    let first = begin(&worker, "effect", &place.waiting()).await;
    place.effects_are(1).await;
    let message = worker.request("one", "tools/call", json!({"name": "effect", "arguments": place.quick()}));
    let limit = std::time::Duration::from_millis(300);
    let mut second = worker.bus.start_call("host", message, limit).await.expect("a call");
    within("the end of patience", second.next()).await;
    place.release();
    assert_eq!(finish(first).await.text(), "effected");
    // A call after it shows that the other is over.
    let mut third = place.quick();
    third["mark"] = json!("third");
    assert_eq!(worker.tool("one", "effect", third).await.text(), "effected");
    assert_eq!(place.effects(), ["x", "third"]);
    host.crash().await;
}

#[tokio::test]
async fn what_was_called_off_stays_called_off_after_a_restart() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let host = CrashingHost::start(&rig, &place, vec![server()]).await;
    let worker = rig.legacy("w").await;
    let message = worker.request("one", "tools/call", json!({"name": "effect", "arguments": place.waiting()}));
    let call = worker.bus.start_call("host", message.clone(), PATIENCE).await.expect("a call");
    place.effects_are(1).await;
    worker.cancel("one", &call.id()).await;
    assert!(matches!(finish(call).await.end, HostReply::Cancelled));
    host.crash().await;
    let (again, _host) = again_elsewhere(&place, &message, true).await;
    assert_eq!(again["body"]["rpc"]["cancelled"], true, "{again}");
    place.effects_are(1).await;
}

#[tokio::test]
async fn the_answer_that_is_kept_is_the_one_that_was_sent() {
    let place = Place::new();
    let broker = toolbus_broker::ServerOptions { max_frame_bytes: 64 << 10, ..Default::default() };
    let rig = Rig::bus_on(broker).await;
    let host = CrashingHost::start(&rig, &place, vec![server()]).await;
    let worker = rig.legacy("w").await;
    let message = worker.request("one", "tools/call", json!({"name": "big", "arguments": {"bytes": 100_000}}));
    let call = worker.bus.start_call("host", message.clone(), PATIENCE).await.expect("a call");
    let error = finish(call).await.error();
    assert_eq!(code(&error), "TB0405");
    host.crash().await;
    let (again, _host) = again_elsewhere(&place, &message, true).await;
    assert_eq!(again["body"]["rpc"]["error"], error);
}

#[tokio::test]
async fn a_tool_may_be_kept_from_running_twice_where_its_server_may() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let careful = || {
        let mut server = safe(server());
        server.calls.tool_replay.insert("effect".to_owned(), Replay::Never);
        server
    };
    let host = CrashingHost::start(&rig, &place, vec![careful()]).await;
    let worker =
        rig.worker(AgentRef::new("w"), ClientHello::legacy(raw(&json!({"protocolVersion": "2025-06-18"})))).await;
    let call = begin(&worker, "effect", &place.waiting()).await;
    place.effects_are(1).await;
    host.crash().await;
    let _host = CrashingHost::start(&rig, &place, vec![careful()]).await;
    assert_eq!(code(&finish(call).await.error()), "TB0420");
}

#[tokio::test]
async fn a_method_that_names_no_tool_never_runs_twice() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let host = CrashingHost::start(&rig, &place, vec![safe(server())]).await;
    let worker = rig.legacy("w").await;
    let call = worker.start("one", "vendor/effect", place.waiting()).await;
    place.effects_are(1).await;
    host.crash().await;
    place.release();
    let _host = CrashingHost::start(&rig, &place, vec![safe(server())]).await;
    let error = finish(call).await.error();
    assert_eq!(code(&error), "TB0420", "{error}");
    place.effects_are(1).await;
}

#[tokio::test]
async fn what_comes_again_is_unknown_where_a_part_of_the_journal_is_missing() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let host = CrashingHost::start(&rig, &place, vec![server()]).await;
    let worker = rig.legacy("w").await;
    let call = begin(&worker, "effect", &place.waiting()).await;
    place.effects_are(1).await;
    host.crash().await;
    place.release();
    let segment = |number: u32| place.path("journal").join(format!("journal-{number:010}.log"));
    std::fs::copy(segment(1), segment(3)).expect("a copy");
    for number in [1, 3] {
        std::fs::File::create(segment(number)).expect("an empty file");
    }
    let _host = CrashingHost::start(&rig, &place, vec![server()]).await;
    let error = finish(call).await.error();
    assert_eq!(code(&error), "TB0420", "{error}");
    place.effects_are(1).await;
}

#[tokio::test]
async fn an_answer_that_has_become_too_large_for_the_bus_says_so() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let host = CrashingHost::start(&rig, &place, vec![server()]).await;
    let worker = rig.legacy("w").await;
    let message = worker.request("one", "tools/call", json!({"name": "big", "arguments": {"bytes": 100_000}}));
    let call = worker.bus.start_call("host", message.clone(), PATIENCE).await.expect("a call");
    assert_eq!(finish(call).await.text().len(), 100_000);
    host.crash().await;
    let broker = toolbus_broker::ServerOptions { max_frame_bytes: 64 << 10, ..Default::default() };
    let rig = Rig::bus_on(broker).await;
    let _host = CrashingHost::start(&rig, &place, vec![server()]).await;
    let worker = rig.legacy("w").await;
    let call = worker.bus.start_call("host", message, PATIENCE).await.expect("a call");
    assert_eq!(code(&finish(call).await.error()), "TB0405");
}

#[tokio::test]
async fn a_host_that_ends_in_order_leaves_what_is_not_begun_to_the_next() {
    let place = Place::new();
    let mut one = server();
    one.max_concurrency = 1;
    let mut options = open_host(HostConfig { servers: vec![one] });
    options.journal = Some(Arc::new(place.journal()));
    let mut rig = Rig::with(options).await;
    let (first, second) = (rig.legacy("w").await, rig.legacy("v").await);
    let a = begin(&first, "effect", &place.waiting()).await;
    place.effects_are(1).await;
    let b = begin(&second, "effect", &place.waiting()).await;
    // It is here, and waits for its place.
    second.ask(HostRequest::ApprovalsList).await;
    rig.stop_host().await;
    place.effects_are(1).await;
    place.release();
    rig.restart_after_stop().await;
    assert_eq!(code(&finish(a).await.error()), "TB0408");
    assert_eq!(finish(b).await.text(), "effected");
    place.effects_are(2).await;
}
