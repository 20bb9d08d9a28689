//! The connection to NATS, and the streams and the bucket of a cluster.

use crate::blobs::Blobs;
use crate::bucket::{Bucket, repeated_for};
use crate::connection::{self, Servers};
use crate::hosts::BucketHosts;
use crate::identity::MarkedIdentity;
use crate::requirements::{check_stream, check_version};
use crate::{
    ClusterError, ClusterIdentity, JetStreamLog, Leases, NatsTls, SharedAgents, SharedHosts, identity, members,
};
use async_nats::jetstream::context::{ContextBuilder, GetStreamError, GetStreamErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{Context, ErrorCode, kv};
use std::fmt::{Debug, Formatter};
use std::path::PathBuf;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use toolbus_base::BoxFuture;
use toolbus_broker::HostStorage;
use toolbus_cluster::{Partition, Partitions};
use toolbus_identity::AgentsFolder;

/// How long a request to JetStream is awaited before it is sent again. During an election no server answers, and waiting
/// for longer than that only delays the next attempt.
pub(crate) const ANSWER: Duration = Duration::from_secs(1);
/// How long the requests of a start are repeated: servers that have just started need some time to agree on their leaders.
pub(crate) const START: Duration = Duration::from_secs(60);
/// How long ids of appends are deduplicated. An owner gives up earlier.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

/// Which cluster to use, and how.
#[derive(Clone)]
pub struct ClusterOptions {
    /// Addresses of servers. They may contain a user and a password, or a token, which are never logged.
    pub servers: Vec<String>,
    /// A file with the JWT and the key of a NATS user.
    pub credentials: Option<PathBuf>,
    /// TLS towards the servers.
    pub tls: NatsTls,
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
        let (credentials, tls) = (None, NatsTls::default());
        Self { servers, credentials, tls, name: "default".into(), replicas: 3, max_bytes: 0 }
    }
}

