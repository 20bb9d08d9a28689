//! Legacy calls whose connection broke: who may join them and for how long, and that their session stays meanwhile.

use crate::http_legacy::{bus, new_session, open_session};
use crate::support::bus::{FakeBus, HostCall, echo};
use crate::support::http::{Answer, Endpoint};
use crate::support::{initialize, request, skip, soon};
use hyper::StatusCode;
use serde_json::{Value, json};
use std::time::Duration;
use toolbus_mcp::HostRequest;
use toolbus_worker::HttpOptions;

const MINUTE: Duration = Duration::from_secs(60);

fn options() -> HttpOptions {
    HttpOptions { legacy_quiet: Duration::from_millis(5), ..HttpOptions::default() }
}

fn tool_call(id: u64, argument: u64) -> Value {
    request(id, "tools/call", json!({"name": "read", "arguments": {"n": argument}}))
}

/// Starts a call in the session, and returns the id of its stream's first event.
async fn start(endpoint: &Endpoint, bus: &FakeBus, session: &str, argument: u64) -> (Answer, String, HostCall) {
    let body = tool_call(argument, argument);
    let (mut answer, call) = tokio::join!(endpoint.in_session(session, &body), bus.next_call());
    let priming = soon("an event without data", answer.block()).await.unwrap();
    let first = priming.lines().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
    (answer, first, call)
}

/// Repeats a call that has ended. Returns its response, or `None` if it runs again.
async fn repeat(endpoint: &Endpoint, bus: &FakeBus, session: &str, argument: u64) -> Option<Value> {
    let body = tool_call(9, argument);
    tokio::select! {
        answer = async { endpoint.in_session(session, &body).await.json().await } => Some(answer),
        again = bus.next_call() => {
            again.reply(json!({})).await;
            None
        }
    }
}

fn is_close(sent: &HostRequest) -> bool {
    matches!(sent, HostRequest::Close { .. })
}

fn is_joined(answer: Option<Value>) -> bool {
    answer.is_some_and(|answer| answer["result"]["_meta"]["toolbus/joined"]["call"].is_string())
}

#[tokio::test]
async fn a_session_stays_while_its_call_runs_though_its_client_is_disconnected() {
    let bus = bus();
    let (endpoint, session) = open_session(&bus, HttpOptions { session_idle: MINUTE, ..options() }).await;
    let (answer, _, call) = start(&endpoint, &bus, &session, 1).await;
    drop(answer);
    endpoint.all_disconnected().await;
    for _ in 0..3 {
        skip(2 * MINUTE).await;
    }
    assert!(!bus.all_sent().iter().any(|(_, sent)| is_close(sent)), "the session is open");
    let pong = endpoint.in_session(&session, &request(2, "ping", json!({}))).await;
    assert_eq!(pong.status(), StatusCode::OK);
    pong.text().await;
    call.reply(json!({"content": []})).await;
    endpoint.all_disconnected().await;
    skip(2 * MINUTE).await;
    bus.sent(is_close).await;
    assert_eq!(endpoint.in_session(&session, &tool_call(3, 3)).await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_session_stays_while_its_client_reads_its_stream() {
    let bus = bus();
    let (endpoint, session) = open_session(&bus, HttpOptions { session_idle: MINUTE, ..options() }).await;
    let headers = [("accept", "text/event-stream"), ("mcp-session-id", &*session)];
    let reading = endpoint.send("GET", &headers, "").await;
    skip(2 * MINUTE).await;
    skip(2 * MINUTE).await;
    assert!(!bus.all_sent().iter().any(|(_, sent)| is_close(sent)), "the session is open");
    drop(reading);
    endpoint.all_disconnected().await;
    skip(2 * MINUTE).await;
    bus.sent(is_close).await;
}

#[tokio::test]
async fn a_response_can_be_joined_only_within_its_time() {
    for (elapsed, joins) in [(MINUTE / 2, true), (2 * MINUTE, false)] {
        let bus = bus();
        let (endpoint, session) = open_session(&bus, HttpOptions { join_window: MINUTE, ..options() }).await;
        let (answer, _, call) = start(&endpoint, &bus, &session, 1).await;
        drop(answer);
        endpoint.all_disconnected().await;
        // However long the call runs, the time counts from its end.
        skip(5 * MINUTE).await;
        call.reply(json!({"content": []})).await;
        // All other tasks run first, so the response has its time when the clock moves on.
        tokio::task::yield_now().await;
        skip(elapsed).await;
        assert_eq!(is_joined(repeat(&endpoint, &bus, &session, 1).await), joins, "after {elapsed:?}");
    }
}

#[tokio::test]
async fn a_client_that_resumes_one_stream_can_still_repeat_its_other_call() {
    let bus = bus();
    let (endpoint, session) = open_session(&bus, options()).await;
    let (one, first_of_one, call_one) = start(&endpoint, &bus, &session, 1).await;
    let (two, _, call_two) = start(&endpoint, &bus, &session, 2).await;
    drop((one, two));
    endpoint.all_disconnected().await;
    call_one.reply(json!({"content": ["one"]})).await;
    call_two.reply(json!({"content": ["two"]})).await;
    let headers = [("accept", "text/event-stream"), ("mcp-session-id", &*session), ("last-event-id", &*first_of_one)];
    let resumed = endpoint.send("GET", &headers, "").await.message().await;
    assert_eq!(resumed["result"]["content"], json!(["one"]));
    let repeated = repeat(&endpoint, &bus, &session, 2).await;
    assert_eq!(repeated.as_ref().map(|answer| &answer["result"]["content"]), Some(&json!(["two"])));
    assert!(is_joined(repeated));
    assert_eq!(repeat(&endpoint, &bus, &session, 1).await, None, "its response was collected");
}

#[tokio::test]
async fn another_principal_or_other_arguments_run_their_own_call() {
    let bus = bus();
    let (endpoint, session) = open_session(&bus, options()).await;
    let (answer, _, call) = start(&endpoint, &bus, &session, 1).await;
    drop(answer);
    endpoint.all_disconnected().await;
    call.reply(json!({"content": []})).await;
    let bob = ("authorization", "Bearer bob");
    let opened = async {
        let call = bus.next_call().await;
        let result = echo(&call).unwrap();
        call.reply(result).await;
    };
    let (headers, hello) = ([bob], initialize(0));
    let bobs = tokio::join!(endpoint.post(&headers, &hello), opened).0.header("mcp-session-id").unwrap();
    let foreign = [bob, ("mcp-session-id", &*bobs)];
    let body = tool_call(9, 1);
    let (answer, ()) = tokio::join!(endpoint.post(&foreign, &body), async {
        bus.next_call().await.reply(json!({"content": ["bob"]})).await;
    });
    assert!(answer.text().await.contains("bob"), "it ran");
    let own = new_session(&endpoint, &bus).await;
    assert_eq!(repeat(&endpoint, &bus, &own, 2).await, None, "other arguments");
    assert!(is_joined(repeat(&endpoint, &bus, &own, 1).await), "the same principal");
}
