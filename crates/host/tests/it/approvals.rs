//! Calls under `ask` rules: they wait for approval, survive restarts, and are bound to the hash that the approver saw.

use crate::policy::{set, worker};
use crate::support::{Reply, Rig, TIMEOUT, Worker, fake, finish, next_event, open_host, parts, within};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolbus_client::{AgentRef, Call, CallItem, InboxKind, InboxMessage, MultiplexedClient};
use toolbus_host::{Approvals, HostOptions, LivePolicy};
use toolbus_mcp::{ApprovalDecision, ClientHello, HostReply, HostRequest};
use toolbus_protocol::Body;
use toolbus_upstream::HostConfig;

const RULES: &str = "[roles.reader]\nallow = ['echo', 'whoami']\nask = ['add']\napprove = true\n\
                     [roles.boss]\napprove = true\n[roles.guest]\nallow = ['echo']";

fn options(state: &tempfile::TempDir) -> HostOptions {
    let mut options = open_host(HostConfig { servers: vec![fake("one", "legacy")] });
    options.policy = LivePolicy::new(set(RULES));
    options.approvals = Arc::new(Approvals::open(state.path()).expect("approvals"));
    options.limits.approval_progress = Duration::from_millis(20);
    options
}

pub async fn rig() -> (Rig, tempfile::TempDir) {
    let state = tempfile::tempdir().expect("a folder");
    (Rig::with(options(&state)).await, state)
}

pub async fn agent(rig: &Rig, name: &'static str, role: &'static str) -> Worker {
    rig.worker(AgentRef::new(name).with_role(role), ClientHello::modern()).await
}

pub async fn ask(worker: &Worker, request: HostRequest) -> Reply {
    let body = Body::parse(request.to_json().into_bytes()).expect("JSON");
    let message = InboxMessage::new(worker.bus.client().me(), InboxKind::McpRequest, body);
    finish(worker.bus.start_call("host", message, TIMEOUT).await.expect("a call")).await
}

