//! The limits of tasks (sessions, lifetime, number, names), and the policy at their start and afterwards.

use crate::crashing::{TestFolder, server};
use crate::support::{Rig, fake, within};
use crate::tasks::{cancel, code, created, get, list, narrow, options, text, view, wait};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolbus_client::AgentRef;
use toolbus_host::LivePolicy;
use toolbus_journal::{Journal, JournalOptions, Limits};
use toolbus_mcp::{ClientHello, TaskStatus};
use toolbus_policy::PolicySet;
use toolbus_protocol::ErrorCode;
use toolbus_upstream::ServerConfig;

fn with_sessions(max_sessions: usize) -> ServerConfig {
    ServerConfig { max_sessions, ..server() }
}

#[tokio::test]
async fn tasks_of_one_agent_get_a_quarter_of_the_sessions() {
    let folder = TestFolder::new();
    let mut options = options(vec![with_sessions(4)]);
    options.limits.evicted_after = Duration::ZERO;
    let rig = Rig::with(options).await;
    for legacy in [true, false] {
        let owner = if legacy { rig.legacy("w").await } else { rig.modern("w").await };
        let mut tasks = Vec::new();
        for _ in 0..6 {
            tasks.push(created(&owner.task("one", "effect", folder.waiting(), None).await));
        }
        let before = if legacy { 0 } else { 6 };
        folder.expect_effects(before + 1).await;
        for caller in ["a", "b", "c"] {
            let caller = rig.legacy(&format!("{caller}{legacy}")).await;
            assert_eq!(caller.tool("one", "add", json!({"a": 1, "b": 2})).await.text(), "3", "{legacy}");
        }
        folder.expect_effects(before + 1).await;
        folder.release();
        for task in &tasks {
            assert_eq!(text(&view(&wait(&owner, &task.id, 20_000).await)), "effected", "{legacy}");
        }
        folder.expect_effects(before + 6).await;
        std::fs::remove_file(folder.path("go")).expect("the file exists");
    }
}

#[tokio::test]
async fn a_task_waits_for_a_session_until_it_expires() {
    let folder = TestFolder::new();
    let mut options = options(vec![with_sessions(1)]);
    options.limits.evicted_after = Duration::from_millis(50);
    let rig = Rig::with(options).await;
    let (caller, owner) = (rig.legacy("v").await, rig.modern("w").await);
    let arguments = json!({"name": "effect", "arguments": folder.waiting()});
    let call = caller.start("one", "tools/call", arguments).await;
    folder.expect_effects(1).await;
    let short = created(&owner.task("one", "effect", folder.quick(), Some(1000)).await);
    let long = created(&owner.task("one", "effect", folder.quick(), None).await);
    assert_eq!(view(&wait(&owner, &long.id, 1500).await).status, TaskStatus::Working);
    assert_eq!(wait(&owner, &short.id, 0).await.error()["data"]["code"], "TB0423");
    folder.expect_effects(1).await;
    folder.release();
    assert_eq!(crate::support::finish(call).await.text(), "effected");
    assert_eq!(text(&view(&wait(&owner, &long.id, 20_000).await)), "effected");
    folder.expect_effects(2).await;
}

#[tokio::test]
async fn a_task_is_checked_against_the_rules_at_its_start() {
    let rules = |text: &str| PolicySet::read(text).expect("rules").0;
    for changed in ["deny = ['effect']", "ask = ['effect']"] {
        let folder = TestFolder::new();
        let mut options = options(vec![narrow()]);
        options.policy = LivePolicy::new(rules("[roles.writer]\nallow = ['**']"));
        let rig = Rig::with(options).await;
        let owner = rig.worker(AgentRef::new("w").with_role("writer"), ClientHello::modern()).await;
        let first = created(&owner.task("one", "effect", folder.waiting(), None).await);
        folder.expect_effects(1).await;
        let second = created(&owner.task("one", "effect", folder.waiting(), None).await);
        rig.policy().replace(rules(&format!("[roles.writer]\nallow = ['**']\n{changed}")));
        folder.release();
        let refused = view(&wait(&owner, &second.id, 20_000).await);
        assert_eq!((refused.status, code(&refused).as_str()), (TaskStatus::Failed, "TB0403"), "{changed}");
        folder.expect_effects(1).await;
        let first = wait(&owner, &first.id, 20_000).await;
        match changed {
            "ask = ['effect']" => assert_eq!(text(&view(&first)), "effected"),
            _ => assert_eq!(first.error()["data"]["code"], "TB0423", "it is the task of a tool that is not allowed"),
        }
    }
}

