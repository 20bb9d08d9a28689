//! A restart of the HTTP endpoint: sessions continue, and no client waits for a response that can't come any more.

use crate::http_legacy::{bus, new_session};
use crate::support::bus::{FakeBus, echo};
use crate::support::http::Endpoint;
use crate::support::{eventually, initialize, modern, request};
use hyper::StatusCode;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use toolbus_worker::HttpOptions;

async fn endpoint(bus: &Arc<FakeBus>, folder: &Path) -> Endpoint {
    let options = HttpOptions {
        session_folder: Some(folder.to_owned()),
        legacy_quiet: Duration::from_millis(20),
        modern_quiet: Duration::from_millis(20),
        ..HttpOptions::default()
    };
    Endpoint::start(bus, options).await
}

/// Waits until there are that many records and no file that is being written.
async fn until_kept(folder: &Path, sessions: usize) {
    let is_kept = || {
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.len() == sessions && names.iter().all(|name| !name.contains(".new"))
    };
    eventually("the records", is_kept).await;
}

/// A call that equals no other one.
fn tool_call(id: impl Into<Value>) -> Value {
    let id = id.into();
    request(id.clone(), "tools/call", json!({"name": "read", "arguments": {"n": id}}))
}

#[tokio::test]
async fn a_session_continues_in_the_next_process_for_its_own_agent_until_it_is_ended() {
    let (bus, folder) = (bus(), tempfile::tempdir().unwrap());
    let first = endpoint(&bus, folder.path()).await;
    let session = new_session(&first, &bus).await;
    until_kept(folder.path(), 1).await;
    bus.serve(echo);
    let second = endpoint(&bus, folder.path()).await;
    let headers = [("mcp-session-id", session.as_str()), ("authorization", "Bearer bob")];
    assert_eq!(second.post(&headers, &tool_call(1)).await.status(), StatusCode::NOT_FOUND, "of another agent");
    let (one, two) = (tool_call(1), tool_call(2));
    let answers = tokio::join!(second.in_session(&session, &one), second.in_session(&session, &two));
    for answer in [answers.0, answers.1] {
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.json().await["result"]["asked"], "tools/call");
    }
    assert_eq!(second.send("DELETE", &headers[..1], "").await.status(), StatusCode::OK);
    until_kept(folder.path(), 0).await;
    let third = endpoint(&bus, folder.path()).await;
    assert_eq!(third.in_session(&session, &tool_call(1)).await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn sessions_whose_clients_do_not_come_back_are_forgotten() {
    let (bus, folder) = (bus(), tempfile::tempdir().unwrap());
    new_session(&endpoint(&bus, folder.path()).await, &bus).await;
    until_kept(folder.path(), 1).await;
    let session_folder = Some(folder.path().to_owned());
    let options = HttpOptions { session_folder, session_idle: Duration::from_millis(60), ..HttpOptions::default() };
    let _later = Endpoint::start(&bus, options).await;
    until_kept(folder.path(), 0).await;
}

/// Longer than a record waits to be written.
const WRITTEN_BY_THEN: Duration = Duration::from_millis(600);

#[tokio::test]
async fn sessions_that_end_at_once_or_of_agents_that_may_do_nothing_cause_no_write() {
    let (bus, folder) = (bus(), tempfile::tempdir().unwrap());
    let endpoint = endpoint(&bus, folder.path()).await;
    bus.serve(echo);
    // Creating and removing a file both change it.
    let changed = || std::fs::metadata(folder.path()).unwrap().modified().unwrap();
    let before = changed();
    for _ in 0..20 {
        let session = endpoint.open().await;
        let ended = endpoint.send("DELETE", &[("mcp-session-id", session.as_str())], "").await;
        assert_eq!(ended.status(), StatusCode::OK);
    }
    let opened = endpoint.post(&[("authorization", "Bearer powerless")], &initialize(0)).await;
    assert_eq!(opened.status(), StatusCode::OK);
    tokio::time::sleep(WRITTEN_BY_THEN).await;
    assert_eq!(changed(), before);
}

#[tokio::test]
async fn a_session_that_was_just_opened_continues_after_a_stop() {
    let (bus, folder) = (bus(), tempfile::tempdir().unwrap());
    let first = endpoint(&bus, folder.path()).await;
    bus.serve(echo);
    let session = first.open().await;
    first.service.detach();
    let second = endpoint(&bus, folder.path()).await;
    assert_eq!(second.in_session(&session, &tool_call(1)).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn all_sessions_that_are_opened_at_once_are_kept() {
    const SESSIONS: usize = 100;
    let (bus, folder) = (bus(), tempfile::tempdir().unwrap());
    let endpoint = endpoint(&bus, folder.path()).await;
    bus.serve(echo);
    futures_util::future::join_all((0..SESSIONS).map(|_| endpoint.open())).await;
    until_kept(folder.path(), SESSIONS).await;
}

#[tokio::test]
async fn a_stream_of_the_earlier_process_ends_with_an_error_under_the_id_of_its_request() {
    let (bus, folder) = (bus(), tempfile::tempdir().unwrap());
    let first = endpoint(&bus, folder.path()).await;
    let session = new_session(&first, &bus).await;
    until_kept(folder.path(), 1).await;
    for id in [json!("a-b/c"), json!(7)] {
        let body = tool_call(id.clone());
        let (mut answer, _call) = tokio::join!(first.in_session(&session, &body), bus.next_call());
        let priming = answer.block().await.unwrap();
        let last = priming.lines().find_map(|line| line.strip_prefix("id: ")).unwrap();
        let second = endpoint(&bus, folder.path()).await;
        // A stream of the new process with the same number is another one.
        let other = tool_call(99);
        let (_running, _other_call) = tokio::join!(second.in_session(&session, &other), bus.next_call());
        let headers = [("mcp-session-id", session.as_str()), ("last-event-id", last), ("accept", "text/event-stream")];
        let mut resumed = second.send("GET", &headers, "").await;
        let lost = resumed.message().await;
        assert_eq!((&lost["id"], &lost["error"]["data"]["code"]), (&id, &json!("TB0420")), "{lost}");
        assert_eq!(resumed.block().await, None);
    }
}

#[tokio::test]
async fn clients_that_wait_for_a_call_get_an_error_when_the_endpoint_stops_and_the_call_goes_on() {
    let (bus, folder) = (bus(), tempfile::tempdir().unwrap());
    let endpoint = endpoint(&bus, folder.path()).await;
    let session = new_session(&endpoint, &bus).await;
    let (legacy, modern) = (tool_call(1), modern(2, "tools/call", json!({"name": "read"})));
    let (mut one, first) = tokio::join!(endpoint.in_session(&session, &legacy), bus.next_call());
    let (mut two, second) = tokio::join!(endpoint.post_modern(&modern), bus.next_call());
    endpoint.service.detach();
    for (answer, id) in [(&mut one, 1), (&mut two, 2)] {
        let lost = answer.message().await;
        assert_eq!((&lost["id"], &lost["error"]["data"]["code"]), (&json!(id), &json!("TB0420")), "{lost}");
        assert_eq!(answer.block().await, None);
    }
    eventually("both calls are left to go on", || bus.detached().len() == 2).await;
    assert!(bus.detached().contains(&first.id) && bus.detached().contains(&second.id));
}
