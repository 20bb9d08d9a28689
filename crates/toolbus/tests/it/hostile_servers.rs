//! Misbehaving servers: their caller gets a precise error, and calls to other servers are not affected.

use crate::mcp_client::{McpClient, StdioClient};
use crate::mcp_process::{UpProcess, python};
use crate::support::soon;
use serde_json::{Value, json};
use std::path::PathBuf;

const INITIALIZE: &str =
    r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"careful","version":"1"}}"#;

/// Hosts a good server, and one that misbehaves in this mode.
async fn with_bad_server(mode: &str) -> (UpProcess, StdioClient) {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/hostile.py").display().to_string();
    // Long enough for 100 MB on a busy machine; only the silent server is expected to reach it.
    let timeout = if mode == "silent" { "1s" } else { "15s" };
    let server = |mode: &str| json!({"command": python(), "args": [script, mode], "timeout": timeout});
    let up = UpProcess::hosting(|_| json!({"mcpServers": {"good": server("good"), "bad": server(mode)}})).await;
    let mut client = StdioClient::start(&up).await;
    soon("initialize", client.request("initialize", INITIALIZE)).await;
    client.notify("notifications/initialized", "{}").await;
    (up, client)
}

async fn call(client: &mut StdioClient, tool: &str) -> Value {
    let params = json!({"name": tool, "arguments": {"text": "x"}}).to_string();
    let answered = soon(tool, client.request("tools/call", &params)).await;
    serde_json::from_str(&answered.response).expect("JSON")
}

async fn check_good(client: &mut StdioClient) {
    assert_eq!(call(client, "good_0").await["result"]["content"][0]["text"], "ok good");
}

fn stable_code(answer: &Value) -> &str {
    answer["error"]["data"]["code"].as_str().unwrap_or_else(|| panic!("no stable code in {answer}"))
}

#[tokio::test]
async fn garbage_on_stdout_is_skipped() {
    let (_up, mut client) = with_bad_server("garbage").await;
    assert_eq!(call(&mut client, "garbage_0").await["result"]["content"][0]["text"], "ok garbage");
    check_good(&mut client).await;
}

#[tokio::test]
async fn a_flood_on_stderr_does_not_block_calls() {
    let (_up, mut client) = with_bad_server("stderr").await;
    assert_eq!(call(&mut client, "stderr_0").await["result"]["content"][0]["text"], "ok stderr");
    check_good(&mut client).await;
}

#[tokio::test]
async fn a_server_that_dies_during_a_call_is_reported_and_restarted() {
    let (_up, mut client) = with_bad_server("dies").await;
    for _ in 0..2 {
        let answer = call(&mut client, "dies_0").await;
        assert_eq!(stable_code(&answer), "TB0408");
        assert!(answer["error"]["message"].as_str().expect("a sentence").contains("bad"), "{answer}");
    }
    check_good(&mut client).await;
}

#[tokio::test]
async fn a_server_that_never_answers_hits_its_timeout() {
    let (_up, mut client) = with_bad_server("silent").await;
    assert_eq!(stable_code(&call(&mut client, "silent_0").await), "TB0407");
    check_good(&mut client).await;
}

#[tokio::test]
async fn duplicate_and_unknown_responses_are_dropped() {
    for mode in ["twice", "foreign"] {
        let (_up, mut client) = with_bad_server(mode).await;
        for _ in 0..3 {
            let answer = call(&mut client, &format!("{mode}_0")).await;
            assert_eq!(answer["result"]["content"][0]["text"], format!("ok {mode}"));
        }
        check_good(&mut client).await;
    }
}

#[tokio::test]
async fn a_result_of_100_megabytes_fails_only_its_own_call() {
    let (_up, mut client) = with_bad_server("huge").await;
    for _ in 0..2 {
        assert_eq!(stable_code(&call(&mut client, "huge_0").await), "TB0405");
    }
    check_good(&mut client).await;
}

#[tokio::test]
async fn five_thousand_tools_are_all_listed() {
    let (_up, mut client) = with_bad_server("many").await;
    let (mut names, mut cursor) = (std::collections::BTreeSet::new(), Value::Null);
    loop {
        let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
        let answered = soon("a page", client.request("tools/list", &params.to_string())).await;
        let page: Value = serde_json::from_str(&answered.response).expect("JSON");
        let tools = page["result"]["tools"].as_array().expect("a page of tools");
        names.extend(tools.iter().filter_map(|tool| tool["name"].as_str().map(ToOwned::to_owned)));
        cursor = page["result"]["nextCursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(names.len(), 5001);
    assert_eq!(call(&mut client, "many_4999").await["result"]["content"][0]["text"], "ok many");
    check_good(&mut client).await;
}

#[tokio::test]
async fn endless_list_changed_notifications_do_not_block_calls() {
    let (_up, mut client) = with_bad_server("loop").await;
    for _ in 0..20 {
        assert_eq!(call(&mut client, "loop_0").await["result"]["content"][0]["text"], "ok loop");
        check_good(&mut client).await;
    }
}