#[tokio::test]
async fn a_journal_at_its_task_limit_still_accepts_calls() {
    let folder = TestFolder::new();
    let limits = Limits { max_tasks: 1, ..Limits::default() };
    let journal = JournalOptions { limits, ..JournalOptions::default() };
    let mut options = options(vec![server()]);
    options.journal = Arc::new(Journal::open(&folder.path("journal"), journal).expect("a journal"));
    let rig = Rig::with(options).await;
    let worker = rig.modern("w").await;
    created(&worker.task("one", "effect", folder.quick(), Some(1000)).await);
    let refused = worker.task("one", "effect", folder.quick(), None).await.error();
    assert_eq!(refused["data"]["code"], "TB0428", "{refused}");
    assert_eq!(worker.tool("one", "effect", folder.quick()).await.text(), "effected");
    let manifest = rig.manifest(&worker, |manifest| !manifest.servers.is_empty()).await;
    assert!(manifest.problems.is_empty(), "{manifest:?}");
    within("the first task to expire", async {
        while worker.task("one", "effect", folder.quick(), None).await.refused() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn overlong_and_reserved_names_are_refused() {
    let rig = Rig::with(options(vec![server()])).await;
    let mut worker = rig.legacy("w").await;
    let code_of = |error: Value| error["data"]["code"].as_str().expect("a code").to_owned();
    let long = "x".repeat(2000);
    let refused = worker.task(&long, "add", json!({}), None).await.error();
    assert!(refused.to_string().len() < 1000, "{refused}");
    assert_eq!(code_of(refused), ErrorCode::BadArguments.code());
    for session in [long.as_str(), "toolbus task 1"] {
        worker.session = session.to_owned();
        let refused = worker.tool("one", "add", json!({"a": 1, "b": 2})).await.error();
        assert_eq!(code_of(refused), ErrorCode::BadArguments.code());
    }
}

#[tokio::test]
async fn a_task_of_a_tool_that_is_no_longer_allowed_does_not_exist_for_its_agent() {
    let set = |rules: &str| PolicySet::read(rules).expect("valid rules").0;
    let mut options = options(vec![fake("one", "legacy")]);
    options.policy = LivePolicy::new(set("[roles.maker]\nallow = ['**']"));
    let rig = Rig::with(options).await;
    let hello = rig.legacy("other").await.hello;
    let maker = rig.worker(AgentRef::new("maker").with_role("maker"), hello).await;
    let ended = created(&maker.task("one", "add", json!({"a": 1, "b": 2}), Some(60_000)).await).id;
    let running = created(&maker.task("one", "slow", json!({"count": 1, "pause": 20}), Some(60_000)).await).id;
    assert_eq!(view(&wait(&maker, &ended, 20_000).await).status, TaskStatus::Completed);
    within("the other task has started", async {
        while view(&get(&maker, &running).await).message.as_deref() == Some("queued") {}
    })
    .await;
    assert_eq!(list(&maker).await.len(), 2);
    rig.policy().replace(set("[roles.maker]\nallow = ['echo']"));
    assert_eq!(list(&maker).await, [""; 0]);
    for id in [&ended, &running, &"none".to_owned()] {
        let waiting = within("the answer does not wait for the task", wait(&maker, id, 20_000));
        for reply in [get(&maker, id).await, waiting.await, cancel(&maker, id).await] {
            assert_eq!(reply.error()["data"]["code"], "TB0423", "{id}");
        }
    }
    rig.policy().replace(set("[roles.maker]\nallow = ['add']"));
    assert_eq!(list(&maker).await, [ended.as_str()]);
    assert_eq!(text(&view(&wait(&maker, &ended, 0).await)), "3");
}
