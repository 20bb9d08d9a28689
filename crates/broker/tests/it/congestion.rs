//! The disk is behind: the broker stops reading from its peers until it has caught up, and does not blame them for it.

use crate::support::{Bus, Setup, deliver};
use serde_json::json;
use std::time::{Duration, Instant};
use toolbus_broker::{CoreOptions, ServerOptions};
use toolbus_engine::EngineOptions;

/// How long a message stays unwritten, if its recipient is there and doesn't acknowledge it.
const LINGER: Duration = Duration::from_millis(1500);

/// Anything at all that is not on disk yet is too much.
fn one_at_a_time() -> Setup {
    let engine = EngineOptions { unsettled_bytes: 0, linger: LINGER.as_millis() as u64, ..EngineOptions::default() };
    let core = CoreOptions { engine, ..CoreOptions::default() };
    Setup { server: ServerOptions { heartbeat: Duration::from_millis(200), ..ServerOptions::default() }, core }
}

#[tokio::test]
async fn while_the_disk_is_behind_nobody_is_read_from_and_nobody_is_taken_for_dead() {
    let bus = Bus::with(one_at_a_time()).await;
    let mut sender = bus.peer("sender").await;
    let mut recipient = bus.subscriber("recipient").await;
    let started = Instant::now();
    sender.send(deliver("recipient", "one", json!(1))).await;
    recipient.expect_message("one").await;
    // Only now, so that the two are not read in one turn.
    sender.send(deliver("recipient", "two", json!(2))).await;
    recipient.expect_message("two").await;
    let waited = started.elapsed();
    assert!(waited >= LINGER, "the second was read after {waited:?}");
    // Both connections outlived a wait of many heartbeats, and everything is as it should be.
    sender.next_of("delivered").await;
    recipient.ack("one").await;
    assert_eq!(recipient.ack_confirmed("two").await["accepted"], true);
}
