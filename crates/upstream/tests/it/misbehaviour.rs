//! Misbehaving stdio servers. Each misbehaviour fails one call, and the connection survives if possible.

use crate::support::{Server, soon, until, value};
use serde_json::json;
use std::time::Duration;
use toolbus_upstream::{CallEvent, ExitReason, ServerError, ServerEvent};

async fn still_works(server: &Server) {
    assert_eq!(value(server.call("echo", json!({"still": "there"})).await)["arguments"]["still"], "there");
}

#[tokio::test]
async fn garbage_on_stdout_is_ignored_and_counted() {
    let server = Server::fake().await;
    value(server.call("garbage", json!({})).await);
    assert_eq!(server.connection.oddities().garbage, 7);
    still_works(&server).await;
}

#[tokio::test]
async fn a_server_that_prints_only_garbage_is_closed() {
    let mut server = Server::fake().await;
    let error = server.call("garbage_forever", json!({})).await.expect_err("no answer");
    assert_eq!(error.code(), "TB0409");
    assert!(error.to_string().contains("1000 lines in a row"), "{error}");
    assert!(matches!(server.next_event().await, ServerEvent::Closed(ServerError::BadMessage { .. })));
    assert!(server.connection.start("x", None).await.is_err());
}

#[tokio::test]
async fn a_flood_on_stderr_does_not_block_and_its_tail_is_kept() {
    let server = Server::fake().await;
    value(server.call("flood_stderr", json!({})).await);
    until("the last line is kept", || {
        let lines = server.connection.stderr_tail();
        lines.len() == 50 && lines[49].starts_with("complaint 399999 ")
    })
    .await;
}

#[tokio::test]
async fn a_server_exit_fails_every_call_with_status_and_stderr() {
    let mut server = Server::fake().await;
    let waiting = server.start("silent", json!({})).await;
    let dying = server.start("die", json!({})).await;
    for call in [waiting, dying] {
        let error = soon(call.outcome()).await.expect_err("server exited");
        let ServerError::Died { status, stderr, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*status, ExitReason::Code(3));
        assert_eq!(stderr, &["first words", "out of luck"]);
        assert_eq!(error.code(), "TB0408");
        assert_eq!(
            error.to_string(),
            "server \"fake\" exited with code 3; last stderr lines: first words | out of luck"
        );
    }
    assert!(matches!(server.next_event().await, ServerEvent::Closed(ServerError::Died { .. })));
    assert!(matches!(server.connection.closed(), Some(ServerError::Died { .. })));
    assert!(matches!(server.connection.notify("x", None).await, Err(ServerError::Died { .. })));
}

#[tokio::test]
async fn a_silent_call_can_be_dropped_by_its_caller() {
    let server = Server::fake().await;
    let mut call = server.start("silent", json!({})).await;
    assert!(tokio::time::timeout(Duration::from_millis(100), call.next()).await.is_err());
    drop(call);
    still_works(&server).await;
}

#[tokio::test]
async fn a_second_response_is_dropped() {
    let server = Server::fake().await;
    assert_eq!(value(server.call("twice", json!({})).await), json!({"answer": 1}));
    still_works(&server).await;
    assert_eq!(server.connection.oddities().unknown_answers, 1);
}

#[tokio::test]
async fn responses_with_unknown_ids_are_dropped() {
    let server = Server::fake().await;
    let other = server.start("silent", json!({})).await;
    assert_eq!(value(server.call("foreign", json!({})).await), json!({"answer": "mine"}));
    assert_eq!(server.connection.oddities().unknown_answers, 2);
    drop(other);
    still_works(&server).await;
}

