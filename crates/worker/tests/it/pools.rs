//! Pools: several hosts that serve the same servers. Calls spread, sessions stay, and the calls of a member that is away run
//! elsewhere only if they certainly did not run or may run twice.

use crate::support::bus::{FakeBus, HostCall};
use crate::support::stdio::StdioClient;
use crate::support::{host, initialize, modern, request, server};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use toolbus_base::now_ms;
use toolbus_mcp::{HostManifest, HostReply, HostRequest, ServerManifest};
use toolbus_worker::{HostEntry, StdioOptions, WorkerOptions};

/// Long enough for what must not happen to happen.
const QUIET: Duration = Duration::from_millis(150);

fn member_with(name: &str, server: ServerManifest) -> HostEntry {
    let HostEntry { name, away_since_ms, manifest } = host(name, vec![server]);
    let manifest = HostManifest { pool: Some("render".into()), ..(*manifest).clone() };
    HostEntry { name, away_since_ms, manifest: Arc::new(manifest) }
}

fn member(name: &str) -> HostEntry {
    let mut server = server("studio", &["draw", "look"]);
    server.replay_safe.tools = vec!["look".into()];
    member_with(name, server)
}

fn away(host: HostEntry) -> HostEntry {
    HostEntry { away_since_ms: Some(now_ms()), ..host }
}

fn draining(mut host: HostEntry) -> HostEntry {
    host.manifest = Arc::new(HostManifest { draining: true, ..(*host.manifest).clone() });
    host
}

fn both() -> Arc<FakeBus> {
    FakeBus::new(vec![member("a"), member("b")])
}

fn client(bus: &Arc<FakeBus>, grace: Duration) -> StdioClient {
    let options = WorkerOptions { pool_grace: grace, ..WorkerOptions::default() };
    StdioClient::with(bus, options, StdioOptions::default())
}

fn call(id: u64, tool: &str) -> Value {
    modern(id, "tools/call", json!({"name": tool}))
}

/// The client's call waits in the mailbox of `a`, and `b` is away.
async fn queued_at_a(client: &mut StdioClient, bus: &FakeBus, tool: &str) {
    bus.set_hosts(vec![member("a"), away(member("b"))]);
    bus.queue_calls_to("a");
    client.send(&call(1, tool)).await;
    crate::support::eventually("the call is queued", || bus.waiting() == 1).await;
}

fn a_is_away(bus: &FakeBus) {
    bus.set_hosts(vec![away(member("a")), member("b")]);
}

fn code(answer: &Value) -> &str {
    answer["error"]["data"]["code"].as_str().unwrap_or_default()
}

async fn no_call(bus: &FakeBus) {
    assert!(tokio::time::timeout(QUIET, bus.next_call()).await.is_err(), "a call reached a host");
}

#[tokio::test]
async fn a_pool_is_one_host_whose_calls_go_to_the_member_with_the_fewest() {
    let bus = both();
    let mut client = client(&bus, Duration::from_secs(9));
    let mut counts = BTreeMap::new();
    let mut calls = Vec::new();
    for id in 0..10 {
        client.send(&call(id, "draw")).await;
        let call = bus.next_call().await;
        *counts.entry(call.host.clone()).or_insert(0) += 1;
        calls.push(call);
    }
    assert_eq!(counts, [("a".to_owned(), 5), ("b".to_owned(), 5)].into());
    // The calls of `b` end: the next ones go there.
    for call in calls.iter().filter(|call| call.host == "b") {
        call.reply(json!({})).await;
        client.next().await;
    }
    for id in 10..14 {
        client.send(&call(id, "draw")).await;
        assert_eq!(bus.next_call().await.host, "b");
    }
}

#[tokio::test]
async fn a_session_stays_at_its_member() {
    let bus = both();
    let mut client = client(&bus, Duration::from_secs(9));
    client.send(&initialize(1)).await;
    let first = bus.next_call().await;
    first.reply(json!({"protocolVersion": "2025-11-25", "capabilities": {}})).await;
    client.next().await;
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
    bus.sent(|sent| matches!(sent, HostRequest::Notify(_))).await;
    assert_eq!(bus.all_sent()[0].0, first.host);
    for id in 2..12 {
        client.send(&request(id, "tools/call", json!({"name": "draw"}))).await;
        assert_eq!(bus.next_call().await.host, first.host);
    }
}

