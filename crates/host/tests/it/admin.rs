//! The admin API for calls and dead letters, as their agents, other agents and operators see it.

use crate::catalog::all_up;
use crate::crashing::{CrashingHost, TestFolder, replay_safe, server, start_call};
use crate::support::{Rig, TIMEOUT, Worker, fake, finish, next_event, within};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;
use toolbus_client::{AgentRef, InboxKind, InboxMessage};
use toolbus_journal::{Dead, DeadLetterRow};
use toolbus_mcp::{
    AdminRequest, CallList, CallRow, CallState, ClientHello, DeadLetter, DeadList, HostReply, HostRequest, Outcome,
    TaskStatus, TaskView,
};
use toolbus_protocol::Body;

/// The result of an admin query, or its error code.
async fn ask<T: DeserializeOwned>(worker: &Worker, request: AdminRequest) -> Result<T, String> {
    let body = Body::parse(HostRequest::Admin(request).to_json().into_bytes()).expect("JSON");
    let message = InboxMessage::new(worker.bus.client().me(), InboxKind::McpRequest, body);
    let reply = within("an answer", worker.bus.request_message("host", message, TIMEOUT)).await.expect("a reply");
    match HostReply::parse(std::str::from_utf8(reply.body.as_bytes()).expect("UTF-8")).expect("a reply") {
        HostReply::Rpc(Outcome::Result(result)) => Ok(serde_json::from_str(result.get()).expect("the view")),
        HostReply::Rpc(Outcome::Error(error)) => {
            let error: Value = serde_json::from_str(error.get()).expect("JSON");
            Err(error["data"]["code"].as_str().unwrap_or_default().to_owned())
        }
        other => panic!("{other:?}"),
    }
}

async fn calls(worker: &Worker, ended: bool) -> Vec<CallRow> {
    ask::<CallList>(worker, AdminRequest::CallsList { ended }).await.expect("a list").calls
}

