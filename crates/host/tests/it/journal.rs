//! The call journal across crashes of the host: one effect per call, unless the call is replay-safe.

use crate::crashing::{CrashingHost, TestFolder, replay_safe, server, start_call};
use crate::support::{Rig, TIMEOUT, Worker, fake, finish, open_host, within};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolbus_client::{AgentRef, CallItem, InboxKind, InboxMessage};
use toolbus_journal::Stage;
use toolbus_mcp::{ClientHello, HostReply, HostRequest, raw};
use toolbus_protocol::Body;
use toolbus_upstream::{HostConfig, Replay};

#[track_caller]
fn code(error: &Value) -> &str {
    error["data"]["code"].as_str().unwrap_or_default()
}

/// The era of the server, and whether the client is legacy.
const ERAS: [(&str, bool); 4] = [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)];

async fn worker(rig: &Rig, legacy: bool) -> Worker {
    if legacy { rig.legacy("w").await } else { rig.modern("w").await }
}

#[tokio::test]
async fn a_call_interrupted_by_a_host_crash_is_unknown_and_never_run_again() {
    for (era, legacy) in ERAS {
        let (rig, folder) = (Rig::without_host().await, TestFolder::new());
        let host = CrashingHost::start(&rig, &folder, vec![fake("one", era)]).await;
        let worker = worker(&rig, legacy).await;
        let call = start_call(&worker, "effect", &folder.waiting()).await;
        let before = jiff::Timestamp::now();
        folder.expect_effects(1).await;
        host.crash().await;
        let host = CrashingHost::start(&rig, &folder, vec![fake("one", era)]).await;
        let error = finish(call).await.error();
        assert_eq!(code(&error), "TB0420", "{era} {legacy}: {error}");
        let data = &error["data"];
        assert_eq!(
            (&data["outcome"], &data["server"], &data["tool"]),
            (&json!("unknown"), &json!("one"), &json!("effect"))
        );
        assert_eq!(data["attempt"], 1);
        let started: jiff::Timestamp = data["startedAt"].as_str().expect("a time").parse().expect("RFC 3339");
        assert!(started.duration_since(before).as_secs().abs() < 60, "{data}");
        // The host accepts further calls of the same tool.
        folder.release();
        assert_eq!(worker.tool("one", "effect", folder.waiting()).await.text(), "effected");
        folder.expect_effects(2).await;
        host.crash().await;
        let summary = folder.journal().calls();
        assert!(summary.iter().all(|call| matches!(call.stage, Stage::Ended(_))), "{summary:?}");
    }
}

#[tokio::test]
async fn a_replay_safe_call_runs_again_after_a_host_crash() {
    for (era, legacy) in ERAS {
        let (rig, folder) = (Rig::without_host().await, TestFolder::new());
        let host = CrashingHost::start(&rig, &folder, vec![replay_safe(fake("one", era))]).await;
        let worker = worker(&rig, legacy).await;
        let call = start_call(&worker, "effect", &folder.waiting()).await;
        folder.expect_effects(1).await;
        host.crash().await;
        folder.release();
        let _host = CrashingHost::start(&rig, &folder, vec![replay_safe(fake("one", era))]).await;
        assert_eq!(finish(call).await.text(), "effected", "{era} {legacy}");
        folder.expect_effects(2).await;
    }
}

#[tokio::test]
async fn a_trusted_idempotent_hint_allows_a_replay_before_the_server_is_listed() {
    let trusted = |trust| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fake_server.py");
        let mut server =
            toolbus_upstream::ServerConfig::stdio("one", "python3", &[script, "legacy", "one", "idem_effect"]);
        server.calls.trust_hints = trust;
        server
    };
    for (trust, effects) in [(true, 2), (false, 1)] {
        let (rig, folder) = (Rig::without_host().await, TestFolder::new());
        let host = CrashingHost::start(&rig, &folder, vec![trusted(trust)]).await;
        let worker = rig.legacy("w").await;
        let call = start_call(&worker, "idem_effect", &folder.waiting()).await;
        folder.expect_effects(1).await;
        host.crash().await;
        folder.release();
        let _host = CrashingHost::start(&rig, &folder, vec![trusted(trust)]).await;
        let reply = finish(call).await;
        match trust {
            true => assert_eq!(reply.text(), "effected"),
            false => assert_eq!(code(&reply.error()), "TB0420"),
        }
        folder.expect_effects(effects).await;
    }
}

