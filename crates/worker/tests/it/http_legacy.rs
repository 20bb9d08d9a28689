//! The legacy era over HTTP: sessions, resumable streams, limits, joined calls.

use crate::support::bus::{FakeBus, HostCall, echo};
use crate::support::http::Endpoint;
use crate::support::{eventually, host, initialize, request, server};
use hyper::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolbus_mcp::{HostEvent, HostReply, HostRequest, RpcError, raw};
use toolbus_worker::HttpOptions;

pub fn bus() -> Arc<FakeBus> {
    FakeBus::new(vec![host("h", vec![server("files", &["read"])])])
}

/// An endpoint with an open session. The test plays the host.
pub async fn open_session(bus: &Arc<FakeBus>, options: HttpOptions) -> (Endpoint, String) {
    let endpoint = Endpoint::start(bus, options).await;
    let session = new_session(&endpoint, bus).await;
    (endpoint, session)
}

pub async fn new_session(endpoint: &Endpoint, bus: &FakeBus) -> String {
    let answer = async {
        let call = bus.next_call().await;
        let result = echo(&call).unwrap();
        call.reply(result).await;
    };
    tokio::join!(endpoint.open(), answer).0
}

fn tool_call(id: u64) -> Value {
    request(id, "tools/call", json!({"name": "read"}))
}

#[tokio::test]
async fn a_session_starts_with_initialize_and_ends_with_delete() {
    let bus = bus();
    bus.serve(echo);
    let endpoint = Endpoint::start(&bus, HttpOptions::default()).await;
    let session = endpoint.open().await;
    let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(endpoint.in_session(&session, &note).await.status(), StatusCode::ACCEPTED);
    bus.sent(|sent| matches!(sent, HostRequest::Notify(notify) if notify.method == "notifications/initialized")).await;
    let answer = endpoint.in_session(&session, &tool_call(1)).await;
    assert_eq!(answer.header("content-type").as_deref(), Some("application/json"));
    assert_eq!(answer.json().await["result"]["asked"], "tools/call");
    endpoint.send("DELETE", &[("mcp-session-id", &session)], "").await;
    bus.sent(|sent| matches!(sent, HostRequest::Close { session: closed } if *closed == session)).await;
}

#[tokio::test]
async fn events_arrive_on_the_stream_of_their_call_before_the_result() {
    let bus = bus();
    let (endpoint, session) = open_session(&bus, HttpOptions::default()).await;
    let body = tool_call(7);
    let (mut answer, call) = tokio::join!(endpoint.in_session(&session, &body), async {
        let call = bus.next_call().await;
        call.notify("notifications/message", json!({"level": "info", "data": 1})).await;
        call.request_client("q", "sampling/createMessage", json!({})).await;
        call
    });
    let priming = answer.block().await.unwrap();
    assert!(priming.starts_with("id: ") && priming.contains("\nretry: ") && priming.ends_with("\ndata: "), "{priming}");
    assert_eq!(answer.message().await["method"], "notifications/message");
    let client_request = answer.message().await;
    let response = json!({"jsonrpc": "2.0", "id": client_request["id"], "result": {"role": "assistant"}});
    assert_eq!(endpoint.in_session(&session, &response).await.status(), StatusCode::ACCEPTED);
    bus.sent(|sent| matches!(sent, HostRequest::Answer(_))).await;
    call.reply(json!({"ok": 1})).await;
    assert_eq!(answer.message().await, json!({"jsonrpc": "2.0", "id": 7, "result": {"ok": 1}}));
    assert_eq!(answer.block().await, None);
}

#[tokio::test]
async fn a_broken_stream_is_resumed_and_the_call_goes_on() {
    let bus = bus();
    let (endpoint, session) = open_session(&bus, HttpOptions::default()).await;
    let (body, progress) = (tool_call(1), |n: u64| json!({"progressToken": 1, "progress": n}));
    let (mut answer, call) = tokio::join!(endpoint.in_session(&session, &body), async {
        let call = bus.next_call().await;
        call.notify("notifications/progress", progress(1)).await;
        call
    });
    let (id, _) = answer.event().await.unwrap();
    drop(answer);
    call.notify("notifications/progress", progress(2)).await;
    let last = id.unwrap();
    let headers = [("mcp-session-id", session.as_str()), ("last-event-id", &last), ("accept", "text/event-stream")];
    let mut resumed = endpoint.send("GET", &headers, "").await;
    assert_eq!(resumed.message().await["params"], progress(2));
    call.reply(json!({"done": true})).await;
    assert_eq!(resumed.message().await["result"], json!({"done": true}));
    assert_eq!(resumed.block().await, None);
    // A completed stream can be resumed too.
    let mut again = endpoint.send("GET", &headers, "").await;
    assert_eq!(again.message().await["params"], progress(2));
    assert_eq!(again.message().await["result"], json!({"done": true}));
}