impl Debug for ClusterOptions {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterOptions")
            .field("servers", &Servers::read(&self.servers))
            .field("credentials", &self.credentials)
            .field("tls", &self.tls)
            .field("name", &self.name)
            .field("replicas", &self.replicas)
            .field("max_bytes", &self.max_bytes)
            .finish()
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
    pub fn connect(options: ClusterOptions) -> BoxFuture<'static, Result<Self, ClusterError>> {
        Box::pin(Self::establish(options))
    }

    async fn establish(options: ClusterOptions) -> Result<Self, ClusterError> {
        let servers = Servers::read(&options.servers);
        let client = connection::connect(&servers, options.credentials.as_ref(), &options.tls).await?;
        check_version(&client.server_info().version)?;
        let context = ContextBuilder::new().timeout(ANSWER).build(client);
        Ok(Self { context, options })
    }

    /// Creates the stream of a partition, or checks it. The log blocks its caller and uses the runtime for its requests.
    pub async fn log(&self, partition: Partition, runtime: Handle) -> Result<JetStreamLog, ClusterError> {
        self.log_until(partition, runtime, CancellationToken::new()).await
    }

    /// Like [`log`](Self::log), for a log whose waits end with `stop`.
    pub(crate) async fn log_until(
        &self,
        partition: Partition,
        runtime: Handle,
        stop: CancellationToken,
    ) -> Result<JetStreamLog, ClusterError> {
        let wanted = self.stream_of(partition);
        let create = || self.context.get_or_create_stream(wanted.clone());
        let stream = repeated_for(START, "create the stream of a partition", create).await?;
        check_stream(&stream.cached_info().config, &wanted)?;
        Ok(JetStreamLog::new(self.context.clone(), stream, self.subject_of(partition), runtime, stop))
    }

    /// Reads the identity of the cluster, or creates it with that many partitions. Fails if it has another number.
    pub fn identity(&self, partitions: Partitions) -> BoxFuture<'_, Result<ClusterIdentity, ClusterError>> {
        Box::pin(async move { identity::open(&self.bucket().await?, partitions).await })
    }

    /// The identity of a cluster that may take part in a move; `None` if there is no cluster of that name yet.
    pub async fn marked_identity(&self) -> Result<Option<MarkedIdentity>, ClusterError> {
        // A question must not create the bucket.
        if self.last_sequence(&format!("KV_{}", self.bucket_name())).await?.is_none() {
            return Ok(None);
        }
        identity::read(&self.bucket().await?).await
    }

    /// Replaces the identity if it was not changed since it was read, and updates its revision. Returns false if it was.
    pub async fn swap_identity(&self, marked: &mut MarkedIdentity) -> Result<bool, ClusterError> {
        identity::swap(&self.bucket().await?, marked).await
    }

    /// Whether the bucket and the streams of the cluster don't exist or never had any content.
    pub async fn is_empty(&self, partitions: Partitions) -> Result<bool, ClusterError> {
        let streams = partitions.all().map(|partition| self.stream_of(partition).name);
        for name in streams.chain([format!("KV_{}", self.bucket_name())]) {
            if self.last_sequence(&name).await?.is_some_and(|last| last > 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The number of the last message of a stream, or `None` if there is no such stream.
    async fn last_sequence(&self, name: &str) -> Result<Option<u64>, ClusterError> {
        let find = || async {
            match self.context.get_stream(name).await {
                Ok(stream) => Ok(Some(stream.cached_info().state.last_sequence)),
                Err(error) if is_missing(&error) => Ok(None),
                Err(error) => Err(error),
            }
        };
        repeated_for(START, "inspect a stream of the cluster", find).await
    }

    /// Number of agents whose records the cluster has.
    pub async fn agents_known(&self) -> Result<usize, ClusterError> {
        Ok(self.bucket().await?.keys(crate::agents::PREFIX).await?.len())
    }

    /// The addresses of the brokers of the cluster that renew their records now, without those whose names have the prefix
    /// `except`. Takes a few seconds.
    pub async fn live_brokers(&self, except: &str) -> Result<Vec<String>, ClusterError> {
        members::live(&self.bucket().await?, except).await
    }

    /// The storage of hosts, without following it. Its methods block, and must not be called from a task of the runtime.
    pub async fn host_storage(&self, identity: &ClusterIdentity) -> Result<Box<dyn HostStorage>, ClusterError> {
        Ok(Box::new(BucketHosts::new(Blobs::new(self.bucket().await?, identity.seed))))
    }

    /// The directory of hosts. `broker` is the name under which this broker reports the hosts that are connected to it.
    pub fn hosts<'a>(
        &'a self,
        identity: &'a ClusterIdentity,
        broker: &'a str,
    ) -> BoxFuture<'a, Result<SharedHosts, ClusterError>> {
        let open =
            async move { SharedHosts::open(Blobs::new(self.bucket().await?, identity.seed), broker.to_owned()).await };
        Box::pin(open)
    }

    /// Joins the agents of a broker's data folder and those of the cluster, now and after every change.
    pub fn agents(&self, folder: AgentsFolder) -> BoxFuture<'_, Result<SharedAgents, ClusterError>> {
        Box::pin(async move { SharedAgents::join(self.bucket().await?, folder).await })
    }

    /// The records of who owns which partition.
    pub async fn leases(&self) -> Result<Leases, ClusterError> {
        Ok(Leases::new(self.bucket().await?))
    }

    /// Creates the bucket that all brokers share, or opens it.
    pub(crate) async fn bucket(&self) -> Result<Bucket, ClusterError> {
        let config = kv::Config {
            bucket: self.bucket_name(),
            history: 1,
            storage: StorageType::File,
            num_replicas: self.options.replicas,
            ..kv::Config::default()
        };
        let open = || async {
            match self.context.get_key_value(&config.bucket).await {
                Ok(bucket) => Ok(bucket),
                Err(_) => self.context.create_key_value(config.clone()).await,
            }
        };
        let bucket = repeated_for(START, "create the bucket of the cluster", open).await?;
        Ok(Bucket::new(bucket, self.context.client().server_info().max_payload))
    }

    fn bucket_name(&self) -> String {
        format!("TOOLBUS_{}", self.options.name)
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

fn is_missing(error: &GetStreamError) -> bool {
    matches!(error.kind(), GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}