/// Sends a message again through a new broker, so that only the journal can recognise it as a duplicate.
async fn resend_to_new_broker(folder: &TestFolder, message: &InboxMessage, legacy: bool) -> (Value, CrashingHost) {
    let rig = Rig::without_host().await;
    let host = CrashingHost::start(&rig, folder, vec![server()]).await;
    let worker = worker(&rig, legacy).await;
    let mut call = worker.bus.start_call("host", message.clone(), TIMEOUT).await.expect("a call");
    let reply = match within("a reply", call.next()).await {
        Some(CallItem::Reply(reply)) => reply.expect("a reply"),
        other => panic!("{other:?}"),
    };
    let body: Value = reply.body.to().expect("JSON");
    (json!({"id": reply.id.as_str(), "body": body}), host)
}

#[tokio::test]
async fn a_duplicate_request_gets_the_same_reply_under_the_same_id() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let host = CrashingHost::start(&rig, &folder, vec![server()]).await;
    let worker = rig.legacy("w").await;
    let message = worker.request("one", "tools/call", json!({"name": "effect", "arguments": folder.quick()}));
    let mut call = worker.bus.start_call("host", message.clone(), TIMEOUT).await.expect("a call");
    let first = match within("a reply", call.next()).await {
        Some(CallItem::Reply(reply)) => reply.expect("a reply"),
        other => panic!("{other:?}"),
    };
    host.crash().await;
    for _ in 0..2 {
        let (again, host) = resend_to_new_broker(&folder, &message, true).await;
        assert_eq!(again["id"], first.id.as_str());
        assert_eq!(again["body"], first.body.to::<Value>().expect("JSON"));
        host.crash().await;
    }
    folder.expect_effects(1).await;

    let mut other = message.clone();
    other.body = worker.request("one", "tools/call", json!({"name": "effect", "arguments": folder.waiting()})).body;
    let (refused, _host) = resend_to_new_broker(&folder, &other, true).await;
    assert_eq!(code(&refused["body"]["rpc"]["error"]), "TB0203", "{refused}");
    folder.expect_effects(1).await;
}

#[tokio::test]
async fn calls_of_original_workers_are_journaled() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let host = CrashingHost::start(&rig, &folder, vec![fake_with_effect()]).await;
    let client = rig.client(AgentRef::new("old")).await;
    client.subscribe().await.expect("a mailbox");
    let bus = client.into_multiplexed();
    let arguments = folder.waiting().to_string();
    let body = Body::of(&json!({"op": "call", "tool": "idem_effect", "arguments": arguments})).expect("JSON");
    let message = InboxMessage::new(bus.client().me(), InboxKind::McpRequest, body);
    let mut call = bus.start_call("host", message, TIMEOUT).await.expect("a call");
    folder.expect_effects(1).await;
    host.crash().await;
    folder.release();
    let _host = CrashingHost::start(&rig, &folder, vec![fake_with_effect()]).await;
    let reply = match within("a reply", call.next()).await {
        Some(CallItem::Reply(reply)) => reply.expect("a reply").body.to::<Value>().expect("JSON"),
        other => panic!("{other:?}"),
    };
    assert!(reply["error"].as_str().is_some_and(|error| error.contains("is unknown")), "{reply}");
    folder.expect_effects(1).await;
}

/// A server that lists `idem_effect`: original workers can call only listed tools.
fn fake_with_effect() -> toolbus_upstream::ServerConfig {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fake_server.py");
    toolbus_upstream::ServerConfig::stdio("one", "python3", &[script, "legacy", "one", "idem_effect"])
}

