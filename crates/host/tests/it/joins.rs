//! Joins: when a call is answered by an earlier equal call of a disconnected worker, and when it runs by itself.

use crate::crashing::{CrashingHost, TestFolder, replay_safe, server, start_call};
use crate::support::{Rig, Worker, fake, finish, next_event, open_host, parts, within};
use bytestring::ByteString;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use toolbus_call::Inspected;
use toolbus_client::{AgentRef, Inspect};
use toolbus_host::Callers;
use toolbus_journal::{End, Stage};
use toolbus_mcp::{ClientHello, HostReply, raw};
use toolbus_upstream::{HostConfig, Join, ServerConfig};

const JOINED: &str = "toolbus/joined";

struct Fixture {
    rig: Rig,
    folder: TestFolder,
    host: CrashingHost,
}

impl Fixture {
    async fn new(server: ServerConfig) -> Self {
        let (rig, folder) = (Rig::without_host().await, TestFolder::new());
        let host = CrashingHost::start(&rig, &folder, vec![server]).await;
        Self { rig, folder, host }
    }

    async fn worker(&self, name: &str) -> Worker {
        let hello =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
        self.rig.worker(AgentRef::new(name), ClientHello::legacy(raw(&hello))).await
    }

    /// Starts a call from a worker that disconnects before the reply.
    async fn abandon(&self, name: &str, arguments: &Value) {
        let worker = self.worker(name).await;
        self.abandon_by(worker, name, arguments).await;
    }

