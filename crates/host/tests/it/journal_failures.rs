//! Failures of the journal and of servers: what callers get, and which calls are dead-lettered.

use crate::crashing::{CrashingHost, TestFolder, replay_safe, server, start_call};
use crate::gated_disk::GatedDisk;
use crate::support::{Rig, Worker, fake, finish, open_host, within};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolbus_client::AgentRef;
use toolbus_host::HostOptions;
use toolbus_journal::{Journal, JournalOptions};
use toolbus_upstream::{HostConfig, ServerConfig, TripSettings};
use toolbus_wal::FolderDisk;

#[track_caller]
fn code(error: &Value) -> String {
    error["data"]["code"].as_str().unwrap_or_default().to_owned()
}

pub async fn host_on_gated_disk(folder: &TestFolder, server: ServerConfig) -> (Rig, GatedDisk, CrashingHost) {
    host_on_gated_disk_with(folder, server, JournalOptions::default()).await
}

fn options_on_gated_disk(
    folder: &TestFolder,
    server: ServerConfig,
    options: JournalOptions,
) -> (HostOptions, GatedDisk) {
    let journal_folder = folder.path("journal");
    std::fs::create_dir_all(&journal_folder).expect("a folder");
    let (disk, _) = FolderDisk::open(&journal_folder).expect("a disk");
    let disk = GatedDisk::new(Arc::new(disk));
    let journal = Journal::on_disk(Arc::new(disk.clone()), options, Arc::new(|| 0)).expect("a journal");
    let mut options = open_host(HostConfig { servers: vec![server] });
    options.journal = Arc::new(journal);
    (options, disk)
}

async fn host_on_gated_disk_with(
    folder: &TestFolder,
    server: ServerConfig,
    options: JournalOptions,
) -> (Rig, GatedDisk, CrashingHost) {
    let (options, disk) = options_on_gated_disk(folder, server, options);
    let rig = Rig::without_host().await;
    let host = CrashingHost::with(&rig, options).await;
    (rig, disk, host)
}

