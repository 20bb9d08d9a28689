//! Tasks: calls that go on by themselves, whoever is connected and whatever ends in between.

use crate::crashing::{CrashingHost, Place, safe, server};
use crate::journal_failures::{on_gated_disk, waited_for};
use crate::support::{Reply, Rig, Worker, fake, open_host, within};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolbus_client::AgentRef;
use toolbus_host::{HostOptions, LivePolicy};
use toolbus_journal::Journal;
use toolbus_mcp::{AdminRequest, ClientHello, HostReply, HostRequest, Outcome, TaskList, TaskStatus, TaskView};
use toolbus_policy::PolicySet;
use toolbus_upstream::{HostConfig, ServerConfig};

#[track_caller]
pub fn begun(reply: &Reply) -> TaskView {
    match &reply.end {
        HostReply::Task(view) => view.clone(),
        other => panic!("no task: {other:?}"),
    }
}

#[track_caller]
pub fn view(reply: &Reply) -> TaskView {
    match &reply.end {
        HostReply::Rpc(Outcome::Result(result)) => serde_json::from_str(result.get()).expect("a task"),
        other => panic!("no task: {other:?}"),
    }
}

async fn get(worker: &Worker, id: &str) -> Reply {
    worker.ask(HostRequest::Admin(AdminRequest::TaskGet { id: id.to_owned() })).await
}

pub async fn wait(worker: &Worker, id: &str, limit_ms: u64) -> Reply {
    worker.ask(HostRequest::Admin(AdminRequest::TaskWait { id: id.to_owned(), limit_ms })).await
}

async fn cancel(worker: &Worker, id: &str) -> Reply {
    worker.ask(HostRequest::Admin(AdminRequest::TaskCancel { id: id.to_owned() })).await
}

async fn list(worker: &Worker) -> Vec<String> {
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let reply = worker.ask(HostRequest::Admin(AdminRequest::TaskList { after })).await;
        let page: TaskList = serde_json::from_value(reply.result()).expect("a list");
        ids.extend(page.tasks.into_iter().map(|task| task.id));
        after = page.next;
        if after.is_none() {
            return ids;
        }
    }
}

/// The text of a completed task's result.
#[track_caller]
pub fn text(view: &TaskView) -> String {
    let result: Value = serde_json::from_str(view.result.as_ref().expect("a result").get()).expect("JSON");
    result["content"][0]["text"].as_str().expect("a text").to_owned()
}

#[track_caller]
pub fn code(view: &TaskView) -> String {
    let error: Value = serde_json::from_str(view.error.as_ref().expect("an error").get()).expect("JSON");
    error["data"]["code"].as_str().expect("a code").to_owned()
}

async fn worker(rig: &Rig, legacy: bool) -> Worker {
    if legacy { rig.legacy("w").await } else { rig.modern("w").await }
}

pub fn options(servers: Vec<ServerConfig>) -> HostOptions {
    let mut options = open_host(HostConfig { servers });
    options.journal = Some(Arc::new(Journal::in_memory().expect("a journal")));
    options
}

/// A server that has one call at a time.
pub fn narrow() -> ServerConfig {
    ServerConfig { max_concurrency: 1, ..server() }
}

#[tokio::test]
async fn a_task_is_answered_at_once_and_its_result_is_kept() {
    for (era, legacy) in [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)] {
        let place = Place::new();
        let rig = Rig::with(options(vec![fake("one", era)])).await;
        let worker = worker(&rig, legacy).await;
        let task = begun(&worker.task("one", "effect", place.waiting(), Some(60_000)).await);
        assert_eq!((task.status, task.ttl_ms, task.agent.as_str()), (TaskStatus::Working, 60_000, "w"));
        assert_eq!((task.server.as_str(), task.tool.as_str()), ("one", "effect"));
        place.effects_are(1).await;
        assert_eq!(view(&get(&worker, &task.id).await).status, TaskStatus::Working, "{era} {legacy}");
        assert_eq!(view(&wait(&worker, &task.id, 10).await).status, TaskStatus::Working);
        place.release();
        let ended = view(&wait(&worker, &task.id, 20_000).await);
        assert_eq!((ended.status, text(&ended).as_str()), (TaskStatus::Completed, "effected"), "{era} {legacy}");
        assert!(ended.updated_ms >= ended.created_ms && ended.created_ms == task.created_ms);
        let again = view(&get(&worker, &task.id).await);
        assert!(again.status == TaskStatus::Completed && again.result.is_none());
        place.effects_are(1).await;
    }
}

