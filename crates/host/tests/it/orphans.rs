//! Calls whose callers are gone for good.

use crate::crashing::{CrashingHost, Place, server};
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

fn options(place: &Place, grace: Option<Duration>) -> HostOptions {
    let mut options = open_host(HostConfig { servers: vec![server()] });
    options.journal = Some(Arc::new(place.journal()));
    options.limits.caller_grace = grace;
    options
}

/// Sends a call that nobody waits for: with its sender goes nothing that would call it off.
async fn send(worker: &Worker, arguments: Value, written_ago: Duration) {
    let params = json!({"name": "effect", "arguments": arguments});
    let mut message = worker.request("one", "tools/call", params);
    message.created_at = Timestamp(message.created_at.0 - i64::try_from(written_ago.as_nanos()).expect("hours"));
    worker.bus.client().deliver_with("host", message, DEADLINE).await.expect("a receipt");
}

/// The code of the error in the reply that waits for `gone`.
async fn code_waiting(rig: &Rig) -> String {
    let client = rig.client(toolbus_client::AgentRef::new("gone")).await;
    client.subscribe().await.expect("a mailbox");
    let reply = within("the reply", client.next_message()).await.expect("a message");
    let text = std::str::from_utf8(reply.body.as_bytes()).expect("UTF-8").to_owned();
    let Ok(HostReply::Rpc(Outcome::Error(error))) = HostReply::parse(&text) else { panic!("{text}") };
    let error: Value = serde_json::from_str(error.get()).expect("JSON");
    error["data"]["code"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_call_ends_when_its_caller_was_gone_for_the_grace_and_others_go_on() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let _host = CrashingHost::with(&rig, options(&place, Some(Duration::from_secs(1)))).await;
    let stays = rig.modern("stays").await;
    let call = crate::crashing::begin(&stays, "effect", &place.waiting()).await;
    let gone = rig.modern("gone").await;
    send(&gone, place.waiting(), Duration::ZERO).await;
    place.effects_are(2).await;
    gone.bus.close().await;
    assert_eq!(code_waiting_for_absent(&rig).await, "TB0426");
    place.release();
    assert_eq!(crate::support::finish(call).await.text(), "effected");
}

#[tokio::test]
async fn a_call_goes_on_without_its_caller_where_no_grace_is_set() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let _host = CrashingHost::with(&rig, options(&place, None)).await;
    let gone = rig.modern("gone").await;
    send(&gone, place.waiting(), Duration::from_secs(3600)).await;
    gone.bus.close().await;
    place.effects_are(1).await;
    place.release();
    let client = rig.client(toolbus_client::AgentRef::new("gone")).await;
    client.subscribe().await.expect("a mailbox");
    let reply = within("the reply", client.next_message()).await.expect("a message");
    assert!(String::from_utf8_lossy(reply.body.as_bytes()).contains("effected"));
}

#[tokio::test]
async fn a_call_that_waited_long_is_not_begun_before_its_caller_is_seen() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let grace = Duration::from_secs(2);
    // Both were written an hour ago; one caller is still there.
    let gone = rig.modern("gone").await;
    send(&gone, place.quick(), Duration::from_secs(3600)).await;
    gone.bus.close().await;
    let stays = rig.modern("stays").await;
    let params = json!({"name": "effect", "arguments": place.quick()});
    let mut message = stays.request("one", "tools/call", params);
    message.created_at = Timestamp(message.created_at.0 - 3_600_000_000_000);
    let call = stays.bus.start_call("host", message, Duration::from_secs(60)).await.expect("a call");
    let _host = CrashingHost::with(&rig, options(&place, Some(grace))).await;
    assert_eq!(crate::support::finish(call).await.text(), "effected");
    assert_eq!(code_waiting_for_absent(&rig).await, "TB0426");
    place.effects_are(1).await;
}

#[tokio::test]
async fn a_call_that_waited_long_begins_for_whoever_is_joined_to_it() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let first = rig.modern("w#1").await;
    send(&first, place.quick(), Duration::from_secs(3600)).await;
    first.bus.close().await;
    let second = rig.modern("w#2").await;
    let call = crate::crashing::begin(&second, "effect", &place.quick()).await;
    let _host = CrashingHost::with(&rig, options(&place, Some(Duration::from_secs(60)))).await;
    let reply = crate::support::finish(call).await;
    assert!(reply.result()["_meta"]["toolbus/joined"].is_object(), "{reply:?}");
    place.effects_are(1).await;
}

/// Waits until the reply is there before anybody connects under that name: a look in between would find the caller.
async fn code_waiting_for_absent(rig: &Rig) -> String {
    let client = rig.client(toolbus_client::AgentRef::new("observer")).await;
    within("the reply", async {
        let is_it = |mailbox: &MailboxStatus| *mailbox.name == *"gone" && mailbox.messages > 0;
        while !client.status().await.expect("a status").mailboxes.iter().any(is_it) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    code_waiting(rig).await
}