pub async fn wait_for_blocked_sync(disk: &GatedDisk) {
    within("a blocked sync", async {
        while !disk.has_blocked_sync() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

async fn worker(rig: &Rig, legacy: bool) -> Worker {
    if legacy { rig.legacy("w").await } else { rig.modern("w").await }
}

#[tokio::test]
async fn with_sync_results_start_is_synced_before_the_tool_and_result_before_the_reply() {
    let options = || JournalOptions { sync_results: true, ..JournalOptions::default() };
    for (era, legacy) in [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)] {
        let folder = TestFolder::new();
        let (rig, disk, _host) = host_on_gated_disk_with(&folder, fake("one", era), options()).await;
        let worker = worker(&rig, legacy).await;
        // Opens the session first, so that only the call itself waits for the disk.
        worker.tool("one", "add", json!({"a": 1, "b": 2})).await.text();

        disk.block_syncs();
        let mut call = start_call(&worker, "effect", &folder.waiting()).await;
        wait_for_blocked_sync(&disk).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(folder.effects(), [""; 0], "{era} {legacy}: the tool ran before START was synced");
        disk.unblock_syncs();
        folder.expect_effects(1).await;

        disk.block_syncs();
        folder.release();
        wait_for_blocked_sync(&disk).await;
        let early = tokio::time::timeout(Duration::from_millis(300), call.next()).await;
        assert!(early.is_err(), "{era} {legacy}: the reply was sent before RESULT was synced: {early:?}");
        disk.unblock_syncs();
        assert_eq!(finish(call).await.text(), "effected");
    }
}

#[tokio::test]
async fn by_default_the_result_is_written_but_not_synced_before_the_reply() {
    for (era, legacy) in [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)] {
        let folder = TestFolder::new();
        let (rig, disk, _host) = host_on_gated_disk(&folder, fake("one", era)).await;
        let worker = worker(&rig, legacy).await;
        let call = start_call(&worker, "effect", &folder.waiting()).await;
        folder.expect_effects(1).await;
        disk.block_syncs();
        folder.release();
        assert_eq!(finish(call).await.text(), "effected", "{era} {legacy}");
        let written = std::fs::read(folder.path("journal").join("journal-0000000001.log")).expect("the journal's file");
        let is_written = written.windows(8).any(|bytes| bytes == b"effected");
        assert!(is_written, "{era} {legacy}: the reply was sent before RESULT was written");
        disk.unblock_syncs();
    }
}

#[tokio::test]
async fn requests_wait_while_the_entries_that_wait_for_the_journal_are_at_their_limit() {
    let folder = TestFolder::new();
    let (mut options, disk) = options_on_gated_disk(&folder, fake("one", "modern"), JournalOptions::default());
    options.limits.max_journal_backlog_bytes = 1;
    let rig = Rig::with(options).await;
    let worker = rig.modern("w").await;
    disk.block_syncs();
    let mut calls = vec![start_call(&worker, "whoami", &json!({"n": 0})).await];
    wait_for_blocked_sync(&disk).await;
    for n in 1..4 {
        calls.push(start_call(&worker, "whoami", &json!({"n": n})).await);
    }
    // Meanwhile the host would have started the others: it runs on the thread of the broker, which answers these.
    for _ in 0..20 {
        worker.bus.client().status().await.expect("a status");
    }
    let started = rig.journal().calls().len();
    disk.unblock_syncs();
    // The host awaited the second one before it reached the limit.
    assert!(started <= 2, "{started} calls were started");
    for call in calls {
        finish(call).await.text();
    }
}

#[tokio::test]
async fn answers_wait_while_the_entries_that_wait_for_the_journal_are_at_their_limit() {
    let folder = TestFolder::new();
    let journal = JournalOptions { sync_results: true, ..JournalOptions::default() };
    let (mut options, disk) = options_on_gated_disk(&folder, fake("one", "modern"), journal);
    options.limits.max_journal_backlog_bytes = 1;
    let rig = Rig::with(options).await;
    let worker = rig.modern("w").await;
    let mut calls = Vec::new();
    for effects in 1..4 {
        calls.push(start_call(&worker, "effect", &folder.waiting()).await);
        folder.expect_effects(effects).await;
    }
    disk.block_syncs();
    folder.release();
    wait_for_blocked_sync(&disk).await;
    disk.unblock_syncs();
    for call in calls {
        assert_eq!(finish(call).await.text(), "effected");
    }
    assert_eq!(disk.most_in_one_write(b"effected"), 1, "RESULTs that waited for one sync");
}

#[tokio::test]
async fn a_host_whose_calls_do_not_end_disconnects_after_its_time_to_close() {
    let folder = TestFolder::new();
    let (mut options, disk) = options_on_gated_disk(&folder, server(), JournalOptions::default());
    options.limits.drain = Duration::from_millis(10);
    options.limits.close = Duration::from_millis(100);
    let mut rig = Rig::with(options).await;
    let (worker, observer) = (rig.legacy("w").await, rig.client(AgentRef::new("observer")).await);
    disk.block_syncs();
    let _call = start_call(&worker, "effect", &folder.quick()).await;
    wait_for_blocked_sync(&disk).await;
    rig.stop_host().await;
    within("the host's disconnection", async {
        let is_host = |it: &toolbus_protocol::Connection| &*it.agent.session_id == "host";
        while observer.status().await.expect("a status").connections.iter().any(is_host) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    disk.unblock_syncs();
}

#[tokio::test]
async fn replay_safe_calls_wait_for_no_sync() {
    let folder = TestFolder::new();
    let (rig, disk, _host) = host_on_gated_disk(&folder, replay_safe(server())).await;
    let worker = rig.legacy("w").await;
    disk.block_syncs();
    assert_eq!(worker.tool("one", "effect", folder.quick()).await.text(), "effected");
    disk.unblock_syncs();
}

#[tokio::test]
async fn a_call_that_cannot_be_journaled_is_not_run_and_the_manifest_reports_it() {
    let folder = TestFolder::new();
    let (rig, disk, _host) = host_on_gated_disk(&folder, server()).await;
    let worker = rig.legacy("w").await;
    disk.fail();
    for _ in 0..2 {
        let error = worker.tool("one", "effect", folder.quick()).await.error();
        assert_eq!(code(&error), "TB0425", "{error}");
    }
    assert_eq!(folder.effects(), [""; 0]);
    worker.rpc("one", "tools/list", json!({})).await.result();
    rig.manifest(&worker, |manifest| manifest.problems.iter().any(|problem| problem.contains("journal"))).await;
}

#[tokio::test]
async fn a_result_that_cannot_be_journaled_is_reported_as_unknown() {
    let folder = TestFolder::new();
    let (rig, disk, _host) = host_on_gated_disk(&folder, server()).await;
    let worker = rig.legacy("w").await;
    let call = start_call(&worker, "effect", &folder.waiting()).await;
    folder.expect_effects(1).await;
    disk.fail();
    folder.release();
    assert_eq!(code(&finish(call).await.error()), "TB0420");
}

#[tokio::test]
async fn a_replay_safe_call_that_always_crashes_its_server_is_dead_lettered() {
    for (era, legacy) in [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)] {
        let (rig, folder) = (Rig::without_host().await, TestFolder::new());
        let host = CrashingHost::start(&rig, &folder, vec![replay_safe(fake("one", era))]).await;
        let worker = worker(&rig, legacy).await;
        let error = worker.tool("one", "effect", folder.crashing_server()).await.error();
        assert_eq!(code(&error), "TB0421", "{era} {legacy}: {error}");
        folder.expect_effects(3).await;
        assert_eq!(worker.tool("one", "add", json!({"a": 1, "b": 2})).await.text(), "3");
        host.crash().await;
        let letters = folder.journal().dead_letters();
        assert_eq!(letters.len(), 1);
        assert_eq!((letters[0].attempts, letters[0].story.len()), (3, 3), "{:?}", letters[0]);
        assert!(letters[0].story[0].contains("exited with code 3"), "{:?}", letters[0].story);
    }
}

#[tokio::test]
async fn a_call_that_is_not_replay_safe_crashes_its_server_only_once() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let _host = CrashingHost::start(&rig, &folder, vec![server()]).await;
    let worker = rig.legacy("w").await;
    assert_eq!(code(&worker.tool("one", "effect", folder.crashing_server()).await.error()), "TB0408");
    folder.expect_effects(1).await;
}

#[tokio::test]
async fn a_call_that_always_crashes_its_host_is_dead_lettered() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let worker = rig.legacy("w").await;
    let call = start_call(&worker, "effect", &folder.waiting()).await;
    for attempt in 1..=3 {
        let host = CrashingHost::start(&rig, &folder, vec![replay_safe(server())]).await;
        folder.expect_effects(attempt).await;
        host.crash().await;
    }
    let host = CrashingHost::start(&rig, &folder, vec![replay_safe(server())]).await;
    let error = finish(call).await.error();
    assert_eq!(code(&error), "TB0421", "{error}");
    host.crash().await;
    let letters = folder.journal().dead_letters();
    assert_eq!((letters.len(), letters[0].attempts, letters[0].story.len()), (1, 3, 3), "{letters:?}");
    folder.expect_effects(3).await;
}

