//! A worker ends, its client's next worker calls the same again: when that is the same call, and when it is not.

use crate::crashing::{CrashingHost, Place, begin, safe, server};
use crate::support::{Rig, Worker, fake, finish, next_event, open_host, parts, within};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use toolbus_client::{AgentRef, Inspect};
use toolbus_host::Callers;
use toolbus_journal::{End, Stage};
use toolbus_mcp::{ClientHello, HostReply, raw};
use toolbus_upstream::{HostConfig, Join, ServerConfig};

const MARK: &str = "toolbus/joined";

struct Scene {
    rig: Rig,
    place: Place,
    host: CrashingHost,
}

impl Scene {
    async fn new(server: ServerConfig) -> Self {
        let (rig, place) = (Rig::bus().await, Place::new());
        let host = CrashingHost::start(&rig, &place, vec![server]).await;
        Self { rig, place, host }
    }

    async fn worker(&self, name: &str) -> Worker {
        let hello =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
        self.rig.worker(AgentRef::new(name), ClientHello::legacy(raw(&hello))).await
    }

    /// A worker that begins a call and is gone before it gets its answer.
    async fn abandon(&self, name: &str, arguments: &Value) {
        let worker = self.worker(name).await;
        self.abandon_by(worker, name, arguments).await;
    }