/// Polls the list of calls until its states are `expected`.
async fn states_are(worker: &Worker, ended: bool, expected: &[CallState]) -> Vec<CallRow> {
    within("the calls to be in that state", async {
        loop {
            let rows = calls(worker, ended).await;
            if rows.iter().map(|row| row.state).eq(expected.iter().copied()) {
                return rows;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}

async fn modern(rig: &Rig, agent: AgentRef) -> Worker {
    rig.worker(agent, ClientHello::modern()).await
}

async fn operator(rig: &Rig) -> Worker {
    modern(rig, AgentRef::new("op").with_role("operator")).await
}

fn cancel(id: &str) -> AdminRequest {
    AdminRequest::CallsCancel { id: id.to_owned() }
}

#[tokio::test]
async fn a_listen_to_lists_runs_and_holds_up_no_call_of_its_client() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let worker = modern(&rig, AgentRef::new("w")).await;
    rig.manifest(&worker, all_up).await;
    let wanted = json!({"notifications": {"toolsListChanged": true}});
    let mut listen = worker.start("one", "subscriptions/listen", wanted).await;
    next_event(&mut listen).await;
    states_are(&worker, false, &[CallState::Running]).await;
    worker.tool("one", "whoami", json!({})).await.json();
    worker.cancel("one", &listen.id()).await;
    states_are(&worker, false, &[]).await;
}

#[tokio::test]
async fn calls_are_listed_in_every_state_for_their_agent_and_for_operators() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let host = CrashingHost::start(&rig, &folder, vec![server()]).await;
    let (first, second, other) = (rig.modern("w#1").await, rig.modern("w#2").await, rig.modern("v").await);
    let operator = operator(&rig).await;
    let call = start_call(&first, "effect", &folder.waiting()).await;
    folder.expect_effects(1).await;
    for viewer in [&first, &second, &operator] {
        let rows = states_are(viewer, false, &[CallState::Running]).await;
        let CallRow { id, agent, server, tool, attempts, .. } = &rows[0];
        assert_eq!((id.as_str(), agent.as_str(), *attempts), (call.id().as_str(), "w", 1));
        assert_eq!((server.as_deref(), tool.as_deref()), (Some("one"), Some("effect")));
    }
    assert_eq!(calls(&other, true).await, []);
    folder.release();
    assert_eq!(finish(call).await.text(), "effected");
    states_are(&second, false, &[]).await;
    states_are(&second, true, &[CallState::Done]).await;
    // A call that is interrupted by a crash of its host.
    std::fs::remove_file(folder.path("go")).expect("the file exists");
    let call = start_call(&first, "effect", &folder.waiting()).await;
    folder.expect_effects(2).await;
    host.crash().await;
    let _host = CrashingHost::start(&rig, &folder, vec![server()]).await;
    finish(call).await.error();
    states_are(&operator, true, &[CallState::Done, CallState::Unknown]).await;
    assert_eq!(calls(&other, true).await, []);
}

#[tokio::test]
async fn a_call_cancelled_by_an_admin_request_fails_at_its_caller() {
    for era in ["legacy", "modern"] {
        let (rig, folder) = (Rig::without_host().await, TestFolder::new());
        let _host = CrashingHost::start(&rig, &folder, vec![fake("one", era)]).await;
        let (first, second, other) = (rig.modern("w#1").await, rig.modern("w#2").await, rig.modern("v").await);
        let call = start_call(&first, "effect", &folder.waiting()).await;
        folder.expect_effects(1).await;
        let id = call.id().to_string();
        assert_eq!(ask::<CallRow>(&other, cancel(&id)).await.err().as_deref(), Some("TB0429"), "{era}");
        let row: CallRow = ask(&second, cancel(&id)).await.expect("a running call");
        assert_eq!((row.id.as_str(), row.state), (id.as_str(), CallState::Cancelled), "{era}");
        let error = finish(call).await.error();
        assert_eq!(error["data"]["code"], "TB0214", "{era}: {error}");
        assert_eq!(ask::<CallRow>(&second, cancel(&id)).await.err().as_deref(), Some("TB0424"), "{era}");
        assert_eq!(ask::<CallRow>(&second, cancel("unknown")).await.err().as_deref(), Some("TB0429"), "{era}");
        states_are(&first, true, &[CallState::Cancelled]).await;
    }
}

#[tokio::test]
async fn dead_letters_are_listed_shown_and_dropped() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let _host = CrashingHost::start(&rig, &folder, vec![replay_safe(server())]).await;
    let (worker, other, operator) = (rig.modern("w").await, rig.modern("v").await, operator(&rig).await);
    let call = start_call(&worker, "effect", &folder.crashing_server()).await;
    let id = call.id().to_string();
    assert_eq!(finish(call).await.error()["data"]["code"], "TB0421");
    assert_eq!(ask::<DeadList>(&other, AdminRequest::DeadList).await.expect("a list").letters.len(), 0);
    for viewer in [&worker, &operator] {
        let letters = ask::<DeadList>(viewer, AdminRequest::DeadList).await.expect("a list").letters;
        let letter = &letters[0];
        assert_eq!((letters.len(), letter.id.as_str(), letter.agent.as_str()), (1, id.as_str(), "w"));
        assert_eq!((letter.server.as_str(), letter.tool.as_str(), letter.attempts), ("one", "effect", 3));
        assert!(letter.params.is_none() && letter.story.len() >= 3, "{letter:?}");
    }
    let show = || AdminRequest::DeadShow { id: id.clone() };
    let letter: DeadLetter = ask(&operator, show()).await.expect("the dead letter");
    let params: Value = serde_json::from_str(letter.params.expect("with params").get()).expect("JSON");
    assert_eq!(params["arguments"], folder.crashing_server());
    let drop = || AdminRequest::DeadDrop { id: id.clone() };
    let retry = || AdminRequest::DeadRetry { id: id.clone() };
    assert_eq!(ask::<TaskView>(&other, retry()).await.err().as_deref(), Some("TB0429"));
    assert_eq!(ask::<DeadLetter>(&other, show()).await.err().as_deref(), Some("TB0429"));
    assert_eq!(ask::<DeadLetter>(&other, drop()).await.err().as_deref(), Some("TB0429"));
    // A dead letter keeps the rights that its caller had at the time, so only operators may retry or drop it.
    assert_eq!(ask::<TaskView>(&worker, retry()).await.err().as_deref(), Some("TB0403"));
    assert_eq!(ask::<DeadLetter>(&worker, drop()).await.err().as_deref(), Some("TB0403"));
    assert_eq!(ask::<DeadLetter>(&operator, drop()).await.expect("the dead letter").id, id);
    assert_eq!(ask::<DeadLetter>(&operator, drop()).await.err().as_deref(), Some("TB0429"));
    assert_eq!(ask::<DeadList>(&operator, AdminRequest::DeadList).await.expect("a list").letters.len(), 0);
}

#[tokio::test]
async fn a_retried_dead_letter_runs_once_as_a_task_of_its_callers_agent() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let host = CrashingHost::start(&rig, &folder, vec![replay_safe(server())]).await;
    let (worker, operator) = (rig.modern("w#1").await, operator(&rig).await);
    let mut arguments = folder.crashing_server();
    arguments["spare"] = json!(folder.path("spare"));
    let call = start_call(&worker, "effect", &arguments).await;
    let id = call.id().to_string();
    assert_eq!(finish(call).await.error()["data"]["code"], "TB0421");
    std::fs::write(folder.path("spare"), "").expect("a file");
    let letter = host.journal().dead_letter_by_id(&id).expect("the dead letter");
    let request = host.journal().request(&letter.request).expect("readable");
    let retry = || ask::<TaskView>(&operator, AdminRequest::DeadRetry { id: id.clone() });
    let (task, same) = tokio::join!(retry(), retry());
    let (task, same) = (task.expect("a task"), same.expect("a task"));
    assert_eq!((task.agent.as_str(), task.tool.as_str()), ("w", "effect"));
    assert!(task.id != id && task.id == same.id, "{task:?} {same:?}");
    let wait = AdminRequest::TaskWait { id: task.id.clone(), limit_ms: 20_000 };
    let ended: TaskView = ask(&worker, wait).await.expect("its agent may see it");
    assert_eq!(ended.status, TaskStatus::Completed, "{ended:?}");
    // As if the host had crashed before it could drop the dead letter.
    let DeadLetterRow { key, server, tool, attempts, story, at, .. } = DeadLetterRow::clone(&letter);
    let undropped = Dead { key, server, tool, request, role: None, attempts, story, at };
    host.journal().dead_letter(undropped).await.expect("written");
    assert_eq!(retry().await.expect("the same task").id, task.id);
    folder.expect_effects(4).await;
    assert_eq!(ask::<DeadList>(&operator, AdminRequest::DeadList).await.expect("a list").letters.len(), 0);
}

#[tokio::test]
async fn a_host_with_a_journal_in_memory_lists_running_and_ended_calls() {
    let rig = Rig::start(vec![server()]).await;
    let worker = rig.modern("w").await;
    let call = worker.start("one", "tools/call", json!({"name": "slow", "arguments": {}})).await;
    states_are(&worker, false, &[CallState::Running]).await;
    ask::<CallRow>(&worker, cancel(call.id().as_str())).await.expect("a running call");
    states_are(&worker, true, &[CallState::Cancelled]).await;
    assert_eq!(ask::<DeadList>(&worker, AdminRequest::DeadList).await.expect("a list").letters.len(), 0);
}