#[tokio::test]
async fn nobody_hears_of_a_task_before_it_is_on_disk() {
    let place = Place::new();
    let (rig, disk, _host) = on_gated_disk(&place, server()).await;
    let worker = rig.legacy("w").await;
    worker.tool("one", "add", json!({"a": 1, "b": 2})).await.text();
    disk.shut();
    let mut beginning = std::pin::pin!(worker.task("one", "effect", place.quick(), None));
    let early = async {
        waited_for(&disk).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    };
    tokio::select! {
        reply = &mut beginning => panic!("told before it was on disk: {reply:?}"),
        () = early => {}
    }
    assert_eq!(place.effects(), [""; 0]);
    disk.open_gate();
    let task = begun(&beginning.await);
    assert_eq!(text(&view(&wait(&worker, &task.id, 20_000).await)), "effected");
}

#[tokio::test]
async fn a_task_goes_on_without_its_caller() {
    let place = Place::new();
    let mut options = options(vec![server()]);
    options.limits.caller_grace = Some(Duration::from_secs(1));
    let rig = Rig::with(options).await;
    let caller = rig.worker(AgentRef::new("w#1"), ClientHello::modern()).await;
    let task = begun(&caller.task("one", "effect", place.waiting(), None).await);
    place.effects_are(1).await;
    caller.send(HostRequest::Close { session: caller.session.clone() }).await;
    caller.bus.close().await;
    let other = rig.worker(AgentRef::new("w#2"), ClientHello::modern()).await;
    assert_eq!(view(&wait(&other, &task.id, 2500).await).status, TaskStatus::Working);
    place.release();
    assert_eq!(text(&view(&wait(&other, &task.id, 20_000).await)), "effected");
}

#[tokio::test]
async fn after_a_crash_what_was_begun_is_unknown_and_what_was_not_runs() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let host = CrashingHost::start(&rig, &place, vec![narrow()]).await;
    let worker = rig.legacy("w").await;
    let first = begun(&worker.task("one", "effect", place.waiting(), None).await);
    place.effects_are(1).await;
    let second = begun(&worker.task("one", "effect", place.waiting(), None).await);
    host.crash().await;
    place.release();
    let _host = CrashingHost::start(&rig, &place, vec![narrow()]).await;
    let lost = view(&wait(&worker, &first.id, 20_000).await);
    assert_eq!((lost.status, code(&lost).as_str()), (TaskStatus::Failed, "TB0420"));
    let ran = view(&wait(&worker, &second.id, 20_000).await);
    assert_eq!((ran.status, text(&ran).as_str()), (TaskStatus::Completed, "effected"));
    place.effects_are(2).await;
    assert_eq!(list(&worker).await, [first.id, second.id]);
}

#[tokio::test]
async fn tasks_that_were_left_run_in_their_order() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let host = CrashingHost::start(&rig, &place, vec![narrow()]).await;
    let worker = rig.legacy("w").await;
    let mark = |mark: &str| {
        let mut arguments = place.waiting();
        arguments["mark"] = mark.into();
        arguments
    };
    begun(&worker.task("one", "effect", mark("first"), None).await);
    place.effects_are(1).await;
    let mut last = String::new();
    for name in ["a", "b", "c", "d", "e"] {
        last = begun(&worker.task("one", "effect", mark(name), None).await).id;
    }
    host.crash().await;
    place.release();
    let _host = CrashingHost::start(&rig, &place, vec![narrow()]).await;
    assert_eq!(text(&view(&wait(&worker, &last, 30_000).await)), "effected");
    assert_eq!(place.effects(), ["first", "a", "b", "c", "d", "e"]);
}

#[tokio::test]
async fn after_a_crash_a_task_that_may_run_twice_runs_again() {
    for (era, legacy) in [("legacy", true), ("modern", false)] {
        let (rig, place) = (Rig::bus().await, Place::new());
        let host = CrashingHost::start(&rig, &place, vec![safe(fake("one", era))]).await;
        let worker = worker(&rig, legacy).await;
        let task = begun(&worker.task("one", "effect", place.waiting(), None).await);
        place.effects_are(1).await;
        host.crash().await;
        place.release();
        let host = CrashingHost::start(&rig, &place, vec![safe(fake("one", era))]).await;
        assert_eq!(text(&view(&wait(&worker, &task.id, 20_000).await)), "effected");
        place.effects_are(2).await;
        // What came of it is there after one more end.
        host.crash().await;
        let _host = CrashingHost::start(&rig, &place, vec![safe(fake("one", era))]).await;
        assert_eq!(text(&view(&wait(&worker, &task.id, 0).await)), "effected");
        place.effects_are(2).await;
    }
}

