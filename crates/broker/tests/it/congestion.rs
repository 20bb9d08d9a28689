//! Disk congestion: the broker stops reading from its peers until the disk has caught up, and suspends their
//! heartbeats.

use crate::support::{Bus, Setup, deliver};
use serde_json::json;
use std::time::{Duration, Instant};
use toolbus_broker::{CoreOptions, ServerOptions};
use toolbus_engine::EngineOptions;

/// How long a message stays unwritten if its recipient is subscribed and doesn't acknowledge it.
const LINGER: Duration = Duration::from_millis(1500);

/// A single byte that is not durable yet causes congestion.
fn congested_by_one_message() -> Setup {
    let engine = EngineOptions { unsettled_bytes: 0, linger: LINGER.as_millis() as u64, ..EngineOptions::default() };
    let core = CoreOptions { engine, ..CoreOptions::default() };
    Setup { server: ServerOptions { heartbeat: Duration::from_millis(200), ..ServerOptions::default() }, core }
}

#[tokio::test]
async fn during_congestion_peers_are_neither_read_from_nor_timed_out() {
    let bus = Bus::with(congested_by_one_message()).await;
    let mut sender = bus.peer("sender").await;
    let mut recipient = bus.subscriber("recipient").await;
    let started = Instant::now();
    sender.send(deliver("recipient", "one", json!(1))).await;
    recipient.expect_message("one").await;
    // Sent only now, so that both are not read in one poll.
    sender.send(deliver("recipient", "two", json!(2))).await;
    recipient.expect_message("two").await;
    let waited = started.elapsed();
    assert!(waited >= LINGER, "the second was read after {waited:?}");
    // Both connections survived a pause of many heartbeats.
    sender.next_of("delivered").await;
    recipient.ack("one").await;
    assert_eq!(recipient.ack_confirmed("two").await["accepted"], true);
}
