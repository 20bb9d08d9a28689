//! The broker is killed with -9 again and again under load. What has a receipt arrives; what was confirmed as
//! acknowledged never comes back.

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
/// Deliveries that must have been receipted between two kills.
const PROGRESS: u64 = 40;

#[derive(Default)]
struct Witness {
    receipted: Mutex<HashSet<MsgId>>,
    seen: Mutex<HashSet<MsgId>>,
    confirmed: Mutex<HashSet<MsgId>>,
    came_back: Mutex<Vec<MsgId>>,
    receipts: AtomicU64,
    stop: AtomicBool,
}

#[tokio::test]
async fn fifty_kills_lose_no_receipted_message_and_bring_back_no_confirmed_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut broker = BrokerProcess::start(folder.path(), "127.0.0.1:0").await;
    let url = broker.url();
    let witness = Arc::new(Witness::default());
    let mut tasks = JoinSet::new();
    for number in 0..SENDERS {
        let framing = if number % 2 == 0 { Framing::Compact } else { Framing::Json };
        let client = connect(&url, &format!("sender-{number}"), framing).await;
        tasks.spawn(send(client, Arc::clone(&witness)));
    }
    let consumer = connect(&url, "consumer", Framing::Compact).await;
    consumer.subscribe().await.expect("the client is open");
    let consuming = tokio::spawn(consume(consumer, Arc::clone(&witness)));

    for _ in 0..KILLS {
        let before = witness.receipts.load(Ordering::Relaxed);
        soon("progress between kills", async {
            while witness.receipts.load(Ordering::Relaxed) < before + PROGRESS {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
        let address = broker.kill().await;
        broker = BrokerProcess::start(folder.path(), &address.to_string()).await;
    }
    witness.stop.store(true, Ordering::Relaxed);
    soon("the senders finish", async { while tasks.join_next().await.is_some() {} }).await;
    soon("every receipted message arrives", async {
        loop {
            let missing = {
                let seen = witness.seen.lock().expect("no panic");
                witness.receipted.lock().expect("no panic").iter().filter(|id| !seen.contains(id)).count()
            };
            if missing == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    consuming.abort();
    let came_back = witness.came_back.lock().expect("no panic").clone();
    let confirmed = witness.confirmed.lock().expect("no panic").len();
    let receipted = witness.receipted.lock().expect("no panic").len();
    assert!(came_back.is_empty(), "confirmed and yet delivered again: {came_back:?}");
    assert!(confirmed > KILLS, "the test confirmed too little to prove anything: {confirmed}");
    println!("{KILLS} kills, {receipted} receipted, {confirmed} acknowledgements confirmed");
}

async fn send(client: BrokerClient, witness: Arc<Witness>) {
    let mut number = 0;
    while !witness.stop.load(Ordering::Relaxed) {
        number += 1;
        let message = message(number);
        let id = client.deliver("consumer", message).await.expect("the client sends it again until it is safe");
        witness.receipted.lock().expect("no panic").insert(id);
        witness.receipts.fetch_add(1, Ordering::Relaxed);
    }
    client.close().await;
}

/// Confirms every third acknowledgement, acknowledges the others without waiting.
async fn consume(client: BrokerClient, witness: Arc<Witness>) {
    let mut count = 0u64;
    while let Some(message) = client.next_message().await {
        count += 1;
        let id = message.id;
        if witness.confirmed.lock().expect("no panic").contains(&id) {
            witness.came_back.lock().expect("no panic").push(id.clone());
        }
        witness.seen.lock().expect("no panic").insert(id.clone());
        if count.is_multiple_of(3) {
            if client.ack_confirmed(id.clone()).await.is_ok() {
                witness.confirmed.lock().expect("no panic").insert(id);
            }
        } else {
            client.ack(id).await.expect("the client is open");
        }
    }
}