    async fn abandon_by(&self, worker: Worker, name: &str, arguments: &Value) {
        let before = self.folder.effects().len();
        // With a progress token the server reports progress, which also reaches calls that are joined.
        let params = json!({"name": "effect", "arguments": arguments, "_meta": {"progressToken": "first"}});
        let call = worker.start("one", "tools/call", params).await;
        self.folder.expect_effects(before + 1).await;
        // In this order: dropping a call while its worker is connected would cancel it.
        worker.bus.close().await;
        drop(call);
        let watcher = self.rig.client(AgentRef::new("watcher")).await;
        within("the worker to disconnect", async {
            let query = || Inspect { peers: vec![name.into()], ..Inspect::default() };
            while watcher.inspect(query()).await.expect("an inspection").peers != [false] {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    async fn wait_for_ended(&self, count: usize) {
        let journal = self.host.journal();
        within("calls to end", async {
            let ended = || journal.calls().iter().filter(|call| matches!(call.stage, Stage::Ended(_))).count();
            while ended() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_call_is_joined_to_an_equal_call_of_a_disconnected_worker() {
    let fixture = Fixture::new(server()).await;
    fixture.abandon("w#1", &fixture.folder.waiting()).await;
    let worker = fixture.worker("w#2").await;
    let call = start_call(&worker, "effect", &fixture.folder.waiting()).await;
    // Other calls of the same session don't wait for it.
    assert_eq!(worker.tool("one", "add", json!({"a": 1, "b": 2})).await.text(), "3");
    fixture.folder.release();
    let reply = finish(call).await;
    assert_eq!(reply.text(), "effected");
    let joined = &reply.result()["_meta"][JOINED];
    assert!(
        joined["call"].is_string() && joined["startedAt"].as_str().is_some_and(|at| at.starts_with("20")),
        "{joined}"
    );
    fixture.folder.expect_effects(1).await;
}

#[tokio::test]
async fn a_call_is_joined_in_every_combination_of_eras() {
    for (era, legacy) in [("legacy", false), ("modern", true), ("modern", false)] {
        let fixture = Fixture::new(fake("one", era)).await;
        let worker = async |name: &str| match legacy {
            true => fixture.worker(name).await,
            false => fixture.rig.worker(AgentRef::new(name), ClientHello::modern()).await,
        };
        fixture.abandon_by(worker("w#1").await, "w#1", &fixture.folder.waiting()).await;
        let second = worker("w#2").await;
        let call = start_call(&second, "effect", &fixture.folder.waiting()).await;
        fixture.folder.release();
        assert!(finish(call).await.result()["_meta"][JOINED].is_object(), "{era} {legacy}");
        fixture.folder.expect_effects(1).await;
    }
}

#[tokio::test]
async fn a_joined_call_receives_the_progress_of_the_running_call() {
    let mut one = server();
    one.calls.join = Join::Always;
    let fixture = Fixture::new(one).await;
    let (first, second) = (fixture.worker("w#1").await, fixture.worker("w#2").await);
    let arguments = fixture.folder.waiting();
    let params = |token: &str| json!({"name": "effect", "arguments": arguments, "_meta": {"progressToken": token}});
    let mut a = first.start("one", "tools/call", params("a")).await;
    fixture.folder.expect_effects(1).await;
    let mut b = second.start("one", "tools/call", params("b")).await;
    assert_eq!(parts(&next_event(&mut b).await).1["progressToken"], "b");
    assert_eq!(parts(&next_event(&mut a).await).1["progressToken"], "a");

    // Cancelling a joined call leaves the running call alone.
    second.cancel("one", &b.id()).await;
    assert!(matches!(finish(b).await.end, HostReply::Cancelled));
    fixture.folder.release();
    assert_eq!(finish(a).await.text(), "effected");
    fixture.folder.expect_effects(1).await;
}

#[tokio::test]
async fn only_an_equal_call_of_the_same_agent_is_joined() {
    let fixture = Fixture::new(server()).await;
    let waiting = fixture.folder.waiting();
    fixture.abandon("w#1", &waiting).await;
    let mut other = waiting.clone();
    other["mark"] = json!("other");
    let (stranger, second) = (fixture.worker("v#1").await, fixture.worker("w#2").await);
    let calls = [start_call(&stranger, "effect", &waiting).await, start_call(&second, "effect", &other).await];
    fixture.folder.expect_effects(3).await;
    fixture.folder.release();
    for call in calls {
        let reply = finish(call).await;
        assert_eq!(reply.text(), "effected");
        assert!(reply.result()["_meta"][JOINED].is_null(), "{reply:?}");
    }
}

#[tokio::test]
async fn a_call_whose_caller_is_connected_is_not_joined() {
    let fixture = Fixture::new(server()).await;
    let (first, second) = (fixture.worker("w#1").await, fixture.worker("w#2").await);
    let a = start_call(&first, "effect", &fixture.folder.waiting()).await;
    fixture.folder.expect_effects(1).await;
    // Equal calls while the first caller is connected are separate calls, from its own or from another worker.
    let b = start_call(&first, "effect", &fixture.folder.waiting()).await;
    let c = start_call(&second, "effect", &fixture.folder.waiting()).await;
    fixture.folder.expect_effects(3).await;
    fixture.folder.release();
    for call in [a, b, c] {
        assert_eq!(finish(call).await.text(), "effected");
    }
}

#[tokio::test]
async fn an_uncollected_result_is_joined_by_one_later_call_only() {
    let fixture = Fixture::new(server()).await;
    fixture.abandon("w#1", &fixture.folder.waiting()).await;
    fixture.folder.release();
    fixture.wait_for_ended(1).await;
    let second = fixture.worker("w#2").await;
    let reply = second.tool("one", "effect", fixture.folder.waiting()).await;
    assert!(reply.result()["_meta"][JOINED].is_object(), "{reply:?}");
    fixture.folder.expect_effects(1).await;
    second.bus.close().await;
    let third = fixture.worker("w#3").await;
    let reply = third.tool("one", "effect", fixture.folder.waiting()).await;
    assert!(reply.result()["_meta"][JOINED].is_null(), "a collected result must not be joined again: {reply:?}");
    fixture.folder.expect_effects(2).await;
}

/// The broker lost the request in a crash, and the host was restarted before it could send the reply again.
#[tokio::test]
async fn a_result_that_never_reached_the_broker_is_joined() {
    let Fixture { rig, folder, host } = Fixture::new(server()).await;
    folder.release();
    let first = rig.worker(AgentRef::new("w#1"), ClientHello::modern()).await;
    assert_eq!(first.tool("one", "effect", folder.waiting()).await.text(), "effected");
    host.crash().await;
    // A broker that has never seen the messages of the first one.
    let rig = Rig::without_host().await;
    let host = CrashingHost::start(&rig, &folder, vec![server()]).await;
    let second = rig.worker(AgentRef::new("w#2"), ClientHello::modern()).await;
    let reply = second.tool("one", "effect", folder.waiting()).await;
    assert!(reply.result()["_meta"][JOINED].is_object(), "{reply:?}");
    folder.expect_effects(1).await;
    drop((first, host));
}

#[tokio::test]
async fn a_call_equal_to_one_with_an_unknown_outcome_is_not_run() {
    let fixture = Fixture::new(server()).await;
    fixture.abandon("w#1", &fixture.folder.waiting()).await;
    let Fixture { rig, folder, host } = fixture;
    host.crash().await;
    let host = CrashingHost::start(&rig, &folder, vec![server()]).await;
    let fixture = Fixture { rig, folder, host };
    let second = fixture.worker("w#2").await;
    let error = second.tool("one", "effect", fixture.folder.waiting()).await.error();
    assert_eq!(error["data"]["code"], "TB0420", "{error}");
    assert!(error["data"][JOINED]["call"].is_string(), "{error}");
    fixture.folder.expect_effects(1).await;
}

/// Scripted answers whether all callers are connected, of which the last one repeats. Replies are never collected.
struct ScriptedCallers(Mutex<VecDeque<bool>>);

#[async_trait::async_trait]
impl Callers for ScriptedCallers {
    async fn inspect(
        &self,
        peers: &[ByteString],
        replies: &[(ByteString, ByteString)],
        _max_age: Duration,
    ) -> Option<Inspected> {
        let mut answers = self.0.lock().expect("no panic");
        let connected = if answers.len() > 1 { answers.pop_front() } else { answers.front().copied() }?;
        Some(Inspected { connected: vec![connected; peers.len()], uncollected: vec![true; replies.len()] })
    }
}

#[tokio::test]
async fn a_call_whose_caller_reconnects_quickly_is_not_joined() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let mut options = open_host(HostConfig { servers: vec![server()] });
    options.journal = Arc::new(folder.journal());
    options.limits.caller_absence = Duration::from_millis(20);
    options.callers = Some(Arc::new(ScriptedCallers(Mutex::new([false, true].into()))));
    let host = CrashingHost::with(&rig, options).await;
    let fixture = Fixture { rig, folder, host };
    let (first, second) = (fixture.worker("w#1").await, fixture.worker("w#2").await);
    let a = start_call(&first, "effect", &fixture.folder.waiting()).await;
    fixture.folder.expect_effects(1).await;
    let b = start_call(&second, "effect", &fixture.folder.waiting()).await;
    fixture.folder.expect_effects(2).await;
    fixture.folder.release();
    for call in [a, b] {
        assert!(finish(call).await.result()["_meta"][JOINED].is_null());
    }
}

/// Panics at the first question; afterwards all callers are connected.
struct PanickingCallers(AtomicBool);

#[async_trait::async_trait]
impl Callers for PanickingCallers {
    async fn inspect(
        &self,
        peers: &[ByteString],
        replies: &[(ByteString, ByteString)],
        _max_age: Duration,
    ) -> Option<Inspected> {
        assert!(self.0.swap(true, Ordering::Relaxed), "planted by the test");
        Some(Inspected { connected: vec![true; peers.len()], uncollected: vec![true; replies.len()] })
    }
}

#[tokio::test]
async fn a_panic_while_the_broker_is_asked_does_not_let_the_call_run_or_hang() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let mut options = open_host(HostConfig { servers: vec![server()] });
    options.journal = Arc::new(folder.journal());
    options.limits.caller_absence = Duration::from_millis(20);
    options.callers = Some(Arc::new(PanickingCallers(AtomicBool::new(false))));
    let host = CrashingHost::with(&rig, options).await;
    let fixture = Fixture { rig, folder, host };
    let (first, second) = (fixture.worker("w#1").await, fixture.worker("w#2").await);
    let a = start_call(&first, "effect", &fixture.folder.waiting()).await;
    fixture.folder.expect_effects(1).await;
    // The question is asked again, and the answer lets the call run.
    let b = start_call(&second, "effect", &fixture.folder.waiting()).await;
    fixture.folder.expect_effects(2).await;
    fixture.folder.release();
    for call in [a, b] {
        assert!(finish(call).await.result()["isError"].is_null());
    }
}

#[tokio::test]
async fn a_caller_that_reconnects_while_its_call_runs_gets_the_result_alone() {
    let fixture = Fixture::new(server()).await;
    fixture.abandon("w#1", &fixture.folder.waiting()).await;
    let second = fixture.worker("w#2").await;
    let params = json!({"name": "effect", "arguments": fixture.folder.waiting(), "_meta": {"progressToken": 1}});
    let mut call = second.start("one", "tools/call", params).await;
    // Progress without a second effect shows that the call is joined.
    next_event(&mut call).await;
    fixture.folder.expect_effects(1).await;
    let back = fixture.worker("w#1").await;
    fixture.folder.release();
    let reply = finish(call).await;
    assert!(reply.result()["_meta"][JOINED].is_null(), "this result belongs to the reconnected caller: {reply:?}");
    fixture.folder.expect_effects(2).await;
    drop(back);
}

#[tokio::test]
async fn cancelling_a_joined_call_does_not_cancel_the_orphan() {
    let fixture = Fixture::new(server()).await;
    fixture.abandon("w#1", &fixture.folder.waiting()).await;
    let second = fixture.worker("w#2").await;
    let params = json!({"name": "effect", "arguments": fixture.folder.waiting(), "_meta": {"progressToken": 1}});
    let mut call = second.start("one", "tools/call", params).await;
    next_event(&mut call).await;
    second.cancel("one", &call.id()).await;
    assert!(matches!(finish(call).await.end, HostReply::Cancelled));
    fixture.folder.release();
    fixture.wait_for_ended(2).await;
    let ends: Vec<_> = fixture.host.journal().calls().iter().map(|call| call.stage).collect();
    assert!(ends.contains(&Stage::Ended(End::Done)), "{ends:?}");
    fixture.folder.expect_effects(1).await;
}

#[tokio::test]
async fn nothing_is_joined_if_the_configuration_forbids_it() {
    let never = {
        let mut one = server();
        one.calls.join = Join::Never;
        one
    };
    let only_this = {
        let mut one = server();
        one.calls.tool_join.insert("effect".to_owned(), Join::Never);
        one
    };
    for one in [never, only_this, replay_safe(server())] {
        let fixture = Fixture::new(one).await;
        fixture.abandon("w#1", &fixture.folder.waiting()).await;
        let second = fixture.worker("w#2").await;
        let call = start_call(&second, "effect", &fixture.folder.waiting()).await;
        fixture.folder.expect_effects(2).await;
        fixture.folder.release();
        assert!(finish(call).await.result()["_meta"][JOINED].is_null());
    }
}

#[tokio::test]
async fn a_result_is_not_joined_after_the_join_window() {
    let mut one = server();
    one.calls.join_window = Duration::from_millis(100);
    let fixture = Fixture::new(one).await;
    fixture.abandon("w#1", &fixture.folder.waiting()).await;
    fixture.folder.release();
    fixture.wait_for_ended(1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let second = fixture.worker("w#2").await;
    assert!(second.tool("one", "effect", fixture.folder.waiting()).await.result()["_meta"][JOINED].is_null());
    fixture.folder.expect_effects(2).await;
}
