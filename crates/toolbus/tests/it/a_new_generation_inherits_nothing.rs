//! An agent that gets the name of a revoked one is another agent: it sees and uses nothing of the first.

use crate::mcp_client::{HttpClient, McpClient};
use crate::revocable_fleet::{Fleet, configure};
use crate::support::soon;
use crate::up::{UpInstance, toolbus};
use std::path::Path;

async fn revoke_and_add(folder: &Path) {
    for args in [&["agent", "revoke", "bob"][..], &["agent", "add", "bob", "--role", "user", "--token-file", "next"]] {
        let output = toolbus(folder).args(args).output().await.expect("it runs");
        assert!(output.status.success(), "{output:?}");
    }
}

#[tokio::test]
async fn messages_and_tasks_of_the_first_agent_are_not_those_of_the_next() {
    let fleet = Fleet::start().await;
    fleet.run(&["send", "--to", "bob", "--body", r#""for the first""#]).await.check(0, &[], &[]);
    let started = fleet.run_as("bob", &["call", "say", "--arg", "text=secret", "--detach"]).await;
    let task = started.out.trim();
    fleet.until("the task", async || fleet.run_as("bob", &["task", "result", task]).await.out.contains("said")).await;

    revoke_and_add(fleet.folder.path()).await;
    let received = fleet.run_as("next", &["recv"]).await;
    received.check(0, &[], &[]);
    assert!(!received.out.contains("first"), "{}", received.out);
    fleet.run_as("next", &["task", "result", task]).await.check(2, &[], &["TB0423"]);
    let listed = fleet.run_as("next", &["task", "list"]).await;
    assert!(!listed.out.contains("say"), "{}", listed.out);
    fleet.run(&["send", "--to", "bob", "--body", r#""for the next""#]).await.check(0, &[], &[]);
    fleet.run_as("next", &["recv"]).await.check(0, &["for the next"], &[]);
    fleet.run_as("next", &["call", "say", "--arg", "text=hello"]).await.check(0, &["said hello"], &[]);
}

/// The first agent's caller is gone, so an equal call of the same agent would be answered by its answer.
#[tokio::test]
async fn an_equal_call_of_the_next_agent_runs_itself() {
    let fleet = Fleet::start().await;
    fleet.run_as("bob", &["call", "say", "--arg", "text=secret"]).await.check(0, &["said"], &[]);
    let mut gone = fleet.spawn_as("bob", &["call", "wipe", "--arg", "text=secret"]);
    fleet.until("the approval", async || fleet.run(&["approvals"]).await.out.contains("wipe")).await;
    gone.kill().await.expect("it was running");
    let approval = fleet.run(&["approvals", "--json"]).await.out;
    let approval: serde_json::Value = serde_json::from_str(&approval).expect("JSON");
    let id = approval["approvals"][0]["id"].as_str().expect("an id").to_owned();
    fleet.run(&["approvals", "approve", &id]).await.check(0, &["approved"], &[]);
    fleet.until_logged("wipe secret").await;
    revoke_and_add(fleet.folder.path()).await;

    let next = fleet.spawn_as("next", &["call", "wipe", "--arg", "text=secret"]);
    fleet.until("another approval", async || fleet.run(&["approvals"]).await.out.contains("wipe")).await;
    let approval = fleet.run(&["approvals", "--json"]).await.out;
    assert!(!approval.contains(&id), "{approval}");
    let approval: serde_json::Value = serde_json::from_str(&approval).expect("JSON");
    let id = approval["approvals"][0]["id"].as_str().expect("an id").to_owned();
    fleet.run(&["approvals", "approve", &id]).await.check(0, &["approved"], &[]);
    assert!(next.wait_with_output().await.expect("an exit status").status.success());
    assert_eq!(fleet.log().lines().filter(|line| *line == "wipe secret").count(), 2, "{}", fleet.log());
}

#[tokio::test]
async fn a_name_given_anew_while_the_broker_is_down_inherits_nothing_and_keeps_its_own_messages() {
    let mut fleet = Fleet::start().await;
    fleet.kill_host().await;
    fleet.run(&["send", "--to", "bob", "--body", r#""for the first""#]).await.check(0, &[], &[]);
    let mut queued = fleet.spawn_as("bob", &["call", "say", "--arg", "text=first"]);
    fleet.until("the queue", async || fleet.calls().await.len() == 1).await;
    queued.kill().await.expect("it was running");
    let fleet = fleet.restart_broker(async |folder| revoke_and_add(folder.path()).await).await;
    fleet.run(&["send", "--to", "bob", "--body", r#""for the next""#]).await.check(0, &[], &[]);
    // The second restart repeats the removal, for messages of the first agent only.
    let mut fleet = fleet.restart_broker(async |_| {}).await;
    fleet.restart_host();
    let received = fleet.run_as("next", &["recv"]).await;
    received.check(0, &["for the next"], &[]);
    assert!(!received.out.contains("for the first"), "{}", received.out);
    fleet
        .until("an answer", async || {
            fleet.run_as("next", &["call", "say", "--arg", "text=next"]).await.out.contains("said next")
        })
        .await;
    assert!(!fleet.log().contains("say first"), "{}", fleet.log());
}

/// The first agent's HTTP connection broke during its call, which the same agent could continue in its session, or join.
#[tokio::test]
async fn http_sessions_and_calls_of_the_first_agent_are_not_for_the_next() {
    const HOLD: &str = r#"{"name":"hold","arguments":{"text":"http"}}"#;
    const INITIALIZE: &str =
        r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
    let folder = tempfile::tempdir().expect("a temporary folder");
    configure(folder.path());
    let instance = UpInstance::start_in(folder, &[]).await;
    let folder = instance.folder.path().to_owned();
    let log = || std::fs::read_to_string(folder.join("log")).expect("a log");
    let logged = async |line: &str, count: usize| {
        let has_all = || log().lines().filter(|logged| *logged == line).count() >= count;
        soon(line, async {
            while !has_all() {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await
            }
        })
        .await;
    };
    let client = async |token: &str| {
        let token = std::fs::read_to_string(folder.join(token)).expect("a token");
        let mut client = HttpClient::to(&format!("http://{}/mcp", instance.address()), token.trim());
        client.request("initialize", INITIALIZE).await;
        client.notify("notifications/initialized", "{}").await;
        client
    };
    instance.run(&["agent", "add", "bob", "--role", "user", "--token-file", "bob"]).await.check(0, &[], &[]);
    soon("the tools", async { while !instance.run(&["tools", "--token-file", "bob"]).await.out.contains("hold") {} })
        .await;
    let mut first = client("bob").await;
    let session = first.session().to_owned();
    let call = tokio::spawn(async move { first.request("tools/call", HOLD).await });
    logged("hold http", 1).await;
    call.abort();

    revoke_and_add(&folder).await;
    logged("cancelled", 1).await;
    let mut next = client("next").await;
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#.to_owned();
    let headers = [("mcp-session-id", session.as_str()), ("mcp-protocol-version", "2025-11-25")];
    assert_eq!(next.send(&headers, ping).await.0, 404);
    let call = tokio::spawn(async move { next.request("tools/call", HOLD).await });
    logged("hold http", 2).await;
    call.abort();
}
