//! NATS core: request and reply through the default async-nats client. Nothing is stored, so this is the cost of a fast
//! bus without durability.

use anyhow::Context;
use async_nats::Client;
use bytes::Bytes;
use futures_util::StreamExt;

use crate::load::{Load, ensure_echo};

const SUBJECT: &str = "host";

pub async fn host(url: &str, ready: impl FnOnce()) -> anyhow::Result<()> {
    let client = connect(url).await?;
    let mut requests = client.queue_subscribe(SUBJECT, SUBJECT.to_owned()).await.context("subscribe")?;
    client.flush().await.context("flush the subscription")?;
    ready();
    while let Some(request) = requests.next().await {
        let reply = request.reply.context("a request without a reply subject")?;
        client.publish(reply, request.payload).await.context("publish a reply")?;
    }
    Ok(())
}

pub async fn connect(url: &str) -> anyhow::Result<Client> {
    async_nats::connect(url).await.with_context(|| format!("connect to {url}"))
}

pub struct Worker(Client);

impl Worker {
    pub async fn connect(url: &str) -> anyhow::Result<Self> {
        Ok(Self(connect(url).await?))
    }
}

impl Load for Worker {
    async fn once(&self, body: &Bytes) -> anyhow::Result<()> {
        let reply = self.0.request(SUBJECT, body.clone()).await.context("request")?;
        ensure_echo(body, &reply.payload)
    }
}
