//! The contenders: their names, the shapes that they support, and how their brokers, hosts and workers are run. One
//! file per family.

pub mod broker;
pub mod cluster;
pub mod jetstream;
pub mod nats;
pub mod original;
pub mod original_host;
pub mod toolbus;

use std::{fmt, future::Future, str::FromStr};

use anyhow::{anyhow, bail};
use async_nats::jetstream::stream::RetentionPolicy;

use crate::{
    load::{Load, Plan, Sample, drive},
    shape::Shape,
    wire::{client, fast::Fast, tungstenite::Tungstenite},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contender {
    Toolbus,
    ToolbusJson,
    RelayFast,
    RelayMultiThread,
    NatsCore,
    JetStream,
    JetStreamLog,
    JetStreamAlways,
    Bamboo,
    BambooHost,
    ClusterOfOne,
    ClusterOfThree,
    JetStreamReplicated,
    JetStreamReplicatedAlways,
}

use Contender::{
    Bamboo, BambooHost, ClusterOfOne, ClusterOfThree, JetStream, JetStreamAlways, JetStreamLog, JetStreamReplicated,
    JetStreamReplicatedAlways, NatsCore, RelayFast, RelayMultiThread, Toolbus, ToolbusJson,
};

impl Contender {
    pub const ALL: [Contender; 14] = [
        Toolbus,
        ToolbusJson,
        RelayFast,
        RelayMultiThread,
        NatsCore,
        JetStream,
        JetStreamLog,
        JetStreamAlways,
        Bamboo,
        BambooHost,
        ClusterOfOne,
        ClusterOfThree,
        JetStreamReplicated,
        JetStreamReplicatedAlways,
    ];

    /// The name used on the command line, in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Toolbus => "toolbus",
            ToolbusJson => "toolbus+json",
            RelayFast => "ws-relay-fast",
            RelayMultiThread => "ws-relay-mt",
            NatsCore => "nats-core",
            JetStream => "jetstream",
            JetStreamLog => "jetstream-log",
            JetStreamAlways => "jetstream-always",
            Bamboo => "bamboo+nodelay",
            BambooHost => "bamboo-host",
            ClusterOfOne => "cluster-of-1",
            ClusterOfThree => "cluster-of-3",
            JetStreamReplicated => "jetstream-r3",
            JetStreamReplicatedAlways => "jetstream-r3-always",
        }
    }

    pub fn description(self) -> &'static str {
        match self {
            Toolbus => "this broker: durable, deduplicated, identity stamped",
            ToolbusJson => "this broker through the original JSON protocol",
            RelayFast => "WebSocket relay that does nothing, fastwebsockets, one thread",
            RelayMultiThread => "WebSocket relay that does nothing, tokio-tungstenite, multi-thread",
            NatsCore => "NATS request/reply, nothing durable",
            JetStream => "JetStream file storage, work queues, default sync (every 2 min)",
            JetStreamLog => "JetStream as above, but acked messages are kept",
            JetStreamAlways => "JetStream file storage, work queues, sync_interval: always",
            Bamboo => "bamboo-broker 2026.11.1, TCP_NODELAY forced on, no rate limit",
            BambooHost => "this broker and client, the host of bamboo-broker 2026.11.1 as it is (Nagle's algorithm)",
            ClusterOfOne => "one broker on three NATS servers, 3 replicas, sync_interval: always",
            ClusterOfThree => "three brokers on three NATS servers as above, host and workers at different brokers",
            JetStreamReplicated => "JetStream as above on three servers, 3 replicas, default sync",
            JetStreamReplicatedAlways => "JetStream with 3 replicas, sync_interval: always",
        }
    }

    /// Whether it is measured unless `--only` selects others. The goals refer only to these.
    pub fn by_default(self) -> bool {
        let is_of_cluster =
            matches!(self, ClusterOfOne | ClusterOfThree | JetStreamReplicated | JetStreamReplicatedAlways);
        !is_of_cluster && !matches!(self, ToolbusJson | JetStreamLog | BambooHost)
    }

    /// Whether its program is neither part of this build nor built from this workspace.
    pub fn needs_installation(self) -> bool {
        !matches!(self, Toolbus | ToolbusJson | RelayFast | RelayMultiThread)
    }

    pub fn supports(self, shape: Shape) -> bool {
        match shape {
            // Its tool takes no body; only the rate of small calls is of interest.
            Shape::Call { body, .. } => self != BambooHost || body <= 100,
            Shape::OneWay => !matches!(
                self,
                ToolbusJson | RelayFast | RelayMultiThread | NatsCore | JetStreamLog | Bamboo | BambooHost
            ),
            Shape::Drain { .. } => self == Toolbus,
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Contender {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Contender::ALL.into_iter().find(|contender| contender.name() == text).ok_or_else(|| {
            let known = Contender::ALL.map(Contender::name).join(", ");
            anyhow!("unknown contender {text:?}; known contenders: {known}")
        })
    }
}

/// Runs the echoing host of a contender until its connection ends.
pub async fn host(contender: Contender, url: &str, ready: impl FnOnce()) -> anyhow::Result<()> {
    match contender {
        Toolbus | ClusterOfOne | ClusterOfThree => toolbus::host(cluster::address(url, 0), ready).await,
        RelayFast => client::host::<Fast>(url, ready).await,
        RelayMultiThread => client::host::<Tungstenite>(url, ready).await,
        NatsCore => nats::host(url, ready).await,
        JetStream | JetStreamAlways | JetStreamReplicated | JetStreamReplicatedAlways => {
            jetstream::host(url, RetentionPolicy::WorkQueue, ready).await
        }
        JetStreamLog => jetstream::host(url, RetentionPolicy::Limits, ready).await,
        Bamboo | ToolbusJson => original::host(url, ready).await,
        BambooHost => bail!("{contender} has a program of its own"),
    }
}

/// Measures one shape against a running broker and, for calls, a running host.
pub async fn measure(contender: Contender, url: &str, shape: Shape, plan: Plan) -> anyhow::Result<Sample> {
    match (shape, contender) {
        (Shape::Call { workers, .. }, _) => calls(contender, url, shape, workers, plan).await,
        (Shape::OneWay, Toolbus | ClusterOfOne | ClusterOfThree) => {
            let url = cluster::address(url, 1);
            drive(vec![toolbus::Publisher::connect(url, shape.body()).await?], shape.body(), plan).await
        }
        (Shape::OneWay, JetStream | JetStreamAlways | JetStreamReplicated | JetStreamReplicatedAlways) => {
            drive(vec![jetstream::Publisher::connect(url).await?], shape.body(), plan).await
        }
        (Shape::Drain { pending }, Toolbus) => toolbus::drain(url, pending, shape.body()).await,
        _ => bail!("{contender} is not measured in {shape}"),
    }
}

async fn calls(contender: Contender, url: &str, shape: Shape, workers: u32, plan: Plan) -> anyhow::Result<Sample> {
    match contender {
        Toolbus | ClusterOfOne | ClusterOfThree => {
            let connect = |n| toolbus::Worker::connect(cluster::address(url, n), n, shape.body());
            call_all(shape, workers, plan, connect).await
        }
        RelayFast => {
            let connect = |n| client::Worker::connect::<Fast>(url, n);
            call_all(shape, workers, plan, connect).await
        }
        RelayMultiThread => {
            let connect = |n| client::Worker::connect::<Tungstenite>(url, n);
            call_all(shape, workers, plan, connect).await
        }
        NatsCore => call_all(shape, workers, plan, |_| nats::Worker::connect(url)).await,
        JetStream | JetStreamLog | JetStreamAlways | JetStreamReplicated | JetStreamReplicatedAlways => {
            call_all(shape, workers, plan, |n| jetstream::Worker::connect(url, n)).await
        }
        BambooHost => call_all(shape, workers, plan, |n| original_host::Worker::connect(url, n)).await,
        Bamboo | ToolbusJson => call_all(shape, workers, plan, |n| original::Worker::connect(url, n)).await,
    }
}

async fn call_all<L, F>(shape: Shape, workers: u32, plan: Plan, connect: impl Fn(u32) -> F) -> anyhow::Result<Sample>
where
    L: Load,
    F: Future<Output = anyhow::Result<L>>,
{
    let mut connections = Vec::new();
    for number in 1..=workers {
        connections.push(connect(number).await?);
    }
    drive(connections, shape.body(), plan).await
}
