//! When an agent is revoked, everything that it began ends, in whatever state it is and wherever it waits.

use crate::revocable_fleet::Fleet;
use crate::up::CommandOutput;
use serde_json::Value;

/// The lines of the audit log about what ended: reason, kind, and agent.
fn ended(audit: &str, what: &str) -> Vec<(String, String)> {
    let lines = audit.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let ended = lines.filter(|line| line["event"] == "ended" && line["what"] == what);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    ended.map(|line| (text(&line["reason"]), text(&line["agent"]))).collect()
}

fn pair(agent: &str, state: &str) -> (String, String) {
    (agent.to_owned(), state.to_owned())
}

#[tokio::test]
async fn at_the_host_running_waiting_and_parked_calls_and_tasks_end_and_those_of_others_go_on() {
    let fleet = Fleet::start().await;
    let _others = fleet.spawn_as("ana", &["call", "hold", "--arg", "text=ana"]);
    fleet.until_logged("hold ana").await;
    let running = fleet.spawn_as("bob", &["call", "hold", "--arg", "text=running"]);
    fleet.until_logged("hold running").await;
    let _waiting = fleet.spawn_as("bob", &["call", "hold", "--arg", "text=waiting"]);
    let _parked = fleet.spawn_as("bob", &["call", "wipe", "--arg", "text=parked"]);
    fleet.run_as("bob", &["call", "hold", "--arg", "text=task", "--detach"]).await.check(0, &["toolbus:"], &[]);
    fleet.until("all calls", async || fleet.calls().await.len() == 5).await;
    fleet.until("the approval", async || fleet.run(&["approvals"]).await.out.contains("wipe")).await;

    fleet.run(&["agent", "revoke", "bob"]).await.check(0, &["revoked"], &[]);
    fleet.until("the end of bob's calls", async || fleet.calls().await == [pair("ana", "running")]).await;
    fleet.until_logged("cancelled").await;
    let output = running.wait_with_output().await.expect("an exit status");
    CommandOutput::of(output).check(2, &[], &["TB0113"]);
    fleet.run(&["approvals"]).await.check(0, &["no calls wait"], &[]);
    fleet.run(&["task", "list", "--all"]).await.check(0, &["cancelled"], &[]);
    let log = fleet.log();
    assert_eq!(log.lines().filter(|line| *line == "cancelled").count(), 1, "{log}");
    assert!(!log.contains("waiting") && !log.contains("parked") && !log.contains("task"), "{log}");
    let audit = fleet.audit(true);
    let agents = |what| {
        ended(&audit, what)
            .into_iter()
            .filter(|(reason, agent)| reason == "revoked" && agent.starts_with("bob"))
            .count()
    };
    assert_eq!((agents("call"), agents("task")), (3, 1), "{audit}");
}

#[tokio::test]
async fn a_queued_call_is_withdrawn_and_a_host_that_was_away_never_runs_it() {
    let mut fleet = Fleet::start().await;
    fleet.kill_host().await;
    let _queued = fleet.spawn_as("bob", &["call", "say", "--arg", "text=bob"]);
    let others = fleet.spawn_as("ana", &["call", "say", "--arg", "text=ana"]);
    fleet.until("the queue", async || fleet.calls().await.len() == 2).await;
    fleet.run(&["agent", "revoke", "bob"]).await.check(0, &["revoked"], &[]);
    fleet.until("the withdrawal", async || fleet.calls().await == [pair("ana", "queued")]).await;
    assert_eq!(ended(&fleet.audit(false), "message"), [pair("revoked", "bob")]);
    fleet.restart_host();
    assert!(others.wait_with_output().await.expect("an exit status").status.success());
    assert_eq!(fleet.log(), "say ana\n");
}

#[tokio::test]
async fn a_task_that_a_host_journaled_does_not_run_if_its_agent_was_revoked_while_the_host_was_away() {
    let mut fleet = Fleet::start().await;
    // Tasks may use half of the server.
    fleet.run_as("bob", &["call", "hold", "--arg", "text=first", "--detach"]).await.check(0, &["toolbus:"], &[]);
    fleet.until_logged("hold first").await;
    fleet.run_as("bob", &["call", "say", "--arg", "text=bob", "--detach"]).await.check(0, &["toolbus:"], &[]);
    fleet.kill_host().await;
    fleet.run(&["agent", "revoke", "bob"]).await.check(0, &["revoked"], &[]);
    // A host that is faster than the broker's look at the file would resume the tasks, and end them a moment later.
    fleet.until("bob is refused", async || fleet.run_as("bob", &["tools"]).await.err.contains("error")).await;
    fleet.restart_host();
    fleet
        .until("an answer", async || {
            fleet.run_as("ana", &["call", "say", "--arg", "text=ana"]).await.out.contains("said")
        })
        .await;
    fleet.until("the end of the tasks", async || fleet.calls().await.is_empty()).await;
    assert!(!fleet.log().contains("say bob"), "{}", fleet.log());
}

#[tokio::test]
async fn a_revocation_while_the_broker_is_down_withdraws_queued_calls_at_the_next_start() {
    let mut fleet = Fleet::start().await;
    fleet.kill_host().await;
    let mut queued = fleet.spawn_as("bob", &["call", "say", "--arg", "text=bob"]);
    fleet.until("the queue", async || fleet.calls().await.len() == 1).await;
    queued.kill().await.expect("it was running");
    let mut fleet = fleet
        .restart_broker(async |folder| {
            let mut revoke = crate::up::toolbus(folder.path());
            assert!(revoke.args(["agent", "revoke", "bob"]).output().await.expect("it runs").status.success());
        })
        .await;
    fleet.restart_host();
    fleet
        .until("an answer", async || {
            fleet.run_as("ana", &["call", "say", "--arg", "text=ana"]).await.out.contains("said")
        })
        .await;
    assert!(!fleet.log().contains("say bob"), "{}", fleet.log());
    assert_eq!(ended(&fleet.audit(false), "message"), [pair("revoked", "bob")]);
}

#[tokio::test]
async fn calls_end_when_the_last_token_of_an_agent_expires() {
    let fleet = Fleet::start().await;
    let added = fleet.run(&["agent", "add", "eve", "--role", "user", "--token-file", "eve", "--expires", "4s"]).await;
    added.check(0, &["eve"], &[]);
    fleet.run(&["send", "--to", "eve", "--body", "1"]).await.check(0, &[], &[]);
    let _running = fleet.spawn_as("eve", &["call", "hold", "--arg", "text=eve"]);
    fleet.until_logged("hold eve").await;
    fleet.until_logged("cancelled").await;
    fleet.until("the end of the call", async || fleet.calls().await.is_empty()).await;
    assert_eq!(ended(&fleet.audit(true), "call").first().map(|(reason, _)| reason.as_str()), Some("expired"));
    fleet.run(&["agent", "rotate", "eve", "--token-file", "eve"]).await.check(0, &[], &[]);
    fleet.run_as("eve", &["recv"]).await.check(0, &["1"], &[]);
    fleet.run_as("eve", &["call", "say", "--arg", "text=again"]).await.check(0, &["said again"], &[]);
}