#[tokio::test]
async fn an_elicitation_answer_is_journaled_as_a_started_call() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let host = CrashingHost::start(&rig, &folder, vec![server()]).await;
    let worker = rig.modern("w").await;
    let asked = worker.tool("one", "ask", json!({})).await.result();
    let key = asked["inputRequests"].as_object().expect("requests").keys().next().expect("one").clone();
    let answer = json!({"name": "ask", "arguments": {}, "requestState": asked["requestState"],
        "inputResponses": {key: {"action": "accept", "content": {"name": "x"}}}});
    assert!(worker.rpc("one", "tools/call", answer).await.text().contains("accept"));
    host.crash().await;
    let calls = folder.journal().calls();
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert!(calls.iter().all(|call| call.stage == Stage::Ended(toolbus_journal::End::Done)), "{calls:?}");
}

#[tokio::test]
async fn read_requests_are_not_journaled() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let host = CrashingHost::start(&rig, &folder, vec![server()]).await;
    let worker = rig.legacy("w").await;
    worker.rpc("one", "tools/list", json!({})).await.result();
    worker.rpc("one", "resources/read", json!({"uri": "test://one"})).await.result();
    host.crash().await;
    assert!(folder.journal().calls().is_empty());
}

#[tokio::test]
async fn a_call_whose_deadline_passed_while_it_waited_is_never_run() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let mut one = server();
    one.max_concurrency = 1;
    let host = CrashingHost::start(&rig, &folder, vec![one]).await;
    let worker = rig.legacy("w").await;
    let first = start_call(&worker, "effect", &folder.waiting()).await;
    folder.expect_effects(1).await;
    let message = worker.request("one", "tools/call", json!({"name": "effect", "arguments": folder.quick()}));
    let limit = Duration::from_millis(300);
    let mut second = worker.bus.start_call("host", message, limit).await.expect("a call");
    within("the deadline of the second call", second.next()).await;
    folder.release();
    assert_eq!(finish(first).await.text(), "effected");
    // The effect of a later call shows that the second one is over.
    let mut third = folder.quick();
    third["mark"] = json!("third");
    assert_eq!(worker.tool("one", "effect", third).await.text(), "effected");
    assert_eq!(folder.effects(), ["x", "third"]);
    host.crash().await;
}

#[tokio::test]
async fn a_cancelled_call_stays_cancelled_after_a_restart() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let host = CrashingHost::start(&rig, &folder, vec![server()]).await;
    let worker = rig.legacy("w").await;
    let message = worker.request("one", "tools/call", json!({"name": "effect", "arguments": folder.waiting()}));
    let call = worker.bus.start_call("host", message.clone(), TIMEOUT).await.expect("a call");
    folder.expect_effects(1).await;
    worker.cancel("one", &call.id()).await;
    assert!(matches!(finish(call).await.end, HostReply::Cancelled));
    host.crash().await;
    let (again, _host) = resend_to_new_broker(&folder, &message, true).await;
    assert_eq!(again["body"]["rpc"]["cancelled"], true, "{again}");
    folder.expect_effects(1).await;
}

#[tokio::test]
async fn the_journaled_reply_is_the_one_that_was_sent() {
    let folder = TestFolder::new();
    let broker = toolbus_broker::ServerOptions { max_frame_bytes: 64 << 10, ..Default::default() };
    let rig = Rig::without_host_on(broker).await;
    let host = CrashingHost::start(&rig, &folder, vec![server()]).await;
    let worker = rig.legacy("w").await;
    let message = worker.request("one", "tools/call", json!({"name": "big", "arguments": {"bytes": 100_000}}));
    let call = worker.bus.start_call("host", message.clone(), TIMEOUT).await.expect("a call");
    let error = finish(call).await.error();
    assert_eq!(code(&error), "TB0405");
    host.crash().await;
    let (again, _host) = resend_to_new_broker(&folder, &message, true).await;
    assert_eq!(again["body"]["rpc"]["error"], error);
}