#[tokio::test]
async fn a_host_that_ends_in_order_leaves_its_tasks_to_the_next() {
    let place = Place::new();
    let mut rig = Rig::with(options(vec![narrow()])).await;
    let worker = rig.legacy("w").await;
    let first = begun(&worker.task("one", "effect", place.waiting(), None).await);
    place.effects_are(1).await;
    let second = begun(&worker.task("one", "effect", place.waiting(), None).await);
    rig.stop_host().await;
    place.release();
    rig.restart_after_stop().await;
    let lost = view(&wait(&worker, &first.id, 20_000).await);
    assert_eq!((lost.status, code(&lost).as_str()), (TaskStatus::Failed, "TB0420"));
    assert_eq!(text(&view(&wait(&worker, &second.id, 20_000).await)), "effected");
    place.effects_are(2).await;
}

#[tokio::test]
async fn a_task_is_its_agents_own_and_an_operators() {
    let place = Place::new();
    let rig = Rig::with(options(vec![server()])).await;
    let owner = rig.worker(AgentRef::new("w#1"), ClientHello::modern()).await;
    let task = begun(&owner.task("one", "effect", place.waiting(), None).await);
    let thief = rig.modern("thief").await;
    for (known, unknown) in [
        (get(&thief, &task.id).await, get(&thief, "nothing").await),
        (wait(&thief, &task.id, 0).await, wait(&thief, "nothing", 0).await),
        (cancel(&thief, &task.id).await, cancel(&thief, "nothing").await),
    ] {
        let (known, unknown) = (known.error().to_string(), unknown.error().to_string());
        assert!(known.contains("TB0423"), "{known}");
        assert_eq!(known.replace(&task.id, "nothing"), unknown);
    }
    assert_eq!(list(&thief).await, [""; 0]);
    let same = rig.worker(AgentRef::new("w#2"), ClientHello::modern()).await;
    let operator = rig.worker(AgentRef::new("boss").with_role("operator"), ClientHello::modern()).await;
    for other in [&same, &operator] {
        assert_eq!(list(other).await, std::slice::from_ref(&task.id));
        assert_eq!(view(&get(other, &task.id).await).status, TaskStatus::Working);
    }
    place.release();
    assert_eq!(text(&view(&wait(&same, &task.id, 20_000).await)), "effected");
}