/// Polls the pending approvals until there are `count`.
pub async fn wait_for_pending(boss: &Worker, count: usize) -> Vec<Value> {
    let poll = async {
        loop {
            let listed = ask(boss, HostRequest::ApprovalsList).await.result();
            let all = listed["approvals"].as_array().expect("a list").clone();
            if all.len() == count {
                return all;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("the pending approvals", poll).await
}

pub async fn decide(worker: &Worker, pending: &Value, approve: bool) -> Reply {
    let text = |name: &str| pending[name].as_str().expect("a text").to_owned();
    ask(worker, HostRequest::ApprovalsDecide(ApprovalDecision { id: text("id"), hash: text("hash"), approve })).await
}

async fn add(worker: &Worker) -> Call {
    let params = json!({"name": "add", "arguments": {"b": 2, "a": 1}, "_meta": {"progressToken": "p"}});
    worker.start("one", "tools/call", params).await
}

#[tokio::test]
async fn a_call_under_ask_reports_that_it_waits_and_runs_when_approved() {
    for legacy in [true, false] {
        let (rig, _state) = rig().await;
        let boss = agent(&rig, "b", "boss").await;
        let worker = worker(&rig, Some("reader"), legacy).await;
        let mut call = add(&worker).await;
        let (method, params) = parts(&next_event(&mut call).await);
        let pending = wait_for_pending(&boss, 1).await.remove(0);
        assert_eq!((method.as_str(), &params["progressToken"]), ("notifications/progress", &json!("p")));
        assert_eq!(params["message"], format!("waiting for approval, id {}", pending["id"].as_str().expect("an id")));
        let shown = ["server", "name", "caller", "role"].map(|name| pending[name].as_str().expect(name));
        assert_eq!(shown, ["one", "add", "w", "reader"]);
        assert_eq!(pending["arguments"], json!({"a": 1, "b": 2}));
        // Other calls of the same session are not blocked.
        worker.tool("one", "echo", json!({})).await.text();
        decide(&boss, &pending, true).await.result();
        assert_eq!(finish(call).await.text(), "3");
        wait_for_pending(&boss, 0).await;
        // An equal call needs an approval of its own.
        let _again = add(&worker).await;
        wait_for_pending(&boss, 1).await;
    }
}

#[tokio::test]
async fn a_denied_call_is_not_run() {
    let (rig, _state) = rig().await;
    let (boss, worker) = (agent(&rig, "b", "boss").await, worker(&rig, Some("reader"), true).await);
    let call = add(&worker).await;
    decide(&boss, &wait_for_pending(&boss, 1).await[0], false).await.result();
    let error = finish(call).await.error();
    assert_eq!(error["data"]["code"], "TB0414");
    assert!(error["message"].as_str().expect("a message").starts_with("b denied"), "{error}");
}

#[tokio::test]
async fn a_decision_with_another_hash_is_rejected() {
    let (rig, _state) = rig().await;
    let (boss, worker) = (agent(&rig, "b", "boss").await, worker(&rig, Some("reader"), true).await);
    let _call = add(&worker).await;
    let mut pending = wait_for_pending(&boss, 1).await.remove(0);
    pending["hash"] = json!("0".repeat(64));
    assert_eq!(decide(&boss, &pending, true).await.error()["data"]["code"], "TB0404");
    wait_for_pending(&boss, 1).await;
}

#[tokio::test]
async fn only_approvers_decide_and_not_about_their_own_calls() {
    let (rig, _state) = rig().await;
    let (boss, guest) = (agent(&rig, "b", "boss").await, agent(&rig, "g", "guest").await);
    let worker = worker(&rig, Some("reader"), true).await;
    let own = agent(&rig, "w#elsewhere", "reader").await;
    let other = agent(&rig, "v", "reader").await;
    let call = add(&worker).await;
    let pending = wait_for_pending(&boss, 1).await.remove(0);
    assert_eq!(ask(&guest, HostRequest::ApprovalsList).await.error()["data"]["code"], "TB0403");
    assert_eq!(decide(&guest, &pending, true).await.error()["data"]["code"], "TB0403");
    assert_eq!(decide(&own, &pending, true).await.error()["data"]["code"], "TB0403");
    wait_for_pending(&boss, 1).await;
    decide(&other, &pending, true).await.result();
    assert_eq!(finish(call).await.text(), "3");
    assert_eq!(decide(&boss, &pending, false).await.error()["data"]["code"], "TB0404");
}

#[tokio::test]
async fn an_operator_may_approve_its_own_call() {
    let state = tempfile::tempdir().expect("a folder");
    let mut options = options(&state);
    options.policy = LivePolicy::new(set("[roles.operator]\nask = ['add']\napprove = true"));
    let rig = Rig::with(options).await;
    let (me, worker) = (agent(&rig, "w#cli", "operator").await, worker(&rig, Some("operator"), true).await);
    let call = add(&worker).await;
    decide(&me, &wait_for_pending(&me, 1).await[0], true).await.result();
    assert_eq!(finish(call).await.text(), "3");
}

#[tokio::test]
async fn a_pending_approval_survives_a_host_restart() {
    let (mut rig, _state) = rig().await;
    let (boss, worker) = (agent(&rig, "b", "boss").await, worker(&rig, Some("reader"), true).await);
    let call = add(&worker).await;
    let before = wait_for_pending(&boss, 1).await.remove(0);
    rig.restart_host().await;
    let after = wait_for_pending(&boss, 1).await.remove(0);
    assert_eq!((&before["id"], &before["hash"]), (&after["id"], &after["hash"]));
    decide(&boss, &before, true).await.result();
    assert_eq!(finish(call).await.text(), "3");
}

#[tokio::test]
async fn a_decision_survives_a_host_restart_before_the_call_runs() {
    for approve in [true, false] {
        let (mut rig, state) = rig().await;
        let (boss, worker) = (agent(&rig, "b", "boss").await, worker(&rig, Some("reader"), true).await);
        let call = add(&worker).await;
        let pending = wait_for_pending(&boss, 1).await.remove(0);
        rig.stop_host().await;
        // The file as a host leaves it that is killed right after it wrote the decision.
        let verdict = json!({"hash": pending["hash"], "approve": approve, "by": "b", "at_ms": 9_999_999_999_999_u64});
        let verdicts = json!({pending["id"].as_str().expect("an id"): verdict}).to_string();
        std::fs::write(state.path().join("approvals.json"), verdicts).expect("written");
        let options = HostOptions { journal: rig.journal(), ..options(&state) };
        let _rig = rig.with_other_host(options).await;
        let reply = finish(call).await;
        match approve {
            true => assert_eq!(reply.text(), "3"),
            false => assert_eq!(reply.error()["data"]["code"], "TB0414"),
        }
    }
}

#[tokio::test]
async fn an_approval_of_other_arguments_does_not_apply() {
    let (mut rig, state) = rig().await;
    let (boss, worker) = (agent(&rig, "b", "boss").await, worker(&rig, Some("reader"), true).await);
    let call = add(&worker).await;
    let pending = wait_for_pending(&boss, 1).await.remove(0);
    rig.stop_host().await;
    let verdict = json!({"hash": "0".repeat(64), "approve": true, "by": "b", "at_ms": 9_999_999_999_999_u64});
    let verdicts = json!({pending["id"].as_str().expect("an id"): verdict}).to_string();
    std::fs::write(state.path().join("approvals.json"), verdicts).expect("written");
    let options = HostOptions { journal: rig.journal(), ..options(&state) };
    let _rig = rig.with_other_host(options).await;
    assert_eq!(finish(call).await.error()["data"]["code"], "TB0414");
}

#[tokio::test]
async fn a_call_that_waits_for_approval_is_checked_against_new_rules() {
    let (rig, _state) = rig().await;
    let (boss, worker) = (agent(&rig, "b", "boss").await, worker(&rig, Some("reader"), true).await);
    let call = add(&worker).await;
    let pending = wait_for_pending(&boss, 1).await.remove(0);
    rig.policy().replace(set(&RULES.replace("ask = ['add']", "deny = ['add']")));
    assert_eq!(finish(call).await.error()["data"]["code"], "TB0403");
    let too_late = decide(&boss, &pending, true).await.error();
    assert_eq!(too_late["data"]["code"], "TB0404");
}

#[tokio::test]
async fn a_call_without_a_decision_is_refused_at_its_deadline() {
    let (rig, _state) = rig().await;
    let (boss, worker) = (agent(&rig, "b", "boss").await, worker(&rig, Some("reader"), false).await);
    let rpc = worker.request("one", "tools/call", json!({"name": "add", "arguments": {"a": 1, "b": 2}}));
    let call = worker.bus.start_call("host", rpc, Duration::from_millis(700)).await.expect("a call");
    assert_eq!(finish(call).await.error()["data"]["code"], "TB0414");
    wait_for_pending(&boss, 0).await;
}

#[tokio::test]
async fn a_call_that_waits_for_approval_can_be_cancelled() {
    let (rig, _state) = rig().await;
    let (boss, worker) = (agent(&rig, "b", "boss").await, worker(&rig, Some("reader"), true).await);
    let call = add(&worker).await;
    wait_for_pending(&boss, 1).await;
    worker.cancel("one", &call.id()).await;
    assert!(matches!(finish(call).await.end, HostReply::Cancelled));
    wait_for_pending(&boss, 0).await;
}

#[tokio::test]
async fn calls_that_wait_for_approval_are_limited_in_number_and_bytes() {
    let state = tempfile::tempdir().expect("a folder");
    let mut options = options(&state);
    options.limits.max_parked = 3;
    options.limits.max_parked_bytes = 500;
    options.limits.max_parked_bytes_per_agent = 450;
    let rig = Rig::with(options).await;
    let (boss, worker) = (agent(&rig, "b", "boss").await, worker(&rig, Some("reader"), true).await);
    let (large, other) = (agent(&rig, "v", "reader").await, agent(&rig, "u", "reader").await);
    let _first = add(&worker).await;
    wait_for_pending(&boss, 1).await;
    let refused = finish(add(&worker).await).await.error();
    assert_eq!(refused["data"]["code"], "TB0415");
    assert!(refused["message"].as_str().expect("a message").contains("agent 'w'"), "{refused}");
    let params = |bytes: usize| json!({"name": "add", "arguments": {"a": "x".repeat(bytes)}});
    let refused = large.rpc("one", "tools/call", params(500)).await.error();
    assert!(
        refused["message"].as_str().expect("a message").contains("bytes of waiting calls of agent 'v'"),
        "{refused}"
    );
    let _second = large.start("one", "tools/call", params(20)).await;
    wait_for_pending(&boss, 2).await;
    let refused = other.rpc("one", "tools/call", params(20)).await.error();
    assert!(refused["message"].as_str().expect("a message").ends_with("bytes of waiting calls)"), "{refused}");
}

#[tokio::test]
async fn agents_with_many_waiting_calls_leave_room_for_another_one() {
    let state = tempfile::tempdir().expect("a folder");
    let mut options = options(&state);
    options.limits.max_parked = 12;
    let rig = Rig::with(options).await;
    let boss = agent(&rig, "b", "boss").await;
    let mut waiting = Vec::new();
    for name in ["w", "x", "y", "z"] {
        let hostile = agent(&rig, name, "reader").await;
        for _ in 0..4 {
            waiting.push(add(&hostile).await);
        }
    }
    wait_for_pending(&boss, 9).await;
    let honest = agent(&rig, "honest", "reader").await;
    let _call = add(&honest).await;
    wait_for_pending(&boss, 10).await;
}

/// Starts and approves a call of `ask`; returns its `input_required` result.
async fn approved_input_required(boss: &Worker, worker: &Worker) -> Value {
    let mut call = worker.start("one", "tools/call", json!({"name": "ask", "arguments": {}})).await;
    decide(boss, &wait_for_pending(boss, 1).await[0], true).await.result();
    let first = loop {
        match within("a reply", call.next()).await.expect("a reply") {
            CallItem::Reply(reply) => break reply.expect("a reply"),
            CallItem::Event(_) => {}
        }
    };
    let first: Value = serde_json::from_slice(first.body.as_bytes()).expect("JSON");
    first["rpc"]["result"].clone()
}

async fn asking_rig() -> (Rig, tempfile::TempDir) {
    let state = tempfile::tempdir().expect("a folder");
    let mut options = options(&state);
    options.policy = LivePolicy::new(set("[roles.reader]\nask = ['ask', 'add']\n[roles.boss]\napprove = true"));
    (Rig::with(options).await, state)
}

#[tokio::test]
async fn an_elicitation_answer_needs_no_second_approval() {
    let (rig, _state) = asking_rig().await;
    let (boss, worker) = (agent(&rig, "b", "boss").await, agent(&rig, "w", "reader").await);
    let result = approved_input_required(&boss, &worker).await;
    let key = result["inputRequests"].as_object().expect("requests").keys().next().expect("one").clone();
    let answer = json!({"action": "accept", "content": {"name": "x"}});
    let again = json!({"name": "ask", "arguments": {}, "requestState": result["requestState"],
        "inputResponses": {key: answer}});
    assert!(worker.rpc("one", "tools/call", again).await.text().contains("accept"));
}

#[tokio::test]
async fn the_request_state_of_an_approved_call_approves_no_other_call() {
    let (rig, _state) = asking_rig().await;
    let (boss, mut worker) = (agent(&rig, "b", "boss").await, agent(&rig, "w", "reader").await);
    let state = approved_input_required(&boss, &worker).await["requestState"].clone();
    let with_state =
        |name: &str, arguments: Value| json!({"name": name, "arguments": arguments, "requestState": state});
    let _other_tool = worker.start("one", "tools/call", with_state("add", json!({"a": 1, "b": 2}))).await;
    wait_for_pending(&boss, 1).await;
    let _other_arguments = worker.start("one", "tools/call", with_state("ask", json!({"a": 1}))).await;
    wait_for_pending(&boss, 2).await;
    // In the legacy era this is a new call, not the answer to an elicitation.
    worker.hello = ClientHello::legacy(toolbus_mcp::raw(&json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "w", "version": "1"}})));
    let _other_era = worker.start("one", "tools/call", with_state("ask", json!({}))).await;
    wait_for_pending(&boss, 3).await;
}