#[tokio::test]
async fn a_tools_replay_setting_overrides_that_of_its_server() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let careful = || {
        let mut server = replay_safe(server());
        server.calls.tool_replay.insert("effect".to_owned(), Replay::Never);
        server
    };
    let host = CrashingHost::start(&rig, &folder, vec![careful()]).await;
    let worker =
        rig.worker(AgentRef::new("w"), ClientHello::legacy(raw(&json!({"protocolVersion": "2025-06-18"})))).await;
    let call = start_call(&worker, "effect", &folder.waiting()).await;
    folder.expect_effects(1).await;
    host.crash().await;
    let _host = CrashingHost::start(&rig, &folder, vec![careful()]).await;
    assert_eq!(code(&finish(call).await.error()), "TB0420");
}

#[tokio::test]
async fn a_method_without_a_tool_name_is_never_replayed() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let host = CrashingHost::start(&rig, &folder, vec![replay_safe(server())]).await;
    let worker = rig.legacy("w").await;
    let call = worker.start("one", "vendor/effect", folder.waiting()).await;
    folder.expect_effects(1).await;
    host.crash().await;
    folder.release();
    let _host = CrashingHost::start(&rig, &folder, vec![replay_safe(server())]).await;
    let error = finish(call).await.error();
    assert_eq!(code(&error), "TB0420", "{error}");
    folder.expect_effects(1).await;
}

#[tokio::test]
async fn a_duplicate_request_is_unknown_if_a_journal_segment_is_missing() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let host = CrashingHost::start(&rig, &folder, vec![server()]).await;
    let worker = rig.legacy("w").await;
    let call = start_call(&worker, "effect", &folder.waiting()).await;
    folder.expect_effects(1).await;
    host.crash().await;
    folder.release();
    let segment = |number: u32| folder.path("journal").join(format!("journal-{number:010}.log"));
    std::fs::copy(segment(1), segment(3)).expect("a copy");
    for number in [1, 3] {
        std::fs::File::create(segment(number)).expect("an empty file");
    }
    let _host = CrashingHost::start(&rig, &folder, vec![server()]).await;
    let error = finish(call).await.error();
    assert_eq!(code(&error), "TB0420", "{error}");
    folder.expect_effects(1).await;
}

#[tokio::test]
async fn a_journaled_reply_too_large_for_the_new_broker_is_an_error() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let host = CrashingHost::start(&rig, &folder, vec![server()]).await;
    let worker = rig.legacy("w").await;
    let message = worker.request("one", "tools/call", json!({"name": "big", "arguments": {"bytes": 100_000}}));
    let call = worker.bus.start_call("host", message.clone(), TIMEOUT).await.expect("a call");
    assert_eq!(finish(call).await.text().len(), 100_000);
    host.crash().await;
    let broker = toolbus_broker::ServerOptions { max_frame_bytes: 64 << 10, ..Default::default() };
    let rig = Rig::without_host_on(broker).await;
    let _host = CrashingHost::start(&rig, &folder, vec![server()]).await;
    let worker = rig.legacy("w").await;
    let call = worker.bus.start_call("host", message, TIMEOUT).await.expect("a call");
    assert_eq!(code(&finish(call).await.error()), "TB0405");
}

#[tokio::test]
async fn a_clean_shutdown_leaves_unstarted_calls_to_the_next_host() {
    let folder = TestFolder::new();
    let mut one = server();
    one.max_concurrency = 1;
    let mut options = open_host(HostConfig { servers: vec![one] });
    options.journal = Arc::new(folder.journal());
    options.limits.drain = Duration::from_millis(100);
    let mut rig = Rig::with(options).await;
    let (first, second) = (rig.legacy("w").await, rig.legacy("v").await);
    let a = start_call(&first, "effect", &folder.waiting()).await;
    folder.expect_effects(1).await;
    let b = start_call(&second, "effect", &folder.waiting()).await;
    // The answer shows that the host has received the second call, which waits for a permit.
    second.ask(HostRequest::ApprovalsList).await;
    rig.stop_host().await;
    folder.expect_effects(1).await;
    folder.release();
    rig.restart_after_stop().await;
    assert_eq!(code(&finish(a).await.error()), "TB0420", "it outlived the drain time");
    assert_eq!(finish(b).await.text(), "effected");
    folder.expect_effects(2).await;
}
