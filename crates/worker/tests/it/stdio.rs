//! One client on stdin and stdout, one server: the worker is a transparent proxy.

use crate::support::bus::{FakeBus, echo};
use crate::support::stdio::StdioClient;
use crate::support::{eventually, host, initialize, modern, request, server, soon};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolbus_mcp::{Era, HostEvent, HostReply, HostRequest, Id, Outcome, Raw, raw};
use toolbus_worker::{StdioOptions, WorkerOptions};

fn one_server() -> Arc<FakeBus> {
    FakeBus::new(vec![host("host", vec![server("files", &["read"])])])
}

#[tokio::test]
async fn a_single_servers_initialize_result_is_passed_through() {
    let bus = one_server();
    bus.serve(echo);
    let (_client, response) = StdioClient::initialized(&bus).await;
    assert_eq!(response["result"]["serverInfo"], json!({"name": "files", "version": "9"}));
    assert_eq!(response["result"]["extra"], 1);
}

#[tokio::test]
async fn params_and_results_are_passed_through_byte_for_byte() {
    let bus = one_server();
    let (client, replied) = tokio::join!(StdioClient::initialized(&bus), async {
        bus.next_call().await.reply(json!({"protocolVersion": "2025-11-25"})).await
    });
    let ((mut client, _), ()) = (client, replied);
    client.send_text(r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"read","n":12345678901234567890123,"x":1.0}}"#).await;
    let call = bus.next_call().await;
    assert_eq!(call.rpc.params.as_ref().unwrap().get(), r#"{"name":"read","n":12345678901234567890123,"x":1.0}"#);
    assert_eq!(call.rpc.client.era, Era::Legacy);
    assert!(call.rpc.client.initialize.as_ref().unwrap().get().contains("clientInfo"));
    let result = r#"{"z":1e5,"a":0.10,"big":98765432109876543210}"#;
    let result = Raw::parse(result).unwrap();
    call.finish(HostReply::Rpc(Outcome::Result(result))).await;
    assert_eq!(
        client.next_text().await,
        r#"{"jsonrpc":"2.0","id":"a","result":{"z":1e5,"a":0.10,"big":98765432109876543210}}"#
    );
}

#[tokio::test]
async fn notifications_arrive_in_order_before_the_result() {
    let bus = one_server();
    let (mut client, call) =
        started(&bus, request(1, "tools/call", json!({"name": "read", "_meta": {"progressToken": "t"}}))).await;
    for progress in 0..20 {
        call.notify("notifications/progress", json!({"progressToken": "t", "progress": progress})).await;
    }
    call.reply(json!({"done": true})).await;
    for progress in 0..20 {
        assert_eq!(client.next().await["params"], json!({"progressToken": "t", "progress": progress}));
    }
    assert_eq!(client.next().await, json!({"jsonrpc": "2.0", "id": 1, "result": {"done": true}}));
}

#[tokio::test]
async fn a_client_may_reuse_a_request_id() {
    let bus = one_server();
    let (mut client, first) = started(&bus, request(1, "tools/call", json!({"name": "read", "n": 1}))).await;
    client.send(&request(1, "tools/call", json!({"name": "read", "n": 2}))).await;
    let second = bus.next_call().await;
    second.reply(json!({"n": 2})).await;
    assert_eq!(client.next().await, json!({"jsonrpc": "2.0", "id": 1, "result": {"n": 2}}));
    first.reply(json!({"n": 1})).await;
    assert_eq!(client.next().await, json!({"jsonrpc": "2.0", "id": 1, "result": {"n": 1}}));
}