#[tokio::test]
async fn an_approval_is_removed_after_its_call() {
    let (rig, state) = rig().await;
    let (boss, worker) = (agent(&rig, "b", "boss").await, worker(&rig, Some("reader"), true).await);
    let call = add(&worker).await;
    decide(&boss, &wait_for_pending(&boss, 1).await[0], true).await.result();
    assert_eq!(finish(call).await.text(), "3");
    assert_eq!(std::fs::read_to_string(state.path().join("approvals.json")).expect("decisions"), "{}");
}

#[tokio::test]
async fn large_arguments_are_truncated_in_the_list() {
    let (rig, _state) = rig().await;
    let (boss, worker) = (agent(&rig, "b", "boss").await, worker(&rig, Some("reader"), true).await);
    let text = "x".repeat(100_000);
    let params = json!({"name": "add", "arguments": {"a": 1, "b": 2, "c": text}});
    let _call = worker.start("one", "tools/call", params).await;
    let pending = wait_for_pending(&boss, 1).await.remove(0);
    assert!(pending.to_string().len() < 6000, "{}", pending.to_string().len());
    assert_eq!(pending["arguments_bytes"], 100_020);
    let id = pending["id"].as_str().expect("an id").to_owned();
    let shown = ask(&boss, HostRequest::ApprovalsShow { id: id.clone() }).await.result();
    assert_eq!(shown["approval"]["arguments"]["c"].as_str().map(str::len), Some(100_000));
    assert_eq!(ask(&worker, HostRequest::ApprovalsShow { id: "none".into() }).await.error()["data"]["code"], "TB0404");
    let guest = agent(&rig, "g", "guest").await;
    assert_eq!(ask(&guest, HostRequest::ApprovalsShow { id }).await.error()["data"]["code"], "TB0403");
}

