//! The host's audit log: every decision and call is logged, and a call that can't be logged doesn't run.

use crate::policy::{set, worker};
use crate::support::{Rig, fake, open_host, within};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use toolbus_audit::{AuditLog, AuditOptions, Tail, VerifyOptions, argument_hash, verify};
use toolbus_host::LivePolicy;
use toolbus_mcp::raw;
use toolbus_upstream::HostConfig;

const RULES: &str = "[roles.reader]\nallow = ['echo', 'fail', 'whoami']\nrate = '2/h'\n[roles.other]\nallow = ['**']";

async fn rig(folder: &Path, options: AuditOptions) -> Rig {
    let mut host = open_host(HostConfig { servers: vec![fake("one", "legacy")] });
    host.policy = LivePolicy::new(set(RULES));
    host.audit = Some(AuditLog::open(folder, options).expect("a log"));
    Rig::with(host).await
}

/// Polls the audit log until it has `count` lines of this event.
async fn lines(folder: &Path, event: &str, count: usize) -> Vec<Value> {
    within("the lines", async {
        loop {
            let (_, lines) = Tail::open(folder, 1000).expect("a tail");
            let lines = lines.iter().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
            let lines: Vec<Value> = lines.filter(|line| line["event"] == event).collect();
            if lines.len() >= count {
                return lines;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}

#[tokio::test]
async fn every_decision_and_every_call_is_logged_as_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut rig = rig(folder.path(), AuditOptions::default()).await;
    let worker = worker(&rig, Some("reader"), true).await;
    let secret = json!({"password": "do-not-write-me-down"});
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let params = json!({"name": "echo", "arguments": secret, "_meta": {"traceparent": trace}});
    worker.rpc("one", "tools/call", params).await.text();
    worker.tool("one", "fail", json!({})).await.result();
    assert_eq!(worker.tool("one", "whoami", json!({})).await.error()["data"]["code"], "TB0417");
    assert_eq!(worker.tool("one", "add", json!({})).await.error()["data"]["code"], "TB0403");
    worker.rpc("one", "tools/list", json!({})).await.result();

    let decisions = lines(folder.path(), "decision", 4).await;
    let effects: Vec<&str> = decisions.iter().map(|line| line["effect"].as_str().expect("an effect")).collect();
    assert_eq!(effects, ["allow", "allow", "allow", "deny"]);
    let first = &decisions[0];
    assert_eq!(first["args"], argument_hash(Some(raw(&secret).get())));
    let fields = ["who", "role", "server", "kind", "name", "trace"].map(|name| first[name].as_str().expect(name));
    assert_eq!(fields, ["w", "reader", "one", "tool", "echo", "4bf92f3577b34da6a3ce929d0e0e4736"]);
    assert!(first["rule"].as_str().is_some_and(|rule| rule.contains("echo")), "{first}");
    assert_eq!(decisions[3]["code"], "TB0403");

    let calls = lines(folder.path(), "call", 3).await;
    let outcomes: Vec<&str> = calls.iter().map(|line| line["outcome"].as_str().expect("an outcome")).collect();
    assert_eq!(outcomes, ["ok", "tool_error", "TB0417"]);
    assert_eq!((&calls[0]["attempt"], &calls[0]["request"]), (&json!(1), &first["request"]));
    assert!(calls[0]["result_bytes"].as_u64() > Some(10) && calls[0]["request_bytes"].as_u64() > Some(10));
    rig.stop_host().await;
    assert_eq!(verify(folder.path(), &VerifyOptions::default()).expect("readable").problem, None);
    let text = std::fs::read_to_string(folder.path().join("audit-000001.jsonl")).expect("a log");
    assert!(!text.contains("do-not-write-me-down"));
}

#[tokio::test]
async fn a_call_that_cannot_be_logged_is_not_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let rig = rig(folder.path(), AuditOptions { max_file_bytes: 1, ..AuditOptions::default() }).await;
    // A folder of that name makes the creation of the next log file fail.
    std::fs::create_dir(folder.path().join("audit-000002.jsonl")).expect("a blocking folder");
    let worker = worker(&rig, Some("other"), true).await;
    let error = worker.tool("one", "echo", json!({})).await.error();
    assert_eq!(error["data"]["code"], "TB0418");
}

#[tokio::test]
async fn an_approved_call_that_cannot_be_logged_is_not_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut host = open_host(HostConfig { servers: vec![fake("one", "legacy")] });
    host.policy = LivePolicy::new(set("[roles.reader]\nask = ['add']\n[roles.boss]\napprove = true"));
    let options = AuditOptions { max_file_bytes: 1, ..AuditOptions::default() };
    host.audit = Some(AuditLog::open(folder.path(), options).expect("a log"));
    let rig = Rig::with(host).await;
    let (boss, worker) = (crate::approvals::agent(&rig, "b", "boss").await, worker(&rig, Some("reader"), true).await);
    let call = worker.start("one", "tools/call", json!({"name": "add", "arguments": {"a": 1, "b": 2}})).await;
    let pending = crate::approvals::wait_for_pending(&boss, 1).await.remove(0);
    assert_eq!(crate::approvals::decide(&worker, &pending, true).await.error()["data"]["code"], "TB0403");
    let refused = lines(folder.path(), "approval", 2).await.pop().expect("a line");
    assert_eq!((&refused["state"], &refused["by"]["who"]), (&json!("refused"), &json!("w")), "{refused}");
    // Folders of those names make the creation of log files fail.
    for number in 1..20 {
        std::fs::create_dir(folder.path().join(format!("audit-{number:06}.jsonl"))).ok();
    }
    crate::approvals::decide(&boss, &pending, true).await;
    assert_eq!(crate::support::finish(call).await.error()["data"]["code"], "TB0418");
}

#[tokio::test]
async fn many_refused_calls_with_long_names_take_little_space() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut rig = rig(folder.path(), AuditOptions::default()).await;
    let worker = worker(&rig, Some("reader"), true).await;
    let long = "ü".repeat(20_000);
    for n in 0..60 {
        assert_eq!(worker.tool("one", &format!("{long}{n}"), json!({})).await.error()["data"]["code"], "TB0403");
    }
    worker.rpc("one", &long, json!({})).await;
    rig.stop_host().await;
    drop(rig);
    let counted = lines(folder.path(), "requests_refused", 1).await;
    assert_eq!((&counted[0]["who"], &counted[0]["code"]), (&json!("w"), &json!("TB0403")));
    let written = lines(folder.path(), "decision", 2).await;
    assert_ne!(written[0]["name"], written[1]["name"], "truncated names must differ in their hash");
    let bytes = std::fs::metadata(folder.path().join("audit-000001.jsonl")).expect("a log").len();
    assert!(bytes < 100_000, "{bytes}");
}