#[tokio::test]
async fn repeated_failures_of_a_server_open_its_circuit_breaker() {
    let (rig, folder) = (Rig::without_host().await, TestFolder::new());
    let mut frail = server();
    let (window, pause) = (Duration::from_secs(60), Duration::from_secs(1));
    frail.calls.trip = TripSettings { after: 3, window, pause };
    let mut other = fake("two", "legacy");
    other.prefix = Some("two_".to_owned());
    let _host = CrashingHost::start(&rig, &folder, vec![frail, other]).await;
    let worker = rig.legacy("w").await;
    for _ in 0..3 {
        assert_eq!(code(&worker.tool("one", "die", json!({})).await.error()), "TB0408");
    }
    let error = worker.tool("one", "add", json!({"a": 1, "b": 2})).await.error();
    assert_eq!(code(&error), "TB0422", "{error}");
    assert_eq!(
        worker.tool("two", "two_add", json!({"a": 1, "b": 2})).await.text(),
        "3",
        "other servers are not affected"
    );
    rig.manifest(&worker, |manifest| manifest.problems.iter().any(|problem| problem.contains("failed 3 times"))).await;
    within("the circuit breaker to close", async {
        while let toolbus_mcp::HostReply::Rpc(toolbus_mcp::Outcome::Error(_)) =
            worker.tool("one", "add", json!({"a": 1, "b": 2})).await.end
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    rig.manifest(&worker, |manifest| manifest.problems.is_empty()).await;
}