#[tokio::test]
async fn a_hundred_megabyte_response_fails_its_call_without_using_memory() {
    let server = Server::fake().await;
    let before = peak_memory();
    let error = server.call("huge", json!({"bytes": 100 << 20})).await.expect_err("too large");
    assert_eq!(error.code(), "TB0405");
    let ServerError::TooLarge { bytes, limit, .. } = error else { panic!("{error:?}") };
    assert!(bytes > 100 << 20 && limit == 15 << 20);
    let grown = peak_memory() - before;
    assert!(grown < 50 << 10, "{grown} KiB more at the peak");
    still_works(&server).await;
}

/// In KiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("VmHWM");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

#[tokio::test]
async fn a_result_just_below_the_limit_is_delivered() {
    let server = Server::fake().await;
    let result = value(server.call("huge", json!({"bytes": 14 << 20})).await);
    assert_eq!(result["text"].as_str().map(str::len), Some(14 << 20));
}

#[tokio::test]
async fn a_contradictory_response_fails_its_call() {
    let server = Server::fake().await;
    for tool in ["broken", "doubled"] {
        let error = server.call(tool, json!({})).await.expect_err("no answer");
        assert!(matches!(error, ServerError::BadMessage { .. }), "{error:?}");
    }
    still_works(&server).await;
}

#[tokio::test]
async fn unread_progress_is_dropped_for_newer_progress() {
    let server = Server::fake().await;
    let params = json!({"name": "progress", "arguments": {"count": 5_000}, "_meta": {"progressToken": 0}});
    let mut call = server.connection.start("tools/call", Some(toolbus_mcp::raw(&params))).await.expect("sent");
    // The response to another call shows that everything of the first one has been read.
    still_works(&server).await;
    let mut last = String::new();
    let mut count = 0;
    while let CallEvent::Notification { params, .. } = soon(call.next()).await {
        last = params.expect("params").get().to_owned();
        count += 1;
    }
    assert!(last.contains("\"progress\": 4999"), "{last}");
    assert_eq!(count, 256);
    assert_eq!(server.connection.oddities().dropped_progress, 5_000 - 256);
}

#[tokio::test]
async fn logs_are_not_dropped_for_a_slow_caller() {
    let server = Server::fake().await;
    let mut call = server.start("logs", json!({"count": 2_000})).await;
    let mut seen = 0;
    loop {
        match soon(call.next()).await {
            CallEvent::Notification { params, .. } => {
                assert!(params.expect("params").get().ends_with(&format!("\"data\": {seen}}}")));
                seen += 1;
                if seen % 500 == 0 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            CallEvent::Done(outcome) => break assert!(outcome.is_ok()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, 2_000);
}

#[tokio::test]
async fn a_stalled_caller_loses_its_call_and_does_not_block_others() {
    let server = Server::fake().await;
    let mut stuck = server.start("logs", json!({"count": 2_000})).await;
    until("the call is ended", || server.connection.oddities().slow_callers == 1).await;
    still_works(&server).await;
    let mut events = 0;
    let error = loop {
        match soon(stuck.next()).await {
            CallEvent::Done(outcome) => break outcome.expect_err("caller was too slow"),
            _ => events += 1,
        }
    };
    assert_eq!(events, 256);
    assert!(matches!(error, ServerError::SlowCaller { .. }), "{error:?}");
}

#[tokio::test]
async fn a_server_that_stops_reading_can_still_be_closed() {
    let server = Server::fake().await;
    let call = server.start("stop_reading", json!({})).await;
    let filler = "x".repeat(1 << 20);
    for _ in 0..20 {
        server.connection.notify("fill", Some(toolbus_mcp::raw(&json!({"filler": filler})))).await.expect("queued");
    }
    soon(server.connection.close()).await;
    assert!(matches!(soon(call.outcome()).await, Err(ServerError::Closed { .. })));
}

#[tokio::test]
async fn a_stalled_owner_does_not_block_calls() {
    let server = Server::fake().await;
    let (one, two) = (server.start("silent", json!({})).await, server.start("silent", json!({})).await);
    value(server.call("logs", json!({"count": 500})).await);
    assert!(server.connection.oddities().dropped_events > 400);
    drop((one, two));
}