#[tokio::test]
async fn a_flood_of_allowed_calls_of_tools_that_do_not_exist_writes_few_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut options = open_host(HostConfig { servers: vec![fake("one", "legacy")] });
    options.policy = LivePolicy::new(set("[roles.reader]\nallow = ['**']"));
    options.audit = Some(AuditLog::open(folder.path(), AuditOptions::default()).expect("a log"));
    let mut rig = Rig::with(options).await;
    let worker = worker(&rig, Some("reader"), true).await;
    for n in 0..60 {
        assert_eq!(worker.tool("one", &format!("invented{n}"), json!({})).await.error()["data"]["code"], "TB0404");
    }
    worker.tool("one", "add", json!({"a": 1, "b": 2})).await;
    rig.stop_host().await;
    drop(rig);
    let text = std::fs::read_to_string(folder.path().join("audit-000001.jsonl")).expect("a log");
    let all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |part: &'static str| {
        all.iter().filter(move |line| line["name"].as_str().is_some_and(|name| name.starts_with(part)))
    };
    let counted: u64 =
        all.iter().filter(|line| line["event"] == "requests_refused").filter_map(|line| line["count"].as_u64()).sum();
    let invented = of("invented").count() as u64;
    assert!((10..60).contains(&invented), "{invented}");
    assert_eq!(invented + counted, 60, "each is a line or is counted");
    assert!(of("invented").all(|line| line["effect"] == "refuse" && line["code"] == "TB0404"), "{text}");
    assert_eq!(of("add").count(), 2, "a decision and an end: {text}");
}
