//! What the journal's own troubles, and those of servers, mean for calls.

use crate::crashing::{CrashingHost, Place, begin, safe, server};
use crate::gated_disk::GatedDisk;
use crate::support::{Rig, Worker, fake, finish, open_host, within};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolbus_journal::{Journal, JournalOptions};
use toolbus_upstream::{HostConfig, ServerConfig, TripSettings};
use toolbus_wal::FolderDisk;

#[track_caller]
fn code(error: &Value) -> String {
    error["data"]["code"].as_str().unwrap_or_default().to_owned()
}

pub async fn on_gated_disk(place: &Place, server: ServerConfig) -> (Rig, GatedDisk, CrashingHost) {
    on_gated_disk_with(place, server, JournalOptions::default()).await
}

async fn on_gated_disk_with(
    place: &Place,
    server: ServerConfig,
    options: JournalOptions,
) -> (Rig, GatedDisk, CrashingHost) {
    let folder = place.path("journal");
    std::fs::create_dir_all(&folder).expect("a folder");
    let (disk, _) = FolderDisk::open(&folder).expect("a disk");
    let disk = GatedDisk::new(Arc::new(disk));
    let journal = Journal::on_disk(Arc::new(disk.clone()), options, Arc::new(|| 0)).expect("a journal");
    let mut options = open_host(HostConfig { servers: vec![server] });
    options.journal = Some(Arc::new(journal));
    let rig = Rig::bus().await;
    let host = CrashingHost::with(&rig, options).await;
    (rig, disk, host)
}

pub async fn waited_for(disk: &GatedDisk) {
    within("somebody to wait for the disk", async {
        while !disk.is_waited_for() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

async fn workers(rig: &Rig, legacy: bool) -> Worker {
    if legacy { rig.legacy("w").await } else { rig.modern("w").await }
}

#[tokio::test]
async fn no_tool_is_told_before_the_start_is_on_disk_and_no_caller_before_the_result_is_if_it_is_to_be() {
    let options = || JournalOptions { sync_results: true, ..JournalOptions::default() };
    for (era, legacy) in [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)] {
        let place = Place::new();
        let (rig, disk, _host) = on_gated_disk_with(&place, fake("one", era), options()).await;
        let worker = workers(&rig, legacy).await;
        // The session is open, so that only the call itself is waited for.
        worker.tool("one", "add", json!({"a": 1, "b": 2})).await.text();

        disk.shut();
        let mut call = begin(&worker, "effect", &place.waiting()).await;
        waited_for(&disk).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(place.effects(), [""; 0], "{era} {legacy}: the tool ran before its start was on disk");
        disk.open_gate();
        place.effects_are(1).await;

        disk.shut();
        place.release();
        waited_for(&disk).await;
        let early = tokio::time::timeout(Duration::from_millis(300), call.next()).await;
        assert!(early.is_err(), "{era} {legacy}: the caller was told before the result was on disk: {early:?}");
        disk.open_gate();
        assert_eq!(finish(call).await.text(), "effected");
    }
}

#[tokio::test]
async fn a_call_waits_for_one_sync_and_its_result_outlives_the_host_before_its_caller_is_told() {
    for (era, legacy) in [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)] {
        let place = Place::new();
        let (rig, disk, _host) = on_gated_disk(&place, fake("one", era)).await;
        let worker = workers(&rig, legacy).await;
        let call = begin(&worker, "effect", &place.waiting()).await;
        place.effects_are(1).await;
        disk.shut();
        place.release();
        assert_eq!(finish(call).await.text(), "effected", "{era} {legacy}");
        let written = std::fs::read(place.path("journal").join("journal-0000000001.log")).expect("the journal's file");
        let is_there = written.windows(8).any(|bytes| bytes == b"effected");
        assert!(is_there, "{era} {legacy}: the caller was told before the result was written down");
        disk.open_gate();
    }
}

#[tokio::test]
async fn calls_that_may_run_twice_wait_for_no_disk() {
    let place = Place::new();
    let (rig, disk, _host) = on_gated_disk(&place, safe(server())).await;
    let worker = rig.legacy("w").await;
    disk.shut();
    assert_eq!(worker.tool("one", "effect", place.quick()).await.text(), "effected");
    disk.open_gate();
}

#[tokio::test]
async fn what_can_not_be_written_down_is_not_run_and_everybody_is_told() {
    let place = Place::new();
    let (rig, disk, _host) = on_gated_disk(&place, server()).await;
    let worker = rig.legacy("w").await;
    disk.break_down();
    for _ in 0..2 {
        let error = worker.tool("one", "effect", place.quick()).await.error();
        assert_eq!(code(&error), "TB0425", "{error}");
    }
    assert_eq!(place.effects(), [""; 0]);
    worker.rpc("one", "tools/list", json!({})).await.result();
    rig.manifest(&worker, |manifest| manifest.problems.iter().any(|problem| problem.contains("journal"))).await;
}

#[tokio::test]
async fn a_result_that_can_not_be_written_down_is_told_as_unknown() {
    let place = Place::new();
    let (rig, disk, _host) = on_gated_disk(&place, server()).await;
    let worker = rig.legacy("w").await;
    let call = begin(&worker, "effect", &place.waiting()).await;
    place.effects_are(1).await;
    disk.break_down();
    place.release();
    assert_eq!(code(&finish(call).await.error()), "TB0420");
}

#[tokio::test]
async fn a_call_that_kills_its_server_each_time_goes_to_the_dead_letters() {
    for (era, legacy) in [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)] {
        let (rig, place) = (Rig::bus().await, Place::new());
        let host = CrashingHost::start(&rig, &place, vec![safe(fake("one", era))]).await;
        let worker = workers(&rig, legacy).await;
        let error = worker.tool("one", "effect", place.deadly()).await.error();
        assert_eq!(code(&error), "TB0421", "{era} {legacy}: {error}");
        place.effects_are(3).await;
        assert_eq!(worker.tool("one", "add", json!({"a": 1, "b": 2})).await.text(), "3");
        host.crash().await;
        let letters = place.journal().letters();
        assert_eq!(letters.len(), 1);
        assert_eq!((letters[0].attempts, letters[0].story.len()), (3, 3), "{:?}", letters[0]);
        assert!(letters[0].story[0].contains("exited with code 3"), "{:?}", letters[0].story);
    }
}

