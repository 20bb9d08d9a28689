//! What an approver sees of a call under an `ask` rule, and what the decision is bound to: all of it.

use crate::approvals::{agent, ask, rig, wait_for_pending};
use crate::policy::worker;
use crate::support::finish;
use serde_json::json;
use toolbus_mcp::{HostRequest, Raw};

#[tokio::test]
async fn the_approver_sees_all_that_will_run() {
    let (rig, _state) = rig().await;
    let (boss, worker) = (agent(&rig, "b", "boss").await, worker(&rig, Some("reader"), true).await);
    let plain = json!({"name": "add", "arguments": {"a": 1, "b": 2}});
    let mut calls = vec![worker.start("one", "tools/call", plain.clone()).await];
    let mut hashes = vec![wait_for_pending(&boss, 1).await[0]["hash"].clone()];
    let more = [
        ("_meta", json!({"progressToken": "p"})),
        ("_meta", json!({"example.org/as": "root"})),
        ("task", json!({"ttl": 5})),
        ("inputResponses", json!({"who": {"action": "accept"}})),
        ("unheardOf", json!([1.0, {"a": null}])),
    ];
    for (key, value) in more {
        let mut params = plain.clone();
        params[key] = value.clone();
        calls.push(worker.start("one", "tools/call", params.clone()).await);
        let listed = wait_for_pending(&boss, calls.len()).await.remove(calls.len() - 1);
        assert_eq!(listed["more_members"], 1, "{key}");
        assert_eq!(listed["more_bytes"], key.len() + value.to_string().len(), "{key}");
        let id = listed["id"].as_str().expect("an id").to_owned();
        let shown = ask(&boss, HostRequest::ApprovalsShow { id }).await.result();
        assert_eq!(shown["approval"]["params"], params, "{key}");
        assert!(!hashes.contains(&listed["hash"]), "{key}: the hash does not cover it");
        hashes.push(listed["hash"].clone());
    }
    // The same call as a task is another one.
    let task = worker.task("one", "add", json!({"a": 1, "b": 2}), Some(5000)).await;
    assert!(!task.refused(), "{task:?}");
    let listed = wait_for_pending(&boss, calls.len() + 1).await.remove(calls.len());
    assert_eq!(listed["task"], json!({"ttl_ms": 5000}));
    assert!(!hashes.contains(&listed["hash"]));
}

#[tokio::test]
async fn a_duplicate_key_anywhere_in_the_params_of_a_call_under_ask_is_refused() {
    let (rig, _state) = rig().await;
    let worker = worker(&rig, Some("reader"), true).await;
    for params in [
        r#"{"name":"add","arguments":{"a":1,"b":2,"a":3}}"#,
        r#"{"name":"add","arguments":{"a":1,"b":2},"_meta":{"x":1,"x":2}}"#,
        r#"{"name":"add","arguments":{"a":1,"b":2},"task":{"deep":[{"x":1,"\u0078":2}]}}"#,
        r#"{"name":"add","arguments":{"a":1,"b":2},"unheardOf":{"x":1,"x":2}}"#,
    ] {
        let params = Raw::parse(params).expect("JSON");
        let error = finish(worker.start_raw("one", "tools/call", params.clone()).await).await.error();
        assert_eq!(error["data"]["code"], "TB0419", "{params}");
    }
}