/// A call of `add` in the original's format.
async fn original_add(rig: &Rig, timeout: Duration) -> (MultiplexedClient, Call) {
    let client = rig.client(AgentRef::new("old").with_role("reader")).await;
    client.subscribe().await.expect("a mailbox");
    let bus = client.into_multiplexed();
    let body = Body::of(&json!({"op": "call", "tool": "add", "arguments": r#"{"a":1,"b":2}"#})).expect("JSON");
    let message = InboxMessage::new(bus.client().me(), InboxKind::McpRequest, body);
    let call = bus.start_call("host", message, timeout).await.expect("a call");
    (bus, call)
}

#[tokio::test]
async fn an_original_workers_call_waits_for_approval_only_until_its_deadline() {
    let (rig, _state) = rig().await;
    let boss = agent(&rig, "b", "boss").await;
    let reader = worker(&rig, Some("reader"), true).await;
    rig.manifest(&reader, |manifest| manifest.servers.first().is_some_and(|server| !server.tools.is_empty())).await;
    let _original = original_add(&rig, Duration::from_millis(1500)).await;
    wait_for_pending(&boss, 1).await;
    wait_for_pending(&boss, 0).await;
}

#[tokio::test]
async fn an_original_workers_pending_approval_survives_a_host_restart() {
    let (mut rig, _state) = rig().await;
    let boss = agent(&rig, "b", "boss").await;
    let reader = worker(&rig, Some("reader"), true).await;
    let has_tools =
        |manifest: &toolbus_mcp::HostManifest| manifest.servers.first().is_some_and(|server| !server.tools.is_empty());
    rig.manifest(&reader, has_tools).await;
    let (_bus, mut call) = original_add(&rig, TIMEOUT).await;
    wait_for_pending(&boss, 1).await;
    rig.restart_host().await;
    let pending = wait_for_pending(&boss, 1).await.remove(0);
    decide(&boss, &pending, true).await.result();
    let reply = loop {
        match within("a reply", call.next()).await.expect("a reply") {
            CallItem::Reply(reply) => break reply.expect("a reply"),
            CallItem::Event(_) => {}
        }
    };
    assert!(String::from_utf8_lossy(reply.body.as_bytes()).contains("\"success\":true"));
}