    async fn abandon_by(&self, worker: Worker, name: &str, arguments: &Value) {
        let before = self.place.effects().len();
        // Whose progress shows who is joined to it.
        let params = json!({"name": "effect", "arguments": arguments, "_meta": {"progressToken": "first"}});
        let call = worker.start("one", "tools/call", params).await;
        self.place.effects_are(before + 1).await;
        // In this order: a call that is given up while its worker is there is called off.
        worker.bus.close().await;
        drop(call);
        let watcher = self.rig.client(AgentRef::new("watcher")).await;
        within("the worker to be gone", async {
            let look = || Inspect { peers: vec![name.into()], ..Inspect::default() };
            while watcher.inspect(look()).await.expect("a look").peers != [false] {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    async fn ended(&self, count: usize) {
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
async fn a_call_is_joined_to_the_one_of_a_worker_that_is_gone() {
    let scene = Scene::new(server()).await;
    scene.abandon("w#1", &scene.place.waiting()).await;
    let worker = scene.worker("w#2").await;
    let call = begin(&worker, "effect", &scene.place.waiting()).await;
    // Others of the same session don't wait for it.
    assert_eq!(worker.tool("one", "add", json!({"a": 1, "b": 2})).await.text(), "3");
    scene.place.release();
    let reply = finish(call).await;
    assert_eq!(reply.text(), "effected");
    let mark = &reply.result()["_meta"][MARK];
    assert!(mark["call"].is_string() && mark["startedAt"].as_str().is_some_and(|at| at.starts_with("20")), "{mark}");
    scene.place.effects_are(1).await;
}

#[tokio::test]
async fn a_call_is_joined_in_every_pairing_of_eras() {
    for (era, legacy) in [("legacy", false), ("modern", true), ("modern", false)] {
        let scene = Scene::new(fake("one", era)).await;
        let worker = async |name: &str| match legacy {
            true => scene.worker(name).await,
            false => scene.rig.worker(AgentRef::new(name), ClientHello::modern()).await,
        };
        scene.abandon_by(worker("w#1").await, "w#1", &scene.place.waiting()).await;
        let second = worker("w#2").await;
        let call = begin(&second, "effect", &scene.place.waiting()).await;
        scene.place.release();
        assert!(finish(call).await.result()["_meta"][MARK].is_object(), "{era} {legacy}");
        scene.place.effects_are(1).await;
    }
}

#[tokio::test]
async fn the_progress_of_a_running_call_comes_to_whoever_is_joined_to_it() {
    let mut one = server();
    one.calls.join = Join::Always;
    let scene = Scene::new(one).await;
    let (first, second) = (scene.worker("w#1").await, scene.worker("w#2").await);
    let params =
        |token: &str| json!({"name": "effect", "arguments": scene.place.waiting(), "_meta": {"progressToken": token}});
    let mut a = first.start("one", "tools/call", params("a")).await;
    scene.place.effects_are(1).await;
    let mut b = second.start("one", "tools/call", params("b")).await;
    assert_eq!(parts(&next_event(&mut b).await).1["progressToken"], "b");
    assert_eq!(parts(&next_event(&mut a).await).1["progressToken"], "a");

    // Whoever is joined calls off its own waiting and nothing else.
    second.cancel("one", &b.id()).await;
    assert!(matches!(finish(b).await.end, HostReply::Cancelled));
    scene.place.release();
    assert_eq!(finish(a).await.text(), "effected");
    scene.place.effects_are(1).await;
}

#[tokio::test]
async fn only_the_same_call_of_the_same_agent_is_joined() {
    let scene = Scene::new(server()).await;
    let waiting = scene.place.waiting();
    scene.abandon("w#1", &waiting).await;
    let mut other = waiting.clone();
    other["mark"] = json!("other");
    let (stranger, second) = (scene.worker("v#1").await, scene.worker("w#2").await);
    let calls = [begin(&stranger, "effect", &waiting).await, begin(&second, "effect", &other).await];
    scene.place.effects_are(3).await;
    scene.place.release();
    for call in calls {
        let reply = finish(call).await;
        assert_eq!(reply.text(), "effected");
        assert!(reply.result()["_meta"][MARK].is_null(), "{reply:?}");
    }
}

#[tokio::test]
async fn a_caller_that_is_there_keeps_its_call_to_itself() {
    let scene = Scene::new(server()).await;
    let (first, second) = (scene.worker("w#1").await, scene.worker("w#2").await);
    let a = begin(&first, "effect", &scene.place.waiting()).await;
    scene.place.effects_are(1).await;
    // One client that calls twice means it, and so do two.
    let b = begin(&first, "effect", &scene.place.waiting()).await;
    let c = begin(&second, "effect", &scene.place.waiting()).await;
    scene.place.effects_are(3).await;
    scene.place.release();
    for call in [a, b, c] {
        assert_eq!(finish(call).await.text(), "effected");
    }
}

#[tokio::test]
async fn an_answer_that_nobody_collected_answers_the_next_call_and_is_then_collected() {
    let scene = Scene::new(server()).await;
    scene.abandon("w#1", &scene.place.waiting()).await;
    scene.place.release();
    scene.ended(1).await;
    let second = scene.worker("w#2").await;
    let reply = second.tool("one", "effect", scene.place.waiting()).await;
    assert!(reply.result()["_meta"][MARK].is_object(), "{reply:?}");
    scene.place.effects_are(1).await;
    second.bus.close().await;
    let third = scene.worker("w#3").await;
    let reply = third.tool("one", "effect", scene.place.waiting()).await;
    assert!(reply.result()["_meta"][MARK].is_null(), "what was collected is never given out again: {reply:?}");
    scene.place.effects_are(2).await;
}

#[tokio::test]
async fn a_call_whose_outcome_nobody_knows_is_not_run_by_another_name() {
    let scene = Scene::new(server()).await;
    scene.abandon("w#1", &scene.place.waiting()).await;
    let Scene { rig, place, host } = scene;
    host.crash().await;
    let host = CrashingHost::start(&rig, &place, vec![server()]).await;
    let scene = Scene { rig, place, host };
    let second = scene.worker("w#2").await;
    let error = second.tool("one", "effect", scene.place.waiting()).await.error();
    assert_eq!(error["data"]["code"], "TB0420", "{error}");
    assert!(error["data"][MARK]["call"].is_string(), "{error}");
    scene.place.effects_are(1).await;
}

/// Who is there, answer by answer; the last one stays. Replies are never collected.
struct Told(Mutex<VecDeque<bool>>);

#[async_trait::async_trait]
impl Callers for Told {
    async fn connected(&self, _mailbox: &str) -> Option<bool> {
        let mut told = self.0.lock().expect("no panic");
        if told.len() > 1 { told.pop_front() } else { told.front().copied() }
    }

    async fn waits(&self, _mailbox: &str, _reply_id: &str) -> Option<bool> {
        Some(true)
    }
}

#[tokio::test]
async fn a_caller_that_loses_its_link_for_a_moment_keeps_its_call_to_itself() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let mut options = open_host(HostConfig { servers: vec![server()] });
    options.journal = Some(Arc::new(place.journal()));
    options.limits.caller_absence = Duration::from_millis(20);
    options.callers = Some(Arc::new(Told(Mutex::new([false, true].into()))));
    let host = CrashingHost::with(&rig, options).await;
    let scene = Scene { rig, place, host };
    let (first, second) = (scene.worker("w#1").await, scene.worker("w#2").await);
    let a = begin(&first, "effect", &scene.place.waiting()).await;
    scene.place.effects_are(1).await;
    let b = begin(&second, "effect", &scene.place.waiting()).await;
    scene.place.effects_are(2).await;
    scene.place.release();
    for call in [a, b] {
        assert!(finish(call).await.result()["_meta"][MARK].is_null());
    }
}

#[tokio::test]
async fn a_caller_that_comes_back_while_its_call_runs_has_the_answer_alone() {
    let scene = Scene::new(server()).await;
    scene.abandon("w#1", &scene.place.waiting()).await;
    let second = scene.worker("w#2").await;
    let params = json!({"name": "effect", "arguments": scene.place.waiting(), "_meta": {"progressToken": 1}});
    let mut call = second.start("one", "tools/call", params).await;
    // It is joined, or there would be another effect.
    next_event(&mut call).await;
    scene.place.effects_are(1).await;
    let back = scene.worker("w#1").await;
    scene.place.release();
    let reply = finish(call).await;
    assert!(reply.result()["_meta"][MARK].is_null(), "the other got this answer: {reply:?}");
    scene.place.effects_are(2).await;
    drop(back);
}

#[tokio::test]
async fn whoever_is_joined_and_calls_off_leaves_the_call_to_its_own_caller() {
    let scene = Scene::new(server()).await;
    scene.abandon("w#1", &scene.place.waiting()).await;
    let second = scene.worker("w#2").await;
    let params = json!({"name": "effect", "arguments": scene.place.waiting(), "_meta": {"progressToken": 1}});
    let mut call = second.start("one", "tools/call", params).await;
    next_event(&mut call).await;
    second.cancel("one", &call.id()).await;
    assert!(matches!(finish(call).await.end, HostReply::Cancelled));
    scene.place.release();
    scene.ended(2).await;
    let ends: Vec<_> = scene.host.journal().calls().iter().map(|call| call.stage).collect();
    assert!(ends.contains(&Stage::Ended(End::Done)), "{ends:?}");
    scene.place.effects_are(1).await;
}

#[tokio::test]
async fn nothing_is_joined_where_the_configuration_says_so() {
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
    for one in [never, only_this, safe(server())] {
        let scene = Scene::new(one).await;
        scene.abandon("w#1", &scene.place.waiting()).await;
        let second = scene.worker("w#2").await;
        let call = begin(&second, "effect", &scene.place.waiting()).await;
        scene.place.effects_are(2).await;
        scene.place.release();
        assert!(finish(call).await.result()["_meta"][MARK].is_null());
    }
}

#[tokio::test]
async fn an_answer_is_forgotten_when_its_window_has_passed() {
    let mut one = server();
    one.calls.join_window = Duration::from_millis(100);
    let scene = Scene::new(one).await;
    scene.abandon("w#1", &scene.place.waiting()).await;
    scene.place.release();
    scene.ended(1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let second = scene.worker("w#2").await;
    assert!(second.tool("one", "effect", scene.place.waiting()).await.result()["_meta"][MARK].is_null());
    scene.place.effects_are(2).await;
}
