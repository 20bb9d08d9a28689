//! JetStream with file storage. A call is durable both ways: the request goes into the
//! host's stream, the reply into the worker's, each publish is acknowledged by the
//! server, and the host acks a request only once its reply is stored.
//!
//! On several servers, streams and consumers have a replica on each.
//!
//! Push consumers, because they need no pull requests. Acked messages are deleted, as in a mailbox; a stream that only
//! appends is faster, and measured as a separate contender.

use anyhow::Context as _;
use async_nats::jetstream::{
    self, Context, Message,
    consumer::{AckPolicy, push},
    stream::{self, DiscardPolicy, RetentionPolicy, StorageType},
};
use bytes::Bytes;
use futures_util::{StreamExt, TryFutureExt};
use tokio::{task::JoinSet, try_join};

use super::{cluster, nats};
use crate::{
    load::{Load, ensure_echo},
    shape::ONE_WAY_WINDOW,
    wire::{
        client::{Numbers, Pending},
        frame,
    },
};

const REQUESTS: &str = "requests";
const REPLIES: &str = "replies";
const ONE_WAY: &str = "one-way";
/// Bounds the disk use of a run; beyond it old messages are discarded.
const STREAM_BYTES: i64 = 2 << 30;

pub async fn host(url: &str, retention: RetentionPolicy, ready: impl FnOnce()) -> anyhow::Result<()> {
    let context = connect(url, 0).await?;
    create_stream(&context, REPLIES, format!("{REPLIES}.*"), retention, replicas(url)).await?;
    create_stream(&context, REQUESTS, REQUESTS.to_owned(), retention, replicas(url)).await?;
    let mut requests = subscribe(&context, REQUESTS, "host", REQUESTS.to_owned()).await?;
    ready();
    let mut replies = JoinSet::new();
    while let Some(request) = requests.next().await {
        let request = request.context("receive a request")?;
        replies.spawn(reply(context.clone(), request));
        while let Some(done) = replies.try_join_next() {
            done.context("a reply panicked")??;
        }
    }
    Ok(())
}

async fn reply(context: Context, request: Message) -> anyhow::Result<()> {
    let worker = frame::worker(&request.payload).context("a request without a worker number")?;
    publish(&context, reply_subject(worker), request.payload.clone()).await?;
    ack(&request).await
}

/// A worker connection with its own consumer on the stream of replies.
pub struct Worker {
    context: Context,
    number: u32,
    pending: Pending,
    numbers: Numbers,
}

impl Worker {
    pub async fn connect(url: &str, number: u32) -> anyhow::Result<Self> {
        let context = connect(url, number).await?;
        let name = format!("worker-{number}");
        let replies = subscribe(&context, REPLIES, &name, reply_subject(number)).await?;
        let pending = Pending::default();
        tokio::spawn(resolve_replies(replies, pending.clone()));
        Ok(Self { context, number, pending, numbers: Numbers::default() })
    }
}

impl Load for Worker {
    async fn once(&self, body: &Bytes) -> anyhow::Result<()> {
        let call = self.numbers.next();
        let reply = self.pending.expect(call);
        let request = frame::encode(self.number, call, body);
        let (_, reply) = try_join!(publish(&self.context, REQUESTS.to_owned(), request), reply)?;
        ensure_echo(body, &reply)
    }
}

async fn resolve_replies(mut replies: push::Messages, pending: Pending) {
    while let Some(Ok(message)) = replies.next().await {
        let Ok(reply) = frame::decode(message.payload.clone()) else {
            break;
        };
        pending.resolve(reply.call, reply.body);
        if ack(&message).await.is_err() {
            break;
        }
    }
    pending.fail_all();
}

/// Publishes to a stream without consumers; each publish is acknowledged.
pub struct Publisher(Context);

impl Publisher {
    pub async fn connect(url: &str) -> anyhow::Result<Self> {
        let context = connect(url, 1).await?;
        create_stream(&context, ONE_WAY, ONE_WAY.to_owned(), RetentionPolicy::WorkQueue, replicas(url)).await?;
        Ok(Self(context))
    }
}

impl Load for Publisher {
    async fn once(&self, body: &Bytes) -> anyhow::Result<()> {
        publish(&self.0, ONE_WAY.to_owned(), body.clone()).await
    }
}

async fn connect(url: &str, number: u32) -> anyhow::Result<Context> {
    let client = nats::connect(cluster::address(url, number)).await?;
    Ok(jetstream::context::ContextBuilder::new().max_ack_inflight(4 * ONE_WAY_WINDOW as usize).build(client))
}

async fn create_stream(
    context: &Context,
    name: &str,
    subject: String,
    retention: RetentionPolicy,
    num_replicas: usize,
) -> anyhow::Result<()> {
    let config = stream::Config {
        name: name.to_owned(),
        subjects: vec![subject],
        storage: StorageType::File,
        retention,
        num_replicas,
        max_bytes: STREAM_BYTES,
        discard: DiscardPolicy::Old,
        ..stream::Config::default()
    };
    context.create_stream(config).await.with_context(|| format!("create stream {name}"))?;
    Ok(())
}

/// One on each server.
fn replicas(url: &str) -> usize {
    url.split(cluster::SEPARATOR).count()
}

async fn subscribe(context: &Context, stream: &str, name: &str, subject: String) -> anyhow::Result<push::Messages> {
    let config = push::Config {
        deliver_subject: context.client().new_inbox(),
        durable_name: Some(name.to_owned()),
        ack_policy: AckPolicy::Explicit,
        filter_subject: subject,
        ..push::Config::default()
    };
    let consumer =
        context.create_consumer_on_stream(config, stream).await.with_context(|| format!("create consumer {name}"))?;
    let messages = consumer.messages().await.context("subscribe")?;
    context.client().flush().await.context("flush")?;
    Ok(messages)
}

async fn publish(context: &Context, subject: String, payload: Bytes) -> anyhow::Result<()> {
    context.publish(subject, payload).and_then(IntoFuture::into_future).await.context("publish")?;
    Ok(())
}

async fn ack(message: &Message) -> anyhow::Result<()> {
    message.ack().await.map_err(|error| anyhow::anyhow!("ack: {error}"))
}

fn reply_subject(worker: u32) -> String {
    format!("{REPLIES}.{worker}")
}
