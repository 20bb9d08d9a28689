//! Orphans: calls whose callers stay disconnected.

use crate::crashing::{CrashingHost, TestFolder, server};
use crate::support::{Rig, Worker, open_host, within};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolbus_client::SendOptions;
use toolbus_host::HostOptions;
use toolbus_mcp::{HostReply, Outcome};
use toolbus_protocol::{MailboxStatus, Timestamp};
use toolbus_upstream::HostConfig;

const DEADLINE: SendOptions = SendOptions { deadline: Some(Duration::from_secs(600)) };

fn options(folder: &TestFolder, grace: Option<Duration>) -> HostOptions {
    let mut options = open_host(HostConfig { servers: vec![server()] });
    options.journal = Arc::new(folder.journal());
    options.limits.caller_grace = grace;
    options
}

/// Sends a call without waiting for its reply, so that closing the worker doesn't cancel it.
async fn send(worker: &Worker, arguments: Value, sent_ago: Duration) {
    let params = json!({"name": "effect", "arguments": arguments});
    let mut message = worker.request("one", "tools/call", params);
    message.created_at = Timestamp(message.created_at.0 - i64::try_from(sent_ago.as_nanos()).expect("hours"));
    worker.bus.client().deliver_with("host", message, DEADLINE).await.expect("a receipt");
}

/// The error code of the reply in the mailbox of `gone`.
async fn reply_code(rig: &Rig) -> String {
    let client = rig.client(toolbus_client::AgentRef::new("gone")).await;
    client.subscribe().await.expect("a mailbox");
    let reply = within("the reply", client.next_message()).await.expect("a message");
    let text = std::str::from_utf8(reply.body.as_bytes()).expect("UTF-8").to_owned();
    let Ok(HostReply::Rpc(Outcome::Error(error))) = HostReply::parse(text.as_str()) else { panic!("{text}") };
    let error: Value = serde_json::from_str(error.get()).expect("JSON");
    error["data"]["code"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn an_orphan_is_ended_after_the_grace_period_and_other_calls_continue() {
    for rig in [Rig::without_host().await, Rig::without_follows().await] {
        ends_orphans(&rig).await;
    }
}

async fn ends_orphans(rig: &Rig) {
    let folder = TestFolder::new();
    let _host = CrashingHost::with(rig, options(&folder, Some(Duration::from_secs(1)))).await;
    let stays = rig.modern("stays").await;
    let call = crate::crashing::start_call(&stays, "effect", &folder.waiting()).await;
    let gone = rig.modern("gone").await;
    send(&gone, folder.waiting(), Duration::ZERO).await;
    folder.expect_effects(2).await;
    gone.bus.close().await;
    assert_eq!(reply_code_for_absent_caller(rig).await, "TB0426");
    folder.release();
    assert_eq!(crate::support::finish(call).await.text(), "effected");
}

#[tokio::test]
async fn without_a_grace_period_an_orphan_continues() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let _host = CrashingHost::with(&rig, options(&folder, None)).await;
    let gone = rig.modern("gone").await;
    send(&gone, folder.waiting(), Duration::from_secs(3600)).await;
    gone.bus.close().await;
    folder.expect_effects(1).await;
    folder.release();
    let client = rig.client(toolbus_client::AgentRef::new("gone")).await;
    client.subscribe().await.expect("a mailbox");
    let reply = within("the reply", client.next_message()).await.expect("a message");
    assert!(String::from_utf8_lossy(reply.body.as_bytes()).contains("effected"));
}

#[tokio::test]
async fn a_call_queued_longer_than_the_grace_period_starts_only_if_its_caller_is_connected() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let grace = Duration::from_secs(2);
    // Both calls were sent an hour ago; one caller is still connected.
    let gone = rig.modern("gone").await;
    send(&gone, folder.quick(), Duration::from_secs(3600)).await;
    gone.bus.close().await;
    let stays = rig.modern("stays").await;
    let params = json!({"name": "effect", "arguments": folder.quick()});
    let mut message = stays.request("one", "tools/call", params);
    message.created_at = Timestamp(message.created_at.0 - 3_600_000_000_000);
    let call = stays.bus.start_call("host", message, Duration::from_secs(60)).await.expect("a call");
    let _host = CrashingHost::with(&rig, options(&folder, Some(grace))).await;
    assert_eq!(crate::support::finish(call).await.text(), "effected");
    assert_eq!(reply_code_for_absent_caller(&rig).await, "TB0426");
    folder.expect_effects(1).await;
}

#[tokio::test]
async fn a_call_queued_longer_than_the_grace_period_starts_for_a_joined_caller() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let first = rig.modern("w#1").await;
    send(&first, folder.quick(), Duration::from_secs(3600)).await;
    first.bus.close().await;
    let second = rig.modern("w#2").await;
    let call = crate::crashing::start_call(&second, "effect", &folder.quick()).await;
    let _host = CrashingHost::with(&rig, options(&folder, Some(Duration::from_secs(60)))).await;
    let reply = crate::support::finish(call).await;
    assert!(reply.result()["_meta"]["toolbus/joined"].is_object(), "{reply:?}");
    folder.expect_effects(1).await;
}

/// Waits for the reply before it connects as `gone`: otherwise the host would find the caller connected.
async fn reply_code_for_absent_caller(rig: &Rig) -> String {
    let client = rig.client(toolbus_client::AgentRef::new("observer")).await;
    within("the reply", async {
        let has_reply = |mailbox: &MailboxStatus| *mailbox.name == *"gone" && mailbox.messages > 0;
        while !client.status().await.expect("a status").mailboxes.iter().any(has_reply) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    reply_code(rig).await
}
