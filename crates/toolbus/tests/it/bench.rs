//! `toolbus bench`: figures of the caller's own path, and no effects unless the user asked for them.

use crate::support::soon;
use crate::up::UpInstance;
use serde_json::{Value, json};
use tempfile::TempDir;

#[tokio::test]
async fn the_demo_clock_is_measured_if_no_tool_is_named() {
    let instance = UpInstance::start(&[]).await.settled().await;
    let measured = instance.run(&["bench", "--seconds", "0.1", "--in-flight", "1,4", "--json"]).await;
    measured.check(0, &[], &[]);
    let report: Value = serde_json::from_str(&measured.out).expect("JSON");
    assert_eq!((&report["tool"], &report["server"]), (&json!("now"), &json!("demo")));
    let levels = report["levels"].as_array().expect("levels");
    assert_eq!(levels.iter().map(|level| &level["in_flight"]).collect::<Vec<_>>(), [&json!(1), &json!(4)]);
    for level in levels {
        let figure = |name: &str| level[name].as_f64().expect("a figure");
        assert!(figure("calls") >= 1.0 && figure("per_second") > 0.0, "{level}");
        let latencies = ["p50_us", "p90_us", "p99_us", "max_us"].map(figure);
        assert!(latencies[0] > 0.0 && latencies.is_sorted(), "{level}");
    }
    assert!(report["parts"]["broker_us"].as_u64().expect("a figure") > 0, "{report}");
    let args = ["bench", "text_stats", "--arg", "text=hello", "--seconds", "0.1", "--in-flight", "2"];
    let parts = ["calls of text_stats (demo on host)", "IN FLIGHT", "CALLS/S", "P99", "PART", "broker", "journal"];
    instance.run(&args).await.check(0, &parts, &[]);
    let args = ["bench", "now", "--arg", "zone=Nowhere", "--seconds", "0.1"];
    instance.run(&args).await.check(2, &[], &["now failed", "hint: `toolbus call`"]);
}

#[tokio::test]
async fn a_tool_that_may_have_effects_is_called_only_if_the_user_agrees() {
    let folder = TempDir::new().expect("a temporary folder");
    let effects = folder.path().join("effects");
    let server = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/effects.py");
    let servers = json!({"mcpServers": {"effects": {"command": "python3", "args": [server, &effects]}}});
    std::fs::write(folder.path().join("mcp.json"), servers.to_string()).expect("the folder is writable");
    let instance = UpInstance::start_in(folder, &["--mcp-config", "mcp.json"]).await;
    soon("the tool", async { while !instance.run(&["tools"]).await.out.contains("act") {} }).await;
    instance.run(&["bench"]).await.check(2, &[], &["no tool given"]);
    let args = ["bench", "act", r#"{"id": "a", "seconds": 0}"#, "--seconds", "0.1", "--in-flight", "1", "--json"];
    instance.run(&args).await.check(2, &[], &["act may have effects", "--yes"]);
    assert!(!effects.exists());
    let measured = instance.run(&[&args[..], &["--yes"]].concat()).await;
    measured.check(0, &[], &[]);
    let report: Value = serde_json::from_str(&measured.out).expect("JSON");
    let called = std::fs::read_to_string(&effects).expect("the tool's effects").lines().count() as u64;
    assert!(called > report["levels"][0]["calls"].as_u64().expect("a figure"), "{called} effects: {report}");
}