#[tokio::test]
async fn a_silent_call_becomes_a_stream_with_keepalives() {
    let bus = bus();
    let options = HttpOptions {
        legacy_quiet: Duration::from_millis(5),
        keepalive: Duration::from_millis(10),
        ..HttpOptions::default()
    };
    let (endpoint, session) = open_session(&bus, options).await;
    let body = tool_call(1);
    let (mut answer, call) = tokio::join!(endpoint.in_session(&session, &body), bus.next_call());
    assert!(answer.is_stream());
    answer.block().await;
    assert_eq!(answer.block().await.as_deref(), Some(": ping"));
    call.reply(json!({})).await;
    assert_eq!(answer.message().await["id"], 1);
}

#[tokio::test]
async fn concurrent_calls_of_a_session_have_separate_streams() {
    let bus = bus();
    let (endpoint, session) = open_session(&bus, HttpOptions::default()).await;
    let bodies = [tool_call(1), tool_call(1), tool_call(3)];
    let posts = async {
        tokio::join!(
            endpoint.in_session(&session, &bodies[0]),
            endpoint.in_session(&session, &bodies[1]),
            endpoint.in_session(&session, &bodies[2])
        )
    };
    let hosts = async {
        let calls: [HostCall; 3] = [bus.next_call().await, bus.next_call().await, bus.next_call().await];
        for call in calls.iter().rev() {
            call.notify("notifications/message", json!({"of": call.id})).await;
            call.reply(json!({"of": call.id})).await;
        }
    };
    let ((one, two, three), ()) = tokio::join!(posts, hosts);
    for (mut answer, id) in [(one, 1), (two, 1), (three, 3)] {
        let note = answer.message().await;
        let result = answer.message().await;
        assert_eq!((&result["id"], &result["result"]["of"]), (&json!(id), &note["params"]["of"]));
    }
}

#[tokio::test]
async fn the_standalone_stream_carries_messages_outside_of_calls() {
    let bus = bus();
    let (endpoint, session) = open_session(&bus, HttpOptions::default()).await;
    let event = |n: u64| HostEvent::Notification {
        server: "files".into(),
        method: "notifications/resources/updated".into(),
        params: Some(raw(&json!({"uri": format!("x://{n}")}))),
    };
    // Events from before the stream is opened are kept for it.
    bus.send_session_event("h", &session, event(1)).await;
    let headers = [("mcp-session-id", session.as_str()), ("accept", "text/event-stream")];
    let mut stream = endpoint.send("GET", &headers, "").await;
    let (id, message) = stream.event().await.unwrap();
    assert_eq!(message["params"]["uri"], "x://1");
    bus.send_session_event("h", &session, event(2)).await;
    assert_eq!(stream.message().await["params"]["uri"], "x://2");
    // A second reader takes over after the event in its Last-Event-ID.
    let id = id.unwrap();
    let resume = [headers[0], headers[1], ("last-event-id", &id)];
    let mut newer = endpoint.send("GET", &resume, "").await;
    assert_eq!(newer.message().await["params"]["uri"], "x://2");
    assert_eq!(stream.event().await, None);
}

#[tokio::test]
async fn a_cancelled_call_ends_without_a_response() {
    let bus = bus();
    let options = HttpOptions { legacy_quiet: Duration::from_millis(5), ..HttpOptions::default() };
    let (endpoint, session) = open_session(&bus, options).await;
    let body = tool_call(4);
    let (mut answer, call) = tokio::join!(endpoint.in_session(&session, &body), bus.next_call());
    let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 4}});
    endpoint.in_session(&session, &note).await;
    bus.sent(|sent| matches!(sent, HostRequest::Notify(notify) if notify.method == "notifications/cancelled")).await;
    call.finish(HostReply::Cancelled).await;
    assert_eq!(answer.event().await, None);
}

