//! Tasks: calls that continue without their caller and after a restart of the host.

use crate::crashing::{CrashingHost, TestFolder, replay_safe, server};
use crate::journal_failures::{host_on_gated_disk, wait_for_blocked_sync};
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
pub fn created(reply: &Reply) -> TaskView {
    match &reply.end {
        HostReply::Task(view) => (**view).clone(),
        other => panic!("expected a task, got {other:?}"),
    }
}

#[track_caller]
pub fn view(reply: &Reply) -> TaskView {
    match &reply.end {
        HostReply::Rpc(Outcome::Result(result)) => serde_json::from_str(result.get()).expect("a task"),
        other => panic!("expected a task, got {other:?}"),
    }
}

pub async fn get(worker: &Worker, id: &str) -> Reply {
    worker.ask(HostRequest::Admin(AdminRequest::TaskGet { id: id.to_owned() })).await
}

pub async fn wait(worker: &Worker, id: &str, limit_ms: u64) -> Reply {
    worker.ask(HostRequest::Admin(AdminRequest::TaskWait { id: id.to_owned(), limit_ms })).await
}

pub async fn cancel(worker: &Worker, id: &str) -> Reply {
    worker.ask(HostRequest::Admin(AdminRequest::TaskCancel { id: id.to_owned() })).await
}

pub async fn list(worker: &Worker) -> Vec<String> {
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
    options.journal = Arc::new(Journal::in_memory().expect("a journal"));
    options
}

/// A server with a concurrency limit of one.
pub fn narrow() -> ServerConfig {
    ServerConfig { max_concurrency: 1, ..server() }
}

#[tokio::test]
async fn a_task_is_answered_immediately_and_its_result_is_kept() {
    for (era, legacy) in [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)] {
        let folder = TestFolder::new();
        let rig = Rig::with(options(vec![fake("one", era)])).await;
        let worker = worker(&rig, legacy).await;
        let task = created(&worker.task("one", "effect", folder.waiting(), Some(60_000)).await);
        assert_eq!((task.status, task.ttl_ms, task.agent.as_str()), (TaskStatus::Working, 60_000, "w"));
        assert_eq!((task.server.as_str(), task.tool.as_str()), ("one", "effect"));
        folder.expect_effects(1).await;
        assert_eq!(view(&get(&worker, &task.id).await).status, TaskStatus::Working, "{era} {legacy}");
        assert_eq!(view(&wait(&worker, &task.id, 10).await).status, TaskStatus::Working);
        folder.release();
        let ended = view(&wait(&worker, &task.id, 20_000).await);
        assert_eq!((ended.status, text(&ended).as_str()), (TaskStatus::Completed, "effected"), "{era} {legacy}");
        assert!(ended.updated_ms >= ended.created_ms && ended.created_ms == task.created_ms);
        let again = view(&get(&worker, &task.id).await);
        assert!(again.status == TaskStatus::Completed && again.result.is_none());
        folder.expect_effects(1).await;
    }
}

#[tokio::test]
async fn a_task_is_synced_before_its_caller_gets_the_reply() {
    let folder = TestFolder::new();
    let (rig, disk, _host) = host_on_gated_disk(&folder, server()).await;
    let worker = rig.legacy("w").await;
    worker.tool("one", "add", json!({"a": 1, "b": 2})).await.text();
    disk.block_syncs();
    let mut request = std::pin::pin!(worker.task("one", "effect", folder.quick(), None));
    let early = async {
        wait_for_blocked_sync(&disk).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    };
    tokio::select! {
        reply = &mut request => panic!("the reply was sent before the task was synced: {reply:?}"),
        () = early => {}
    }
    assert_eq!(folder.effects(), [""; 0]);
    disk.unblock_syncs();
    let task = created(&request.await);
    assert_eq!(text(&view(&wait(&worker, &task.id, 20_000).await)), "effected");
}

#[tokio::test]
async fn a_task_continues_without_its_caller() {
    let folder = TestFolder::new();
    let mut options = options(vec![server()]);
    options.limits.caller_grace = Some(Duration::from_secs(1));
    let rig = Rig::with(options).await;
    let caller = rig.worker(AgentRef::new("w#1"), ClientHello::modern()).await;
    let task = created(&caller.task("one", "effect", folder.waiting(), None).await);
    folder.expect_effects(1).await;
    caller.send(HostRequest::Close { session: caller.session.clone() }).await;
    caller.bus.close().await;
    let other = rig.worker(AgentRef::new("w#2"), ClientHello::modern()).await;
    assert_eq!(view(&wait(&other, &task.id, 2500).await).status, TaskStatus::Working);
    folder.release();
    assert_eq!(text(&view(&wait(&other, &task.id, 20_000).await)), "effected");
}

