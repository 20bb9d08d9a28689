//! How a host processes its mailbox.

use crate::bus::Bus;
use crate::peers::{HOST, Host, RawWorker, json_body, worker};
use crate::tools::{Behaviour, Toolbox, call, echo, image, names, schema};
use crate::{eventually, soon};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{Barrier, Semaphore};
use toolbus_client::{AgentRef, InboxKind, InboxMessage};
use toolbus_executor::{McpProxyHostOptions, ToolError, ToolExecutor};

#[tokio::test]
async fn concurrent_calls_get_their_own_replies() {
    let bus = Bus::start().await;
    let _host = Host::start(&bus.url(), &Toolbox::echoing(&["nova_click"]));
    let worker = &worker(&bus.url(), "worker-7#mcp", None).await;
    assert_eq!(worker.list_tools(), [schema("nova_click")]);
    let calls = (0..8).map(|mark| async move {
        let arguments = format!("{{\"mark\": {mark},\t\"why\":\"ü\"}}");
        let result = worker.execute(&call("nova_click", &arguments)).await.expect("a result");
        assert_eq!((result.success, result.result), (true, echo("nova_click", &arguments)));
    });
    soon("eight calls", join_all(calls)).await;
}

/// The tool returns only when four calls are running, so sequential calls would never end.
#[tokio::test]
async fn calls_on_one_connection_run_concurrently() {
    let bus = Bus::start().await;
    let toolbox = Toolbox::with("meet", Behaviour::Meet(Arc::new(Barrier::new(4))));
    let _host = Host::start(&bus.url(), &toolbox);
    let worker = &worker(&bus.url(), "worker-7#mcp", None).await;
    let calls = join_all((0..4).map(|_| async { worker.execute(&call("meet", "{}")).await.expect("a result") }));
    soon("four calls", calls).await;
    assert_eq!(toolbox.most_running.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn the_concurrency_limit_is_respected() {
    let bus = Bus::start().await;
    let gate = Arc::new(Semaphore::new(0));
    let toolbox = Toolbox::with("gate", Behaviour::Gate(Arc::clone(&gate)));
    let options = McpProxyHostOptions { max_concurrent_calls: 2, ..Default::default() };
    let _host = Host::start_with(&bus.url(), &toolbox, options);
    let worker = Arc::new(worker(&bus.url(), "worker-7#mcp", None).await);
    let calls = (0..8).map(|_| {
        let worker = Arc::clone(&worker);
        tokio::spawn(async move { worker.execute(&call("gate", "{}")).await.expect("a result") })
    });
    let calls: Vec<_> = calls.collect();
    eventually("two calls run", async || toolbox.running() == 2).await;
    gate.add_permits(8);
    soon("eight calls", join_all(calls)).await;
    assert_eq!((toolbox.started(), toolbox.most_running.load(Ordering::SeqCst)), (8, 2));
}

#[tokio::test]
async fn an_invalid_mcp_request_is_answered_with_an_error() {
    let bus = Bus::start().await;
    let _host = Host::start(&bus.url(), &Toolbox::echoing(&[]));
    let worker = RawWorker::connect(&bus, AgentRef::new("odd#mcp")).await;
    for body in [
        json!({ "op": "dance" }),
        json!({ "op": "rpc", "method": "tools/list", "params": {} }),
        json!({ "op": "call", "tool": "nova_click" }),
        json!({ "op": "call", "tool": 7, "arguments": "{}" }),
        json!({}),
        json!([]),
        Value::Null,
    ] {
        let reply = soon("reply", worker.request(body.clone())).await;
        let error = reply["error"].as_str().expect("an error");
        assert!(error.starts_with("bad mcp request: "), "{body}: {error}");
        assert_eq!(reply.as_object().map(serde_json::Map::len), Some(1), "{reply}");
    }
}

#[tokio::test]
async fn messages_of_other_kinds_are_acknowledged_and_ignored() {
    let bus = Bus::start().await;
    let toolbox = Toolbox::echoing(&["nova_click"]);
    let sender = bus.client(AgentRef::new("chatty")).await;
    let manifest = json_body(&json!({ "op": "manifest" }));
    for kind in [InboxKind::Task, InboxKind::McpReply, InboxKind::from("never_heard_of")] {
        let message = InboxMessage::new(sender.me(), kind, manifest.clone());
        soon("receipt", sender.deliver(HOST, message)).await.expect("accepted");
    }
    assert_eq!(bus.waiting(HOST).await, 3);
    let _host = Host::start(&bus.url(), &toolbox);
    let worker = worker(&bus.url(), "worker-7#mcp", None).await;
    soon("a call", worker.execute(&call("nova_click", "{}"))).await.expect("a result");
    eventually("an empty mailbox", async || bus.waiting(HOST).await == 0).await;
    assert_eq!(bus.waiting("chatty").await, 0, "none of them got a reply");
}

#[tokio::test]
async fn results_and_errors_arrive_unchanged() {
    let bus = Bus::start().await;
    let toolbox = Toolbox::echoing(&[]);
    for (name, behaviour) in [
        ("broken", Behaviour::Fail),
        ("camera", Behaviour::Image),
        ("panics", Behaviour::Panic),
        ("whoami", Behaviour::WhoAmI),
        ("z", Behaviour::Echo),
    ] {
        toolbox.put(name, behaviour);
    }
    let _host = Host::start(&bus.url(), &toolbox);
    let worker = worker(&bus.url(), "worker-7#mcp", Some("researcher")).await;
    assert_eq!(names(&worker.list_tools()), ["broken", "camera", "panics", "whoami", "z"]);
    let execute = async |tool| soon(tool, worker.execute(&call(tool, "{}"))).await;
    assert_eq!(execute("camera").await, Ok(image()));
    assert_eq!(execute("broken").await, Err(ToolError::Execution("Execution failed: out of order".into())));
    assert_eq!(execute("panics").await, Err(ToolError::Execution("tool 'panics' panicked".into())));
    let who = execute("whoami").await.expect("a result").result;
    assert_eq!(who, r#"Some("worker-7#mcp") as Some("researcher")"#);
    assert_eq!(execute("z").await.expect("the host goes on").result, echo("z", "{}"));
}

#[tokio::test]
async fn hole_05_a_rejected_result_becomes_an_error_and_the_tool_runs_once() {
    let bus = Bus::start().await;
    let toolbox = Toolbox::with("big", Behaviour::Big(17 << 20));
    let _host = Host::start(&bus.url(), &toolbox);
    let worker = worker(&bus.url(), "worker-7#mcp", None).await;
    let outcome = soon("an answer", worker.execute(&call("big", "{}"))).await;
    let Err(ToolError::Execution(reason)) = outcome else { panic!("{outcome:?}") };
    assert!(reason.contains("the result cannot be sent") && reason.contains("limit"), "{reason}");
    eventually("an empty mailbox", async || bus.waiting(HOST).await == 0).await;
    assert_eq!(toolbox.started(), 1);
}