#[tokio::test]
async fn the_session_of_a_member_that_is_lost_is_opened_at_another_one() {
    let bus = both();
    let mut client = client(&bus, Duration::from_millis(200));
    client.send(&initialize(1)).await;
    let first = bus.next_call().await;
    first.reply(json!({"protocolVersion": "2025-11-25", "capabilities": {}})).await;
    client.next().await;
    let gone = first.host.as_str();
    let hosts = || ["a", "b"].map(|name| if name == gone { away(member(name)) } else { member(name) }).to_vec();
    bus.set_hosts(hosts());
    client.send(&request(2, "tools/call", json!({"name": "draw"}))).await;
    // The state may still be there, so the call waits for it first.
    let moved = bus.next_call().await;
    assert_ne!(moved.host, first.host);
    assert_eq!(bus.withdrawn().len(), 1);
    assert!(moved.rpc.client.initialize.as_ref().is_some_and(|params| params.get().contains("2025-11-25")));
    moved.reply(json!({"here": 1})).await;
    assert_eq!(client.next().await["result"], json!({"here": 1}));
    client.send(&request(3, "tools/call", json!({"name": "draw"}))).await;
    assert_eq!(bus.next_call().await.host, moved.host);
}

#[tokio::test]
async fn a_call_that_the_member_never_received_moves_at_once() {
    let bus = both();
    let mut client = client(&bus, Duration::from_secs(3600));
    queued_at_a(&mut client, &bus, "draw").await;
    a_is_away(&bus);
    let moved = bus.next_call().await;
    assert_eq!((moved.host.as_str(), bus.withdrawn().len(), bus.waiting()), ("b", 1, 0));
    moved.reply(json!({"moved": true})).await;
    assert_eq!(client.next().await["result"], json!({"moved": true}));
}

#[tokio::test]
async fn a_received_call_that_must_not_run_twice_ends_with_outcome_unknown() {
    let bus = both();
    let mut client = client(&bus, QUIET);
    queued_at_a(&mut client, &bus, "draw").await;
    bus.mark_first_delivered();
    a_is_away(&bus);
    let answer = client.next().await;
    assert_eq!(code(&answer), "TB0420", "{answer}");
    assert_eq!((bus.withdrawn().len(), bus.waiting()), (1, 0), "the member does not get it again");
    no_call(&bus).await;
}

#[tokio::test]
async fn a_received_call_that_may_run_twice_runs_at_another_member_after_the_grace() {
    let bus = both();
    let mut client = client(&bus, QUIET);
    queued_at_a(&mut client, &bus, "look").await;
    bus.mark_first_delivered();
    a_is_away(&bus);
    assert!(bus.withdrawn().is_empty());
    let moved = bus.next_call().await;
    assert_eq!((moved.host.as_str(), bus.withdrawn().len()), ("b", 1));
    moved.reply(json!({})).await;
    assert_eq!(client.next().await["id"], 1);
}

#[tokio::test]
async fn a_withdrawal_that_is_not_confirmed_moves_no_call_that_must_not_run_twice() {
    let bus = both();
    bus.withdrawals_fail.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut client = client(&bus, QUIET);
    queued_at_a(&mut client, &bus, "draw").await;
    a_is_away(&bus);
    assert_eq!(code(&client.next().await), "TB0420");
    no_call(&bus).await;
}

#[tokio::test]
async fn a_member_that_comes_back_in_time_answers_itself() {
    let bus = both();
    let mut client = client(&bus, Duration::from_secs(3600));
    client.send(&call(1, "draw")).await;
    let call = bus.next_call().await;
    let other = if call.host == "a" { "b" } else { "a" };
    bus.set_hosts(vec![away(member(&call.host)), member(other)]);
    no_call(&bus).await;
    bus.set_hosts(vec![member(&call.host), member(other)]);
    call.reply(json!({"mine": true})).await;
    assert_eq!(client.next().await["result"], json!({"mine": true}));
}

#[tokio::test]
async fn a_call_waits_while_all_members_are_away_and_goes_to_the_first_that_is_back() {
    let bus = both();
    let mut client = client(&bus, Duration::from_secs(3600));
    bus.set_hosts(vec![away(member("a")), away(member("b"))]);
    client.send(&call(1, "draw")).await;
    crate::support::eventually("the call is queued", || bus.waiting() == 1).await;
    no_call(&bus).await;
    bus.set_hosts(vec![away(member("a")), member("b")]);
    assert_eq!(bus.next_call().await.host, "b");
}