#[tokio::test]
async fn a_client_request_is_answered_by_the_client() {
    let bus = one_server();
    let (mut client, call) = started(&bus, request(1, "tools/call", json!({"name": "read"}))).await;
    call.request_client("q7", "elicitation/create", json!({"message": "who?"})).await;
    let client_request = client.next().await;
    assert_eq!(client_request["method"], "elicitation/create");
    assert_ne!(client_request["id"], "q7");
    client.send(&json!({"jsonrpc": "2.0", "id": client_request["id"], "result": {"action": "accept"}})).await;
    let answer = bus.sent(|sent| matches!(sent, HostRequest::Answer(_))).await;
    let HostRequest::Answer(answer) = answer else { unreachable!() };
    assert_eq!((answer.id, answer.server.as_str()), (Id::text("q7"), "files"));
    assert!(matches!(answer.outcome, Outcome::Result(result) if result.get() == r#"{"action":"accept"}"#));
}

#[tokio::test]
async fn a_servers_cancellation_is_translated_to_the_clients_id() {
    let bus = one_server();
    let (mut client, call) = started(&bus, request(1, "tools/call", json!({"name": "read"}))).await;
    call.request_client("q7", "sampling/createMessage", json!({})).await;
    let client_request = client.next().await;
    call.notify("notifications/cancelled", json!({"requestId": "q7", "reason": "late"})).await;
    assert_eq!(client.next().await["params"], json!({"requestId": client_request["id"], "reason": "late"}));
}

#[tokio::test]
async fn a_clients_cancellation_is_translated_to_the_bus_id() {
    let bus = one_server();
    let (mut client, call) = started(&bus, request("x", "tools/call", json!({"name": "read"}))).await;
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "x", "reason": "no"}})).await;
    let sent = bus.sent(|sent| matches!(sent, HostRequest::Notify(_))).await;
    let HostRequest::Notify(notify) = sent else { unreachable!() };
    let params: Value = serde_json::from_str(notify.params.unwrap().get()).unwrap();
    assert_eq!(params, json!({"requestId": call.id, "reason": "no"}));
    // The cancelled call gets no response; the next message answers the next request.
    call.finish(HostReply::Cancelled).await;
    client.send(&request(2, "ping", json!({}))).await;
    assert_eq!(client.next().await, json!({"jsonrpc": "2.0", "id": 2, "result": {}}));
}

#[tokio::test]
async fn unknown_methods_and_notifications_are_forwarded() {
    let bus = one_server();
    let (mut client, call) = started(&bus, request(1, "vendor/special", json!({"a": 1}))).await;
    assert_eq!(call.rpc.method, "vendor/special");
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/vendor", "params": {"b": 2}})).await;
    bus.sent(|sent| matches!(sent, HostRequest::Notify(notify) if notify.method == "notifications/vendor")).await;
}

#[tokio::test]
async fn a_notification_outside_of_calls_reaches_the_client() {
    let bus = one_server();
    let (mut client, call) = started(&bus, request(1, "tools/call", json!({"name": "read"}))).await;
    let (server, method) = ("files".to_owned(), "notifications/resources/updated".to_owned());
    let event = HostEvent::Notification { server, method, params: Some(raw(&json!({"uri": "x://y"}))) };
    bus.send_session_event("host", &call.rpc.session, event).await;
    assert_eq!(client.next().await["params"], json!({"uri": "x://y"}));
}

#[tokio::test]
async fn both_eras_work_on_one_stdio() {
    let bus = one_server();
    bus.serve(echo);
    let mut client = StdioClient::start(&bus);
    client.send(&modern("p", "server/discover", json!({}))).await;
    assert_eq!(client.next().await["result"]["asked"], "server/discover");
    client.send(&initialize(1)).await;
    assert_eq!(client.next().await["result"]["serverInfo"]["name"], "files");
    client.send(&request(2, "tools/list", json!({}))).await;
    assert_eq!(client.next().await["result"]["asked"], "tools/list");
}