#[tokio::test]
async fn a_task_whose_time_is_over_is_ended_and_forgotten() {
    let place = Place::new();
    let rig = Rig::with(options(vec![server()])).await;
    let worker = rig.legacy("w").await;
    let task = begun(&worker.task("one", "effect", place.waiting(), Some(1000)).await);
    within("the task to be forgotten", async {
        while matches!(get(&worker, &task.id).await.end, HostReply::Rpc(Outcome::Result(_))) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(get(&worker, &task.id).await.error()["data"]["code"], "TB0423");
    assert_eq!(list(&worker).await, [""; 0]);
}

#[tokio::test]
async fn tasks_are_bounded_for_each_agent_and_for_all() {
    let place = Place::new();
    let mut options = options(vec![server()]);
    (options.limits.max_tasks_per_agent, options.limits.max_tasks) = (2, 3);
    let rig = Rig::with(options).await;
    let (one, two) = (rig.modern("one").await, rig.modern("two").await);
    for worker in [&one, &one, &two] {
        begun(&worker.task("one", "effect", place.quick(), None).await);
    }
    for worker in [&one, &two] {
        let refused = worker.task("one", "effect", place.quick(), None).await.error();
        assert_eq!(refused["data"]["code"], "TB0428", "{refused}");
    }
    place.effects_are(3).await;
}

#[tokio::test]
async fn a_task_is_called_off_while_it_runs_and_while_it_waits() {
    let place = Place::new();
    let rig = Rig::with(options(vec![narrow()])).await;
    let worker = rig.legacy("w").await;
    let runs = begun(&worker.task("one", "effect", place.waiting(), None).await);
    place.effects_are(1).await;
    let waits = begun(&worker.task("one", "effect", place.waiting(), None).await);
    for task in [&waits, &runs] {
        assert_eq!(view(&cancel(&worker, &task.id).await).status, TaskStatus::Cancelled);
        assert_eq!(view(&wait(&worker, &task.id, 0).await).status, TaskStatus::Cancelled);
        assert_eq!(cancel(&worker, &task.id).await.error()["data"]["code"], "TB0424");
    }
    place.release();
    assert_eq!(worker.tool("one", "add", json!({"a": 1, "b": 2})).await.text(), "3");
    place.effects_are(1).await;
}

#[tokio::test]
async fn a_server_that_asks_in_a_task_learns_that_nobody_is_there() {
    for (era, legacy) in [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)] {
        let rig = Rig::with(options(vec![fake("one", era)])).await;
        let worker = worker(&rig, legacy).await;
        let task = begun(&worker.task("one", "ask", json!({}), None).await);
        let ended = view(&wait(&worker, &task.id, 20_000).await);
        match era {
            // The server goes on with the refusal, as it sees fit.
            "legacy" => assert!(text(&ended).contains("error"), "{ended:?}"),
            _ => assert_eq!((ended.status, code(&ended).as_str()), (TaskStatus::Failed, "TB0430"), "{legacy}"),
        }
    }
}

#[tokio::test]
async fn a_failed_tool_a_failed_call_and_a_dead_server_are_told_apart() {
    let rig = Rig::with(options(vec![server()])).await;
    let worker = rig.modern("w").await;
    let task = begun(&worker.task("one", "fail", json!({}), None).await);
    let failed = view(&wait(&worker, &task.id, 20_000).await);
    assert!(failed.status == TaskStatus::Completed && failed.tool_failed && text(&failed) == "failed", "{failed:?}");
    let task = begun(&worker.task("one", "nothing", json!({}), None).await);
    let unknown = view(&wait(&worker, &task.id, 20_000).await);
    assert!(unknown.status == TaskStatus::Failed && unknown.error.is_some(), "{unknown:?}");
    assert_eq!(unknown.message.as_deref(), Some("Unknown tool: nothing"));
    let task = begun(&worker.task("one", "die", json!({}), None).await);
    assert_eq!(code(&view(&wait(&worker, &task.id, 20_000).await)), "TB0408");
}

#[tokio::test]
async fn what_may_not_be_called_is_no_task_and_its_caller_can_find_out_later() {
    let mut options = options(vec![server()]);
    let (rules, _) = PolicySet::read("[roles.reader]\nallow = ['add']").expect("rules");
    options.policy = LivePolicy::new(rules);
    let rig = Rig::with(options).await;
    let reader = rig.worker(AgentRef::new("w").with_role("reader"), ClientHello::modern()).await;
    assert_eq!(reader.task("one", "echo", json!({}), None).await.error()["data"]["code"], "TB0403");
    assert_eq!(list(&reader).await, [""; 0]);
    let task = begun(&reader.task("one", "add", json!({"a": 1, "b": 2}), None).await);
    assert_eq!(text(&view(&wait(&reader, &task.id, 20_000).await)), "3");
    // Told of a task while its host was away.
    let message = reader.task_message("one", "echo", json!({}));
    let id = message.id.to_string();
    reader.bus.client().deliver("host", message).await.expect("a receipt");
    let refused = within("the refusal", async {
        loop {
            match wait(&reader, &id, 0).await.end {
                HostReply::Rpc(Outcome::Result(result)) => return result,
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    })
    .await;
    let refused: TaskView = serde_json::from_str(refused.get()).expect("a task");
    assert_eq!((refused.status, code(&refused).as_str()), (TaskStatus::Failed, "TB0403"));
}

#[tokio::test]
async fn a_task_tells_how_far_it_is_and_has_a_session_of_its_own() {
    let place = Place::new();
    let rig = Rig::with(options(vec![server()])).await;
    let worker = rig.legacy("w").await;
    let own = worker.tool("one", "whoami", json!({})).await.json();
    let task = begun(&worker.task("one", "whoami", json!({}), None).await);
    let of_task: Value = serde_json::from_str(&text(&view(&wait(&worker, &task.id, 20_000).await))).expect("JSON");
    assert_ne!(own["pid"], of_task["pid"]);
    assert_eq!(
        (&own["hello"]["capabilities"], &of_task["hello"]["capabilities"]),
        (&json!({"elicitation": {}}), &json!({}))
    );
    let task = begun(&worker.task("one", "effect", place.waiting(), None).await);
    within("progress", async {
        while view(&get(&worker, &task.id).await).message.is_none_or(|message| message.parse::<u64>().is_err()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    place.release();
}
