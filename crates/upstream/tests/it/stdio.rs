//! The connection over pipes: what is passed on, and to which recipient.

use crate::support::{Server, fake, guarded, json_text, notification, soon, text, value};
use serde_json::json;
use toolbus_mcp::{Era, Outcome, raw};
use toolbus_upstream::{CallEvent, ConnectionOptions, ServerEvent};

#[tokio::test]
async fn params_and_results_keep_every_byte() {
    let server = Server::fake().await;
    let params = r#"{"name":"echo","arguments":{"big":123456789012345678901234567890,"one":1.0,"e":1E+2,"neg":-0.0,"ü":"\u00fc\ud83d\ude00","nested":{"_meta":{"x":[null,true,  1e-7]}}},"unknown":{"z":1,"a":2}}"#;
    let call = server.connection.start("tools/call", Some(json_text(params))).await.expect("sent");
    assert_eq!(text(soon(call.outcome()).await), params);
}

#[tokio::test]
async fn params_with_line_breaks_are_sent_on_one_line() {
    let server = Server::fake().await;
    let params = "{\"name\":\"echo\",\n \"arguments\":{\r\n}}";
    let call = server.connection.start("tools/call", Some(json_text(params))).await.expect("sent");
    let expected = "{\"name\":\"echo\",  \"arguments\":{  }}";
    assert_eq!(text(soon(call.outcome()).await), expected);
}