#[tokio::test]
async fn a_call_that_may_not_run_twice_kills_its_server_once() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let _host = CrashingHost::start(&rig, &place, vec![server()]).await;
    let worker = rig.legacy("w").await;
    assert_eq!(code(&worker.tool("one", "effect", place.deadly()).await.error()), "TB0408");
    place.effects_are(1).await;
}

#[tokio::test]
async fn a_call_that_its_host_never_survives_goes_to_the_dead_letters() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let worker = rig.legacy("w").await;
    let call = begin(&worker, "effect", &place.waiting()).await;
    for attempt in 1..=3 {
        let host = CrashingHost::start(&rig, &place, vec![safe(server())]).await;
        place.effects_are(attempt).await;
        host.crash().await;
    }
    let host = CrashingHost::start(&rig, &place, vec![safe(server())]).await;
    let error = finish(call).await.error();
    assert_eq!(code(&error), "TB0421", "{error}");
    host.crash().await;
    let letters = place.journal().letters();
    assert_eq!((letters.len(), letters[0].attempts, letters[0].story.len()), (1, 3, 3), "{letters:?}");
    place.effects_are(3).await;
}

#[tokio::test]
async fn a_server_that_fails_again_and_again_gets_no_calls_for_a_while() {
    let (rig, place) = (Rig::bus().await, Place::new());
    let mut frail = server();
    let (window, pause) = (Duration::from_secs(60), Duration::from_secs(1));
    frail.calls.trip = TripSettings { after: 3, window, pause };
    let mut other = fake("two", "legacy");
    other.prefix = Some("two_".to_owned());
    let _host = CrashingHost::start(&rig, &place, vec![frail, other]).await;
    let worker = rig.legacy("w").await;
    for _ in 0..3 {
        assert_eq!(code(&worker.tool("one", "die", json!({})).await.error()), "TB0408");
    }
    let error = worker.tool("one", "add", json!({"a": 1, "b": 2})).await.error();
    assert_eq!(code(&error), "TB0422", "{error}");
    assert_eq!(worker.tool("two", "two_add", json!({"a": 1, "b": 2})).await.text(), "3", "others are untouched");
    rig.manifest(&worker, |manifest| manifest.problems.iter().any(|problem| problem.contains("failed 3 times"))).await;
    within("the server to get calls again", async {
        while let toolbus_mcp::HostReply::Rpc(toolbus_mcp::Outcome::Error(_)) =
            worker.tool("one", "add", json!({"a": 1, "b": 2})).await.end
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    rig.manifest(&worker, |manifest| manifest.problems.is_empty()).await;
}
