//! The broker is killed with SIGKILL repeatedly under load. Every receipted message is delivered, and no message with a
//! confirmed acknowledgement is delivered again.

use crate::support::{BrokerProcess, connect, message, soon};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use toolbus::{BrokerClient, MsgId};
use toolbus_protocol::Framing;

const KILLS: usize = 50;
const SENDERS: usize = 4;
/// Minimum number of receipts between two kills.
const PROGRESS: u64 = 40;

#[derive(Default)]
struct Observed {
    receipted: Mutex<HashSet<MsgId>>,
    seen: Mutex<HashSet<MsgId>>,
    confirmed: Mutex<HashSet<MsgId>>,
    redelivered: Mutex<Vec<MsgId>>,
    receipts: AtomicU64,
    stop: AtomicBool,
}

#[tokio::test]
async fn fifty_kills_lose_no_receipted_message_and_redeliver_no_confirmed_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut broker = BrokerProcess::start(folder.path(), "127.0.0.1:0").await;
    let url = broker.url();
    let observed = Arc::new(Observed::default());
    let mut tasks = JoinSet::new();
    for number in 0..SENDERS {
        let framing = if number % 2 == 0 { Framing::Compact } else { Framing::Json };
        let client = connect(&url, &format!("sender-{number}"), framing).await;
        tasks.spawn(send(client, Arc::clone(&observed)));
    }
    let consumer = connect(&url, "consumer", Framing::Compact).await;
    consumer.subscribe().await.expect("the client is open");
    let consuming = tokio::spawn(consume(consumer, Arc::clone(&observed)));

    for _ in 0..KILLS {
        let before = observed.receipts.load(Ordering::Relaxed);
        soon("progress between kills", async {
            while observed.receipts.load(Ordering::Relaxed) < before + PROGRESS {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
        let address = broker.kill().await;
        broker = BrokerProcess::start(folder.path(), &address.to_string()).await;
    }
    observed.stop.store(true, Ordering::Relaxed);
    soon("the senders finish", async { while tasks.join_next().await.is_some() {} }).await;
    soon("every receipted message arrives", async {
        loop {
            let missing = {
                let seen = observed.seen.lock().expect("no panic");
                observed.receipted.lock().expect("no panic").iter().filter(|id| !seen.contains(id)).count()
            };
            if missing == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    consuming.abort();
    let redelivered = observed.redelivered.lock().expect("no panic").clone();
    let confirmed = observed.confirmed.lock().expect("no panic").len();
    let receipted = observed.receipted.lock().expect("no panic").len();
    assert!(redelivered.is_empty(), "delivered again after a confirmed acknowledgement: {redelivered:?}");
    assert!(confirmed > KILLS, "the test confirmed too little to prove anything: {confirmed}");
    println!("{KILLS} kills, {receipted} receipted, {confirmed} acknowledgements confirmed");
}

async fn send(client: BrokerClient, observed: Arc<Observed>) {
    let mut number = 0;
    while !observed.stop.load(Ordering::Relaxed) {
        number += 1;
        let message = message(number);
        let id = client.deliver("consumer", message).await.expect("the client repeats it until it has a receipt");
        observed.receipted.lock().expect("no panic").insert(id);
        observed.receipts.fetch_add(1, Ordering::Relaxed);
    }
    client.close().await;
}

/// Waits for the confirmation of every third acknowledgement.
async fn consume(client: BrokerClient, observed: Arc<Observed>) {
    let mut count = 0u64;
    while let Some(message) = client.next_message().await {
        count += 1;
        let id = message.id;
        if observed.confirmed.lock().expect("no panic").contains(&id) {
            observed.redelivered.lock().expect("no panic").push(id.clone());
        }
        observed.seen.lock().expect("no panic").insert(id.clone());
        if count.is_multiple_of(3) {
            if client.ack_confirmed(id.clone()).await.is_ok() {
                observed.confirmed.lock().expect("no panic").insert(id);
            }
        } else {
            client.ack(id).await.expect("the client is open");
        }
    }
}