#[tokio::test]
async fn a_handed_back_call_goes_to_another_member() {
    let bus = both();
    let mut client = client(&bus, Duration::from_secs(9));
    client.send(&call(1, "draw")).await;
    let first = bus.next_call().await;
    assert!(first.rpc.hand_back);
    first.finish(HostReply::HandedBack).await;
    let moved = bus.next_call().await;
    assert_ne!(moved.host, first.host);
    moved.reply(json!({"moved": true})).await;
    assert_eq!(client.next().await["result"], json!({"moved": true}));
}

#[tokio::test]
async fn a_cancelled_call_that_is_handed_back_does_not_move() {
    let bus = both();
    let mut client = client(&bus, Duration::from_secs(9));
    client.send(&initialize(1)).await;
    bus.next_call().await.reply(json!({"protocolVersion": "2025-11-25", "capabilities": {}})).await;
    client.next().await;
    client.send(&request(2, "tools/call", json!({"name": "draw"}))).await;
    let first = bus.next_call().await;
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}})).await;
    bus.sent(|sent| matches!(sent, HostRequest::Notify(notify) if notify.method == "notifications/cancelled")).await;
    first.finish(HostReply::HandedBack).await;
    no_call(&bus).await;
}

#[tokio::test]
async fn a_member_that_stops_gets_no_calls() {
    let bus = FakeBus::new(vec![draining(member("a")), member("b")]);
    let mut client = client(&bus, Duration::from_secs(9));
    for id in 0..5 {
        client.send(&call(id, "draw")).await;
        assert_eq!(bus.next_call().await.host, "b");
    }
}

#[tokio::test]
async fn the_follow_up_of_a_suspended_call_goes_to_the_member_that_knows_it() {
    let bus = both();
    let mut client = client(&bus, Duration::from_secs(9));
    for id in 0..5 {
        client.send(&call(id, "draw")).await;
        let first = bus.next_call().await;
        first.reply(json!({"resultType": "input_required", "requestState": "secret"})).await;
        let state = client.next().await["result"]["requestState"].clone();
        assert_ne!(state, "secret");
        client.send(&modern(id + 10, "tools/call", json!({"name": "draw", "requestState": state}))).await;
        let next = bus.next_call().await;
        assert_eq!((&next.host, &next.params()["requestState"]), (&first.host, &json!("secret")));
        assert!(!next.rpc.hand_back, "no other member can go on");
        next.reply(json!({})).await;
        client.next().await;
    }
}

#[tokio::test]
async fn a_member_with_another_definition_does_not_serve_the_tool() {
    let mut other = server("studio", &["draw", "look"]);
    other.tools[0] = toolbus_mcp::raw(&json!({"name": "draw", "description": "something else"}));
    let bus = FakeBus::new(vec![member("a"), member_with("b", other)]);
    let mut client = client(&bus, Duration::from_secs(9));
    client.send(&modern(1, "tools/list", json!({}))).await;
    let list = client.next().await;
    let names: Vec<_> = list["result"]["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["draw", "look"]);
    assert_eq!(list["result"]["tools"][0]["description"], Value::Null);
    let mut looks: Vec<HostCall> = Vec::new();
    for id in 2..8 {
        client.send(&call(id, "draw")).await;
        assert_eq!(bus.next_call().await.host, "a");
        client.send(&call(id + 10, "look")).await;
        looks.push(bus.next_call().await);
    }
    assert!(looks.iter().all(|look| look.host == "b"), "the less loaded one");
}

#[tokio::test]
async fn a_host_of_a_pool_can_be_used_alone() {
    let bus = both();
    let options = WorkerOptions { host: Some("b".into()), ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    for id in 0..5 {
        client.send(&call(id, "draw")).await;
        let call = bus.next_call().await;
        assert!(call.host == "b" && !call.rpc.hand_back);
    }
}

#[tokio::test]
async fn a_call_that_an_earlier_worker_made_goes_to_the_member_that_knows_it() {
    let bus = both();
    bus.knows_equal.lock().unwrap().push("b".into());
    let mut client = client(&bus, Duration::from_secs(9));
    for id in 0..5 {
        client.send(&call(id, "draw")).await;
        assert_eq!(bus.next_call().await.host, "b");
    }
}

#[tokio::test]
async fn a_call_that_a_lost_member_may_have_run_runs_nowhere_else() {
    let bus = both();
    bus.knows_equal.lock().unwrap().push("a".into());
    let mut client = client(&bus, QUIET);
    a_is_away(&bus);
    client.send(&call(1, "draw")).await;
    assert_eq!(code(&client.next().await), "TB0420");
    no_call(&bus).await;
}