#[tokio::test]
async fn invalid_input_gets_a_precise_error_and_the_session_goes_on() {
    let bus = one_server();
    bus.serve(echo);
    let options = StdioOptions { max_line_bytes: 1000, ..StdioOptions::default() };
    let mut client = StdioClient::with(&bus, WorkerOptions::default(), options);
    let mut check = async |text: &str, id: Value, code: i64| {
        client.send_text(text).await;
        let answer = client.next().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(code)), "{text}: {answer}");
    };
    check("no json", Value::Null, -32700).await;
    check(r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, Value::Null, -32600).await;
    check(r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, Value::Null, -32600).await;
    check(r#"{"jsonrpc":"1.0","id":3,"method":"ping"}"#, json!(3), -32600).await;
    check(r#"{"jsonrpc":"2.0","id":4,"method":7}"#, json!(4), -32600).await;
    check(r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":"x"}"#, json!(5), -32600).await;
    check(r#"{"jsonrpc":"2.0","id":6,"id":7,"method":"ping"}"#, Value::Null, -32700).await;
    check(r#"{"jsonrpc":"2.0","id":8,"method":"tools/list"}"#, json!(8), -32600).await;
    check(r#"{"jsonrpc":"2.0","id":9,"method":"server/discover"}"#, json!(9), -32601).await;
    check(r#"{"jsonrpc":"2.0","id":10,"method":"initialize","params":{}}"#, json!(10), -32602).await;
    check(&format!(r#"{{"jsonrpc":"2.0","id":11,"method":"{}"}}"#, "x".repeat(2000)), json!(11), -32600).await;
    let mut future = modern(12, "tools/list", json!({}));
    future["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    check(&future.to_string(), json!(12), -32022).await;
    check(&modern(13, "ping", json!({})).to_string(), json!(13), -32601).await;
    client.send(&request(14, "ping", json!({}))).await;
    assert_eq!(client.next().await["result"], json!({}));
}

#[tokio::test]
async fn a_message_that_is_too_large_is_answered_under_its_own_id() {
    let bus = one_server();
    let options = StdioOptions { max_line_bytes: 1000, ..StdioOptions::default() };
    let mut client = StdioClient::with(&bus, WorkerOptions::default(), options);
    client.send(&initialize(0)).await;
    bus.next_call().await.reply(json!({"protocolVersion": "2025-11-25"})).await;
    client.next().await;
    let (small, huge) = ("x".repeat(1000), "x".repeat(200_000));
    for text in [&small, &huge] {
        client
            .send_text(&format!(r#"{{"jsonrpc":"2.0","method":"x","params":{{"id":1,"text":"{text}"}},"id":"a"}}"#))
            .await;
        let refused = client.next().await;
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("a"), &json!(-32600)));
        assert_eq!(refused["error"]["data"]["code"], "TB0105");
        // A notification is not answered, and an answer is no request: the server that waits for it gets the error.
        client.send_text(&format!(r#"{{"jsonrpc":"2.0","method":"x","params":{{"text":"{text}"}}}}"#)).await;
        client.send(&request(1, "tools/call", json!({"name": "read"}))).await;
        let call = bus.next_call().await;
        call.request_client("q", "sampling/createMessage", json!({})).await;
        let asked = client.next().await;
        client.send_text(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"text":"{text}"}}}}"#, asked["id"])).await;
        bus.sent(|sent| matches!(sent, HostRequest::Answer(answer) if matches!(answer.outcome, Outcome::Error(_))))
            .await;
        call.reply(json!({})).await;
        client.next().await;
    }
}

#[tokio::test]
async fn at_eof_running_calls_are_answered_and_the_session_is_closed() {
    let bus = one_server();
    let (mut client, call) = started(&bus, request(1, "tools/call", json!({"name": "read"}))).await;
    client.close();
    call.reply(json!({"late": true})).await;
    assert_eq!(client.rest().await, [json!({"jsonrpc": "2.0", "id": 1, "result": {"late": true}})]);
    bus.sent(|sent| matches!(sent, HostRequest::Close { .. })).await;
    soon("the end", &mut client.served).await.unwrap().unwrap();
}

#[tokio::test]
async fn at_eof_running_calls_are_cancelled_after_the_shutdown_timeout() {
    let bus = one_server();
    let options = StdioOptions { last_answers_within: Duration::from_millis(30), ..StdioOptions::default() };
    let mut client = StdioClient::with(&bus, WorkerOptions::default(), options);
    client.send(&modern(1, "tools/call", json!({"name": "read"}))).await;
    let call = bus.next_call().await;
    client.close();
    assert_eq!(client.rest().await, Vec::<Value>::new());
    call.cancelled().await;
}

#[tokio::test]
async fn a_stopped_worker_detaches_from_its_calls_and_cancels_none() {
    let bus = one_server();
    let options = StdioOptions::default();
    let stop = options.stop.clone();
    let mut client = StdioClient::with(&bus, WorkerOptions::default(), options);
    client.send(&modern(1, "tools/call", json!({"name": "read"}))).await;
    let call = bus.next_call().await;
    stop.cancel();
    soon("the end", &mut client.served).await.unwrap().unwrap();
    assert_eq!(bus.detached(), std::slice::from_ref(&call.id));
    assert!(!bus.all_sent().iter().any(|(_, sent)| matches!(sent, HostRequest::Close { .. })), "its server goes on");
}

#[tokio::test(start_paused = true)]
async fn a_stopped_worker_does_not_wait_for_a_client_that_does_not_read() {
    let bus = one_server();
    let options = StdioOptions::default();
    let stop = options.stop.clone();
    let mut client = StdioClient::with(&bus, WorkerOptions::default(), options);
    client.send(&modern(1, "tools/call", json!({"name": "read"}))).await;
    let call = bus.next_call().await;
    call.reply(json!({"text": "x".repeat(4 << 20)})).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stopped = tokio::time::Instant::now();
    stop.cancel();
    assert!((&mut client.served).await.unwrap().is_err(), "the reply can't be written");
    assert!(stopped.elapsed() < Duration::from_secs(5), "{:?}", stopped.elapsed());
}

#[tokio::test]
async fn a_call_beyond_the_limit_is_rejected_and_the_others_go_on() {
    let bus = one_server();
    let options = WorkerOptions { max_calls: 2, ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    for id in 1..=3 {
        client.send(&modern(id, "tools/call", json!({"name": "read"}))).await;
    }
    let refused = client.next().await;
    assert_eq!((&refused["id"], &refused["error"]["data"]["code"]), (&json!(3), &json!("TB0412")));
    bus.next_call().await.reply(json!({})).await;
    assert_eq!(client.next().await["id"], 1);
}

#[tokio::test]
async fn a_call_past_its_deadline_fails_with_a_timeout() {
    let bus = one_server();
    let options = WorkerOptions { call_deadline: Duration::from_millis(20), ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&modern(1, "tools/call", json!({"name": "read"}))).await;
    assert_eq!(client.next().await["error"]["data"]["code"], "TB0407");
}

#[tokio::test]
async fn a_failed_initialize_leaves_no_session_at_the_host() {
    let bus = one_server();
    let mut client = StdioClient::start(&bus);
    client.send(&initialize(1)).await;
    let error = toolbus_mcp::RpcError::new(-32050, "down");
    bus.next_call().await.finish(HostReply::Rpc(error.into())).await;
    assert_eq!(client.next().await["error"]["message"], "down");
    client.send(&request(2, "tools/list", json!({}))).await;
    assert_eq!(client.next().await["error"]["code"], -32600);
    client.close();
    eventually("the session is closed", || {
        bus.all_sent().iter().any(|(_, sent)| matches!(sent, HostRequest::Close { .. }))
    })
    .await;
}

/// An initialized client, and the call that its request has started.
async fn started(bus: &Arc<FakeBus>, message: Value) -> (StdioClient, crate::support::bus::HostCall) {
    let mut client = StdioClient::start(bus);
    client.send(&initialize(0)).await;
    let initialize = bus.next_call().await;
    let result = echo(&initialize).unwrap();
    initialize.reply(result).await;
    client.next().await;
    client.send(&message).await;
    let call = bus.next_call().await;
    (client, call)
}