#[tokio::test]
async fn after_a_crash_started_tasks_are_unknown_and_queued_tasks_run() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let host = CrashingHost::start(&rig, &folder, vec![narrow()]).await;
    let worker = rig.legacy("w").await;
    let first = created(&worker.task("one", "effect", folder.waiting(), None).await);
    folder.expect_effects(1).await;
    let second = created(&worker.task("one", "effect", folder.waiting(), None).await);
    host.crash().await;
    folder.release();
    let _host = CrashingHost::start(&rig, &folder, vec![narrow()]).await;
    let lost = view(&wait(&worker, &first.id, 20_000).await);
    assert_eq!((lost.status, code(&lost).as_str()), (TaskStatus::Failed, "TB0420"));
    let ran = view(&wait(&worker, &second.id, 20_000).await);
    assert_eq!((ran.status, text(&ran).as_str()), (TaskStatus::Completed, "effected"));
    folder.expect_effects(2).await;
    assert_eq!(list(&worker).await, [first.id, second.id]);
}

#[tokio::test]
async fn queued_tasks_run_in_order_after_a_crash() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let host = CrashingHost::start(&rig, &folder, vec![narrow()]).await;
    let worker = rig.legacy("w").await;
    let mark = |mark: &str| {
        let mut arguments = folder.waiting();
        arguments["mark"] = mark.into();
        arguments
    };
    created(&worker.task("one", "effect", mark("first"), None).await);
    folder.expect_effects(1).await;
    let mut last = String::new();
    for name in ["a", "b", "c", "d", "e"] {
        last = created(&worker.task("one", "effect", mark(name), None).await).id;
    }
    host.crash().await;
    folder.release();
    let _host = CrashingHost::start(&rig, &folder, vec![narrow()]).await;
    assert_eq!(text(&view(&wait(&worker, &last, 30_000).await)), "effected");
    assert_eq!(folder.effects(), ["first", "a", "b", "c", "d", "e"]);
}

#[tokio::test]
async fn a_replay_safe_task_runs_again_after_a_crash() {
    for (era, legacy) in [("legacy", true), ("modern", false)] {
        let (rig, folder) = (Rig::without_host().await, TestFolder::new());
        let host = CrashingHost::start(&rig, &folder, vec![replay_safe(fake("one", era))]).await;
        let worker = worker(&rig, legacy).await;
        let task = created(&worker.task("one", "effect", folder.waiting(), None).await);
        folder.expect_effects(1).await;
        host.crash().await;
        folder.release();
        let host = CrashingHost::start(&rig, &folder, vec![replay_safe(fake("one", era))]).await;
        assert_eq!(text(&view(&wait(&worker, &task.id, 20_000).await)), "effected");
        folder.expect_effects(2).await;
        // The result survives another crash.
        host.crash().await;
        let _host = CrashingHost::start(&rig, &folder, vec![replay_safe(fake("one", era))]).await;
        assert_eq!(text(&view(&wait(&worker, &task.id, 0).await)), "effected");
        folder.expect_effects(2).await;
    }
}

#[tokio::test]
async fn a_clean_shutdown_leaves_queued_tasks_to_the_next_host() {
    let folder = TestFolder::new();
    let mut rig = Rig::with(options(vec![narrow()])).await;
    let worker = rig.legacy("w").await;
    let first = created(&worker.task("one", "effect", folder.waiting(), None).await);
    folder.expect_effects(1).await;
    let second = created(&worker.task("one", "effect", folder.waiting(), None).await);
    rig.stop_host().await;
    folder.release();
    rig.restart_after_stop().await;
    let lost = view(&wait(&worker, &first.id, 20_000).await);
    assert_eq!((lost.status, code(&lost).as_str()), (TaskStatus::Failed, "TB0420"));
    assert_eq!(text(&view(&wait(&worker, &second.id, 20_000).await)), "effected");
    folder.expect_effects(2).await;
}

#[tokio::test]
async fn a_task_is_visible_only_to_its_agent_and_to_operators() {
    let folder = TestFolder::new();
    let rig = Rig::with(options(vec![server()])).await;
    let owner = rig.worker(AgentRef::new("w#1"), ClientHello::modern()).await;
    let task = created(&owner.task("one", "effect", folder.waiting(), None).await);
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
    folder.release();
    assert_eq!(text(&view(&wait(&same, &task.id, 20_000).await)), "effected");
}