#[tokio::test]
async fn sessions_are_limited_and_idle_ones_end() {
    let bus = bus();
    bus.serve(echo);
    let options = HttpOptions { max_sessions: 8, session_idle: Duration::from_millis(200), ..HttpOptions::default() };
    let endpoint = Endpoint::start(&bus, options).await;
    let session = endpoint.open().await;
    endpoint.open().await;
    let refused = endpoint.post(&[], &initialize(9)).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let refused = refused.json().await;
    assert_eq!((&refused["id"], &refused["error"]["data"]["code"]), (&json!(9), &json!("TB0406")));
    let other = endpoint.post(&[("authorization", "Bearer bob")], &initialize(9)).await;
    assert_eq!(other.status(), StatusCode::OK);
    eventually("the end of idle sessions", || {
        bus.all_sent()
            .iter()
            .any(|(_, sent)| matches!(sent, HostRequest::Close { session: closed } if *closed == session))
    })
    .await;
    assert_eq!(endpoint.in_session(&session, &tool_call(1)).await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_failed_initialize_creates_no_session() {
    let bus = bus();
    let endpoint = Endpoint::start(&bus, HttpOptions { max_sessions: 1, ..HttpOptions::default() }).await;
    for _ in 0..3 {
        let body = initialize(1);
        let (answer, ()) = tokio::join!(endpoint.post(&[], &body), async {
            bus.next_call().await.finish(HostReply::Rpc(RpcError::new(-32050, "down").into())).await;
        });
        assert_eq!((answer.status(), answer.header("mcp-session-id")), (StatusCode::OK, None));
        assert_eq!(answer.json().await["error"]["message"], "down");
    }
}

/// A restarted client opens a new session and repeats its call.
#[tokio::test]
async fn a_call_repeated_after_a_broken_connection_is_joined() {
    let bus = bus();
    let options = HttpOptions { legacy_quiet: Duration::from_millis(5), ..HttpOptions::default() };
    let (endpoint, session) = open_session(&bus, options).await;
    let body = tool_call(1);
    let (mut answer, call) = tokio::join!(endpoint.in_session(&session, &body), bus.next_call());
    assert!(answer.is_stream());
    let priming = answer.block().await.expect("an event without data");
    let last = priming.lines().find_map(|line| line.strip_prefix("id: ")).expect("an id").to_owned();
    drop(answer);
    let second_session = new_session(&endpoint, &bus).await;
    let mut repeated = tool_call(9);
    repeated["params"]["_meta"] = json!({"progressToken": "mine"});
    // The server notices the end of the first connection with a delay.
    let mut attempts = 0;
    let mut joined = loop {
        attempts += 1;
        assert!(attempts < 20, "the call is never joined");
        let mut answer = endpoint.in_session(&second_session, &repeated).await;
        assert!(answer.is_stream());
        match tokio::time::timeout(Duration::from_millis(700), bus.next_call()).await {
            Err(_) => break answer,
            Ok(ran) => ran.reply(json!({})).await,
        }
        assert_eq!(answer.message().await["result"], json!({}));
    };
    call.notify("notifications/progress", json!({"progressToken": 1, "progress": 7})).await;
    call.reply(json!({"content": []})).await;
    assert_eq!(joined.message().await["params"], json!({"progressToken": "mine", "progress": 7}));
    let result = joined.message().await;
    assert_eq!(result["id"], 9);
    assert!(result["result"]["_meta"]["toolbus/joined"]["call"].is_string(), "{result}");
    // The first client resumes its stream and gets the response to its own request.
    let headers = [("accept", "text/event-stream"), ("mcp-session-id", &*session), ("last-event-id", &*last)];
    let own = endpoint.send("GET", &headers, "").await.message().await;
    assert_eq!((&own["id"], &own["result"]), (&json!(1), &json!({"content": []})));
    // The response was collected, so the next equal call runs.
    let (_, ran) = tokio::join!(endpoint.in_session(&second_session, &repeated), bus.next_call());
    assert_eq!(ran.params()["name"], body["params"]["name"]);
}

/// Repeats the call in a new session until the end of the first connection must have been noticed.
async fn assert_runs_each_time(endpoint: &Endpoint, bus: &FakeBus) {
    let second_session = new_session(endpoint, bus).await;
    for _ in 0..20 {
        let body = tool_call(9);
        let (answer, ()) = tokio::join!(endpoint.in_session(&second_session, &body), async {
            bus.next_call().await.reply(json!({"content": []})).await;
        });
        assert_eq!(answer.status(), StatusCode::OK);
        answer.text().await;
    }
}

#[tokio::test]
async fn a_call_of_a_live_client_is_not_joined_by_another_session() {
    let bus = bus();
    let options = HttpOptions { legacy_quiet: Duration::from_millis(5), ..HttpOptions::default() };
    let (endpoint, session) = open_session(&bus, options).await;
    let headers = [("accept", "text/event-stream"), ("mcp-session-id", &*session)];
    let reading = endpoint.send("GET", &headers, "").await;
    let body = tool_call(1);
    let (answer, _call) = tokio::join!(endpoint.in_session(&session, &body), bus.next_call());
    drop(answer);
    assert_runs_each_time(&endpoint, &bus).await;
    drop(reading);
}

#[tokio::test]
async fn a_call_marked_alone_is_never_joined() {
    let mut files = server("files", &["read"]);
    files.alone.tools = vec!["read".into()];
    let bus = FakeBus::new(vec![host("h", vec![files])]);
    let options = HttpOptions { legacy_quiet: Duration::from_millis(5), ..HttpOptions::default() };
    let (endpoint, session) = open_session(&bus, options).await;
    let body = tool_call(1);
    let (answer, _call) = tokio::join!(endpoint.in_session(&session, &body), bus.next_call());
    drop(answer);
    assert_runs_each_time(&endpoint, &bus).await;
}