#[tokio::test]
async fn server_errors_are_passed_on_unchanged() {
    let server = Server::fake().await;
    let Ok(Outcome::Error(error)) = server.request("nothing/such", json!({})).await else { panic!("not an error") };
    assert_eq!(error.get(), r#"{"code":-32601,"message":"Method not found","data":1.0}"#);
}

#[tokio::test]
async fn a_hundred_concurrent_calls_get_their_own_responses() {
    let server = Server::fake().await;
    let mut calls = Vec::new();
    for number in 0..100 {
        calls.push((number, server.start("echo", json!({"number": number})).await));
    }
    for (number, call) in calls {
        assert_eq!(value(soon(call.outcome()).await)["arguments"]["number"], number);
    }
}

#[tokio::test]
async fn progress_arrives_before_the_result_with_the_callers_token() {
    for map_tokens in [false, true] {
        let options = ConnectionOptions { map_tokens, ..guarded() };
        let server = Server::open(&fake("legacy"), Era::Legacy, &options).await;
        let params = r#"{"name":"progress","arguments":{"count":3},"_meta":{"progressToken":"tök","keep":1.0}}"#;
        let mut call = server.connection.start("tools/call", Some(json_text(params))).await.expect("sent");
        for number in 0..3 {
            let (method, params) = notification(&mut call).await;
            assert_eq!(method, "notifications/progress");
            let params: serde_json::Value = serde_json::from_str(&params).expect("valid JSON");
            assert_eq!(params, json!({"progressToken": "tök", "progress": number, "total": 1.5}));
        }
        assert!(matches!(soon(call.next()).await, CallEvent::Done(Ok(_))));
    }
}

#[tokio::test]
async fn two_calls_with_the_same_token_get_their_own_progress() {
    let server = Server::fake().await;
    let params = |count: u32| {
        Some(raw(&json!({"name": "progress", "arguments": {"count": count}, "_meta": {"progressToken": 1}})))
    };
    // The first call stays open while the second one runs.
    let silent = raw(&json!({"name": "silent", "_meta": {"progressToken": 1}}));
    let mut first = server.connection.start("tools/call", Some(silent)).await.expect("sent");
    let mut second = server.connection.start("tools/call", params(2)).await.expect("sent");
    for _ in 0..2 {
        let (_, params) = notification(&mut second).await;
        assert!(params.contains(r#""progressToken":1,"#), "{params}");
    }
    assert!(matches!(soon(second.next()).await, CallEvent::Done(Ok(_))));
    assert!(tokio::time::timeout(std::time::Duration::from_millis(50), first.next()).await.is_err());
}

#[tokio::test]
async fn notifications_go_to_the_only_call_or_else_to_the_owner() {
    let mut server = Server::fake().await;
    let mut call = server.start("logs", json!({"count": 2})).await;
    assert_eq!(notification(&mut call).await.1, r#"{"level": "info", "data": 0}"#);
    drop(call);

    server.connection.notify("tell", None).await.expect("sent");
    // The remaining messages of the abandoned call are delivered here too: they have no other recipient.
    loop {
        match server.next_event().await {
            ServerEvent::Notification { method, .. } if method == "notifications/tools/list_changed" => break,
            ServerEvent::Notification { method, .. } => assert_eq!(method, "notifications/message"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_server_request_reaches_the_call_and_is_answered() {
    let server = Server::fake().await;
    let mut call = server.start("ask", json!({})).await;
    let CallEvent::Request { id, method, params } = soon(call.next()).await else { panic!("not a request") };
    assert_eq!((method.as_str(), id.as_text().as_deref()), ("elicitation/create", Some("q-1")));
    assert_eq!(params.expect("params").get(), r#"{"message":"name?"}"#);
    let answer = json_text(r#"{"action":"accept","content":{"n":1.0}}"#);
    server.connection.answer(&id, Outcome::Result(answer)).await.expect("sent");
    let CallEvent::Done(outcome) = soon(call.next()).await else { panic!("not the end of the call") };
    let received = value(outcome);
    assert_eq!(
        received["answer"],
        json!({"jsonrpc": "2.0", "id": "q-1", "result": {"action": "accept", "content": {"n": 1.0}}})
    );
}

#[tokio::test]
async fn cancel_sends_the_request_id_and_the_call_continues_to_its_end() {
    let server = Server::fake().await;
    let mut call = server.start("wait_for_cancel", json!({})).await;
    notification(&mut call).await;
    call.cancel(Some("no need")).await;
    let CallEvent::Done(outcome) = soon(call.next()).await else { panic!("not the end of the call") };
    let received = value(outcome)["heard"].clone();
    let id: serde_json::Value = serde_json::from_str(call.id().to_raw().get()).expect("valid JSON");
    assert_eq!(received["method"], "notifications/cancelled");
    assert_eq!(received["params"], json!({"requestId": id, "reason": "no need"}));
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_and_its_late_response_is_not_counted() {
    let server = Server::fake().await;
    let mut call = server.start("wait_for_cancel", json!({})).await;
    notification(&mut call).await;
    drop(call);
    value(server.call("echo", json!({})).await);
    assert_eq!(server.connection.oddities().unknown_answers, 0);
}

#[tokio::test]
async fn a_modern_listener_gets_its_notifications_and_the_cancellation() {
    let mut server = Server::open(&fake("modern"), Era::Modern, &guarded()).await;
    let mut listen = server.connection.start("subscriptions/listen", Some(raw(&json!({})))).await.expect("sent");
    let (method, params) = notification(&mut listen).await;
    assert_eq!(method, "notifications/subscriptions/acknowledged");
    assert!(params.contains(&format!("\"io.modelcontextprotocol/subscriptionId\": {}", listen.id().to_raw().get())));
    // A listener doesn't count as the running call, and messages marked for it don't reach the other call.
    let change = server.connection.start("change", None).await.expect("sent");
    assert_eq!(notification(&mut listen).await.0, "notifications/tools/list_changed");
    let CallEvent::Done(Err(error)) = soon(listen.next()).await else { panic!("not the end of the call") };
    assert_eq!(error.to_string(), "server \"fake\" cancelled the request: going down");
    value(soon(change.outcome()).await);
    assert!(server.events.try_recv().is_err());
}

#[tokio::test]
async fn five_thousand_tools_are_listed_in_pages() {
    let server = Server::fake().await;
    let (mut cursor, mut count) = (json!({}), 0);
    loop {
        let page = value(server.request("tools/list", cursor).await);
        count += page["tools"].as_array().expect("tools").len();
        match page.get("nextCursor") {
            Some(next) => cursor = json!({"cursor": next}),
            None => break,
        }
    }
    assert_eq!(count, 5_000);
}