#[tokio::test]
async fn an_expired_task_is_ended_and_removed() {
    let folder = TestFolder::new();
    let rig = Rig::with(options(vec![server()])).await;
    let worker = rig.legacy("w").await;
    let task = created(&worker.task("one", "effect", folder.waiting(), Some(1000)).await);
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
async fn tasks_are_limited_per_agent_and_in_total() {
    let folder = TestFolder::new();
    let mut options = options(vec![server()]);
    (options.limits.max_tasks_per_agent, options.limits.max_tasks) = (2, 5);
    let rig = Rig::with(options).await;
    let (one, two) = (rig.modern("one").await, rig.modern("two").await);
    for worker in [&one, &one, &two] {
        created(&worker.task("one", "effect", folder.quick(), None).await);
    }
    for worker in [&one, &two] {
        let refused = worker.task("one", "effect", folder.quick(), None).await.error();
        assert_eq!(refused["data"]["code"], "TB0428", "{refused}");
    }
    folder.expect_effects(3).await;
}

#[tokio::test]
async fn a_running_and_a_queued_task_can_be_cancelled() {
    let folder = TestFolder::new();
    let rig = Rig::with(options(vec![narrow()])).await;
    let worker = rig.legacy("w").await;
    let running = created(&worker.task("one", "effect", folder.waiting(), None).await);
    folder.expect_effects(1).await;
    let queued = created(&worker.task("one", "effect", folder.waiting(), None).await);
    for task in [&queued, &running] {
        assert_eq!(view(&cancel(&worker, &task.id).await).status, TaskStatus::Cancelled);
        assert_eq!(view(&wait(&worker, &task.id, 0).await).status, TaskStatus::Cancelled);
        assert_eq!(cancel(&worker, &task.id).await.error()["data"]["code"], "TB0424");
    }
    folder.release();
    assert_eq!(worker.tool("one", "add", json!({"a": 1, "b": 2})).await.text(), "3");
    folder.expect_effects(1).await;
}

#[tokio::test]
async fn a_servers_client_request_in_a_task_is_refused() {
    for (era, legacy) in [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)] {
        let rig = Rig::with(options(vec![fake("one", era)])).await;
        let worker = worker(&rig, legacy).await;
        let task = created(&worker.task("one", "ask", json!({}), None).await);
        let ended = view(&wait(&worker, &task.id, 20_000).await);
        match era {
            // A legacy server gets the refusal as an error and decides how to continue.
            "legacy" => assert!(text(&ended).contains("error"), "{ended:?}"),
            _ => assert_eq!((ended.status, code(&ended).as_str()), (TaskStatus::Failed, "TB0430"), "{legacy}"),
        }
    }
}

#[tokio::test]
async fn tool_errors_call_errors_and_server_crashes_are_distinguished() {
    let rig = Rig::with(options(vec![server()])).await;
    let worker = rig.modern("w").await;
    let task = created(&worker.task("one", "fail", json!({}), None).await);
    let failed = view(&wait(&worker, &task.id, 20_000).await);
    assert!(failed.status == TaskStatus::Completed && failed.tool_failed && text(&failed) == "failed", "{failed:?}");
    let task = created(&worker.task("one", "nothing", json!({}), None).await);
    let unknown = view(&wait(&worker, &task.id, 20_000).await);
    assert!(unknown.status == TaskStatus::Failed && unknown.error.is_some(), "{unknown:?}");
    assert_eq!(unknown.message.as_deref(), Some("Unknown tool: nothing"));
    let task = created(&worker.task("one", "die", json!({}), None).await);
    assert_eq!(code(&view(&wait(&worker, &task.id, 20_000).await)), "TB0408");
}

#[tokio::test]
async fn a_denied_call_creates_no_task_and_the_refusal_can_be_queried() {
    let mut options = options(vec![server()]);
    let (rules, _) = PolicySet::read("[roles.reader]\nallow = ['add']").expect("rules");
    options.policy = LivePolicy::new(rules);
    let rig = Rig::with(options).await;
    let reader = rig.worker(AgentRef::new("w").with_role("reader"), ClientHello::modern()).await;
    assert_eq!(reader.task("one", "echo", json!({}), None).await.error()["data"]["code"], "TB0403");
    assert_eq!(list(&reader).await, [""; 0]);
    let task = created(&reader.task("one", "add", json!({"a": 1, "b": 2}), None).await);
    assert_eq!(text(&view(&wait(&reader, &task.id, 20_000).await)), "3");
    // While a host is away, workers return the id of a task before the host can refuse it.
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
async fn a_task_reports_progress_and_has_its_own_session() {
    let folder = TestFolder::new();
    let rig = Rig::with(options(vec![server()])).await;
    let worker = rig.legacy("w").await;
    let own = worker.tool("one", "whoami", json!({})).await.json();
    let task = created(&worker.task("one", "whoami", json!({}), None).await);
    let of_task: Value = serde_json::from_str(&text(&view(&wait(&worker, &task.id, 20_000).await))).expect("JSON");
    assert_ne!(own["pid"], of_task["pid"]);
    assert_eq!(
        (&own["hello"]["capabilities"], &of_task["hello"]["capabilities"]),
        (&json!({"elicitation": {}}), &json!({}))
    );
    let task = created(&worker.task("one", "effect", folder.waiting(), None).await);
    within("progress", async {
        while view(&get(&worker, &task.id).await).message.is_none_or(|message| message.parse::<u64>().is_err()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    folder.release();
}
