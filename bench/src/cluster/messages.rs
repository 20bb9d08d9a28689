//! Messages with receipts, beside the calls: senders keep the ids of messages whose receipt they got, and at the end each of
//! them must have arrived.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Context;
use serde::Serialize;
use tokio::{sync::watch, task::JoinSet, time::Instant};
use toolbus_client::{AgentRef, Body, BrokerClient, BrokerError, InboxKind, InboxMessage};

use super::layout::TOKEN;

/// Between the receipt of a message and the next one.
const PAUSE: Duration = Duration::from_millis(30);
/// How long a message may wait for its receipt in total, and then for its arrival after the end.
const LIMIT: Duration = Duration::from_secs(90);
/// Maximum number of ids listed in a problem.
const MAX_LISTED_IDS: usize = 5;

/// Pairs of a sender and a receiver.
pub struct Messages {
    senders: JoinSet<anyhow::Result<()>>,
    receivers: JoinSet<anyhow::Result<()>>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    /// How often each message arrived, and whether it had a receipt.
    messages: Mutex<HashMap<String, Message>>,
    longest: Mutex<Duration>,
}

#[derive(Clone, Copy, Default)]
struct Message {
    has_receipt: bool,
    arrivals: u32,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct MessageCounts {
    pub receipts: u64,
    /// Messages that arrived more than once, which they may if the acknowledgement was lost.
    pub repeated: u64,
    pub lost: u64,
    pub longest_receipt_ms: f64,
}

impl Messages {
    pub async fn start(url: &str, pairs: usize, draining: &watch::Receiver<bool>) -> anyhow::Result<Self> {
        let mut messages = Self { senders: JoinSet::new(), receivers: JoinSet::new(), seen: Arc::default() };
        for pair in 0..pairs {
            let (receiver, sender) = (format!("receiver-{pair}"), format!("sender-{pair}"));
            let inbox = connect(url, &receiver).await?;
            inbox.subscribe().await.context("subscribe")?;
            messages.receivers.spawn(receive(inbox, Arc::clone(&messages.seen)));
            let client = connect(url, &sender).await?;
            messages.senders.spawn(send(client, receiver, Arc::clone(&messages.seen), draining.clone()));
        }
        Ok(messages)
    }

    /// Waits for the senders, which end when the run drains, and for the arrival of all messages with a receipt.
    pub async fn finish(mut self) -> (MessageCounts, Vec<String>) {
        let mut problems = Vec::new();
        while let Some(done) = self.senders.join_next().await {
            if let Some(error) = done.map_err(anyhow::Error::from).flatten().err() {
                problems.push(format!("a sender failed: {error:#}"));
            }
        }
        let until = Instant::now() + LIMIT;
        while self.seen.has_missing() && Instant::now() < until {
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                Some(done) = self.receivers.join_next() => {
                    if let Some(error) = done.map_err(anyhow::Error::from).flatten().err() {
                        problems.push(format!("a receiver failed: {error:#}"));
                    }
                }
            }
        }
        let messages = self.seen.messages.lock().expect("no panic");
        let mut lost: Vec<&str> = missing(&messages).collect();
        lost.sort_unstable();
        if !lost.is_empty() {
            let listed = lost[..lost.len().min(MAX_LISTED_IDS)].join(", ");
            problems.push(format!("{} messages with a receipt did not arrive: {listed}", lost.len()));
        }
        let count =
            |chosen: &dyn Fn(&Message) -> bool| messages.values().filter(|message| chosen(message)).count() as u64;
        let counts = MessageCounts {
            receipts: count(&|message| message.has_receipt),
            repeated: count(&|message| message.arrivals > 1),
            lost: lost.len() as u64,
            longest_receipt_ms: self.seen.longest.lock().expect("no panic").as_secs_f64() * 1e3,
        };
        (counts, problems)
    }
}

impl Seen {
    fn change(&self, id: &str, change: impl FnOnce(&mut Message)) {
        change(self.messages.lock().expect("no panic").entry(id.to_owned()).or_default());
    }

    fn receipt(&self, id: &str, time: Duration) {
        self.change(id, |message| message.has_receipt = true);
        let mut longest = self.longest.lock().expect("no panic");
        *longest = time.max(*longest);
    }

    fn has_missing(&self) -> bool {
        missing(&self.messages.lock().expect("no panic")).next().is_some()
    }
}

fn missing(messages: &HashMap<String, Message>) -> impl Iterator<Item = &str> {
    let missing = messages.iter().filter(|(_, message)| message.has_receipt && message.arrivals == 0);
    missing.map(|(id, _)| id.as_str())
}

async fn send(
    client: BrokerClient,
    to: String,
    seen: Arc<Seen>,
    mut draining: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    while !*draining.borrow() {
        let message = InboxMessage::new(client.me(), InboxKind::Task, Body::of(&"a message")?);
        let began = Instant::now();
        let id = message.id.to_string();
        // After a timeout the same message is sent again: its id must not arrive twice unless an acknowledgement was lost.
        while let Err(error) = client.deliver(&to, message.clone()).await {
            let may_retry = matches!(error, BrokerError::Timeout(_)) && began.elapsed() < LIMIT;
            anyhow::ensure!(may_retry, "message {id} after {:?}: {error}", began.elapsed());
        }
        seen.receipt(&id, began.elapsed());
        tokio::time::timeout(PAUSE, draining.changed()).await.ok();
    }
    Ok(())
}

async fn receive(client: BrokerClient, seen: Arc<Seen>) -> anyhow::Result<()> {
    while let Some(message) = client.next_message().await {
        seen.change(message.id.as_str(), |message| message.arrivals += 1);
        client.ack(message.id).await.context("acknowledge")?;
    }
    anyhow::bail!("the client closed: {:?}", client.end_reason())
}

async fn connect(url: &str, name: &str) -> anyhow::Result<BrokerClient> {
    BrokerClient::connect(url, AgentRef::new(name.to_owned()), TOKEN)
        .await
        .with_context(|| format!("connect as {name}"))
}
