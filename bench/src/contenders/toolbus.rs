//! Our own broker through our own client: the echoing host, the multiplexed worker, the pipelining publisher and
//! the drain.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use toolbus_client::{AgentRef, Body, BrokerClient, InboxKind, InboxMessage, MultiplexedClient};

use super::original::TOKEN;
use crate::{
    load::{Load, Plan, Sample, drive, ensure_echo},
    shape::ONE_WAY_WINDOW,
};

const HOST: &str = "host";
/// A mailbox whose owner is disconnected while messages are delivered to it.
const ABSENT: &str = "absent";
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const FILL_TIMEOUT: Duration = Duration::from_secs(40);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);

/// Replies and acks in one step without waiting for the receipt, so that requests overlap.
pub async fn host(url: &str, ready: impl FnOnce()) -> anyhow::Result<()> {
    let client = connect(url, HOST).await?;
    client.subscribe().await.context("subscribe")?;
    // Frames are handled in order, so this answer confirms the subscription.
    client.list_connected(HOST).await.context("await the subscription")?;
    ready();
    while let Some(request) = client.next_message().await {
        let body = request.body.clone();
        client.reply_nowait(&request, InboxKind::McpReply, body).await.context("reply")?;
    }
    Ok(())
}

/// A worker connection that multiplexes its calls. It gets the body in advance, so that it is validated as JSON only
/// once.
pub struct Worker {
    client: MultiplexedClient,
    body: Body,
}

impl Worker {
    pub async fn connect(url: &str, number: u32, body: Bytes) -> anyhow::Result<Self> {
        let client = connect(url, &format!("worker-{number}")).await?;
        Ok(Self { client: client.into_multiplexed(), body: json(body)? })
    }
}

impl Load for Worker {
    async fn once(&self, body: &Bytes) -> anyhow::Result<()> {
        let request = self.client.request(HOST, InboxKind::McpRequest, self.body.clone(), CALL_TIMEOUT);
        let reply = request.await.context("request")?;
        ensure_echo(body, reply.body.as_bytes())
    }
}

/// Delivers to a mailbox whose owner is disconnected; waits for each receipt.
pub struct Publisher {
    client: BrokerClient,
    me: AgentRef,
    body: Body,
}

impl Publisher {
    pub async fn connect(url: &str, body: Bytes) -> anyhow::Result<Self> {
        let client = connect(url, "publisher").await?;
        Ok(Self { me: client.me(), client, body: json(body)? })
    }
}

impl Load for Publisher {
    async fn once(&self, _: &Bytes) -> anyhow::Result<()> {
        let message = InboxMessage::new(self.me.clone(), InboxKind::Task, self.body.clone());
        self.client.deliver(ABSENT, message).await.context("deliver")?;
        Ok(())
    }
}

/// Fills a mailbox, then measures how fast its owner empties it: from the subscription until the last ack is durable.
pub async fn drain(url: &str, pending: u32, body: Bytes) -> anyhow::Result<Sample> {
    let fill = Plan {
        in_flight: ONE_WAY_WINDOW.min(pending),
        warm_up: Duration::ZERO,
        window: FILL_TIMEOUT,
        limit: u64::from(pending),
    };
    let filled = drive(vec![Publisher::connect(url, body.clone()).await?], body, fill).await?;
    ensure!(filled.operations == u64::from(pending), "only {} of {pending} messages were delivered", filled.operations);
    let owner = connect(url, ABSENT).await?;
    let begin = Instant::now();
    tokio::time::timeout(DRAIN_TIMEOUT, empty(&owner, pending))
        .await
        .context("the mailbox was not drained in time")??;
    Ok(Sample::of_total(u64::from(pending), begin.elapsed()))
}

async fn empty(owner: &BrokerClient, pending: u32) -> anyhow::Result<()> {
    owner.subscribe().await.context("subscribe")?;
    for left in (0..pending).rev() {
        let message = owner.next_message().await.context("the broker closed the connection")?;
        if left > 0 {
            owner.ack(message.id).await.context("ack")?;
        } else {
            owner.ack_confirmed(message.id).await.context("ack the last message")?;
        }
    }
    Ok(())
}

pub async fn connect(url: &str, name: &str) -> anyhow::Result<BrokerClient> {
    BrokerClient::connect(url, AgentRef::new(name.to_owned()), TOKEN)
        .await
        .with_context(|| format!("connect to {url} as {name}"))
}

fn json(bytes: Bytes) -> anyhow::Result<Body> {
    Body::parse(bytes).context("the body is JSON")
}
