//! The connection to NATS, and the streams and the bucket of a cluster.

use crate::requirements::{check_stream, check_version};
use crate::{ClusterError, JetStreamLog, Leases};
use async_nats::ConnectOptions;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{Context, kv};
use std::time::Duration;
use tokio::runtime::Handle;
use toolbus_cluster::Partition;

/// How long a request to JetStream is awaited before it is sent again. During an election no server answers, and waiting
/// for longer than that only delays the next attempt.
pub(crate) const ANSWER: Duration = Duration::from_secs(1);
/// How long ids of appends are deduplicated. An owner gives up earlier.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);
/// How long the first connection may take.
const CONNECT: Duration = Duration::from_secs(10);

/// Which cluster to use, and how.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Addresses of servers.
    pub servers: Vec<String>,
    /// The cluster's name, a part of the names of its streams. Several clusters can use the same servers.
    pub name: String,
    /// Copies of each stream.
    pub replicas: usize,
    /// Maximum size of a stream in bytes; 0 for none.
    pub max_bytes: u64,
}

impl ClusterOptions {
    /// The default options for these servers.
    pub fn new(servers: Vec<String>) -> Self {
        Self { servers, name: "default".into(), replicas: 3, max_bytes: 0 }
    }
}

/// A connection to a cluster.
#[derive(Clone)]
pub struct Cluster {
    context: Context,
    options: ClusterOptions,
}

impl Cluster {
    /// Connects to a server and checks its version. The connection is restored by itself.
    pub async fn connect(options: ClusterOptions) -> Result<Self, ClusterError> {
        let connecting = ConnectOptions::new().connection_timeout(ANSWER * 2).connect(options.servers.clone());
        let connected = tokio::time::timeout(CONNECT, connecting).await;
        let connected = connected.map_err(|_| ClusterError::Connect("no server answers".into()))?;
        let client = connected.map_err(|error| ClusterError::Connect(error.to_string()))?;
        check_version(&client.server_info().version)?;
        let context = ContextBuilder::new().timeout(ANSWER).build(client);
        Ok(Self { context, options })
    }

    /// Creates the stream of a partition, or checks it. The log blocks its caller and uses the runtime for its requests.
    pub async fn log(&self, partition: Partition, runtime: Handle) -> Result<JetStreamLog, ClusterError> {
        let wanted = self.stream_of(partition);
        let created = self.context.get_or_create_stream(wanted.clone()).await;
        let stream = created.map_err(ClusterError::request("create the stream of a partition"))?;
        check_stream(&stream.cached_info().config, &wanted)?;
        Ok(JetStreamLog::new(self.context.clone(), stream, self.subject_of(partition), runtime))
    }

    /// Creates the bucket of the leases, or opens it.
    pub async fn leases(&self) -> Result<Leases, ClusterError> {
        let config = kv::Config {
            bucket: format!("TOOLBUS_{}", self.options.name),
            history: 1,
            storage: StorageType::File,
            num_replicas: self.options.replicas,
            ..kv::Config::default()
        };
        let name = config.bucket.clone();
        let bucket = match self.context.get_key_value(&name).await {
            Ok(bucket) => bucket,
            Err(_) => {
                let created = self.context.create_key_value(config).await;
                created.map_err(ClusterError::request("create the bucket of the leases"))?
            }
        };
        Ok(Leases::new(bucket))
    }

    fn subject_of(&self, Partition(number): Partition) -> String {
        format!("toolbus.{}.log.{number}", self.options.name)
    }

    fn stream_of(&self, partition: Partition) -> Config {
        Config {
            name: format!("TOOLBUS_{}_{:03}", self.options.name, partition.0),
            subjects: vec![self.subject_of(partition)],
            retention: RetentionPolicy::Limits,
            // A full stream refuses appends instead of dropping the oldest messages.
            discard: DiscardPolicy::New,
            storage: StorageType::File,
            num_replicas: self.options.replicas,
            max_bytes: i64::try_from(self.options.max_bytes).unwrap_or(i64::MAX),
            duplicate_window: DUPLICATE_WINDOW,
            allow_direct: false,
            deny_delete: true,
            ..Config::default()
        }
    }
}
