//! `toolbus broker --nats`: the broker as a member of a cluster, whose mailboxes are in NATS JetStream.

mod membership;
mod mirrors;

use crate::failure::Failure;
use clap::Args;
use membership::Membership;
pub use mirrors::MirrorError;
use mirrors::Mirrors;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio_util::sync::CancellationToken;
use toolbus_broker::{
    BrokerServer, ClusterMailboxes, ClusterMailboxesOptions, CoreOptions, LinkOptions, Links, StoreIdentity,
};
use toolbus_cluster::{LeaseOptions, Partitions};
use toolbus_identity::AgentsFolder;
use toolbus_jetstream::{
    Cluster, ClusterIdentity, ClusterOptions, NatsTls, Ownership, OwnershipOptions, SharedAgents, SharedHosts,
    check_sync,
};

/// Options of a broker in a cluster.
#[derive(Args, Clone)]
pub struct ClusterArgs {
    /// Addresses of NATS servers, separated by commas. The mailboxes are kept in their JetStream instead of the data folder,
    /// and any number of brokers can serve them together.
    #[arg(long, value_name = "URL,...", value_delimiter = ',', help_heading = "Cluster")]
    nats: Vec<String>,
    #[command(flatten)]
    options: NatsArgs,
    /// Address at which the other brokers reach this one. Default: the listening address.
    #[arg(long, requires = "nats", value_name = "HOST:PORT", help_heading = "Cluster")]
    advertise: Option<String>,
}

/// How to use NATS servers. `nats` is the argument of the command that has their addresses.
#[derive(Args, Clone)]
pub struct NatsArgs {
    /// File with the JWT and the key of the NATS user.
    #[arg(long, requires = "nats", value_name = "FILE", help_heading = "Cluster")]
    nats_creds: Option<PathBuf>,
    /// Root certificates for the TLS connection to NATS (PEM), beside those of the system. Requires TLS.
    #[arg(long, requires = "nats", value_name = "FILE", help_heading = "Cluster")]
    nats_ca: Option<PathBuf>,
    /// Name of the cluster, a part of the names of its streams. Several clusters can use the same NATS servers.
    #[arg(long, requires = "nats", default_value = "default", value_name = "NAME", help_heading = "Cluster")]
    pub cluster: String,
    /// Copies of each stream. Streams that exist keep their number.
    #[arg(long, requires = "nats", default_value_t = 3, value_name = "N", help_heading = "Cluster")]
    replicas: usize,
    /// Number of partitions of the mailboxes. Fixed when the cluster is created.
    #[arg(long, requires = "nats", default_value_t = Partitions::DEFAULT.count(), value_name = "N", help_heading = "Cluster")]
    partitions: u16,
    /// Maximum size of the stream of a partition, in MiB; 0 for none. New messages are refused (TB0207) when less than --reserve
    /// is left, while a NATS server without room stops all partitions. For streams that are created.
    #[arg(long, requires = "nats", default_value_t = 0, value_name = "MIB", help_heading = "Cluster")]
    stream_limit: u64,
    /// Accept fewer than three copies: the loss of one NATS server can lose messages that have a receipt.
    #[arg(long, requires = "nats", help_heading = "Cluster")]
    allow_single: bool,
    /// Monitoring addresses of all NATS servers (`http: HOST:PORT` in their configuration), separated by commas. The broker
    /// asks there whether each server syncs every write.
    #[arg(long, requires = "nats", value_name = "HOST:PORT,...", value_delimiter = ',', help_heading = "Cluster")]
    nats_monitor: Vec<String>,
    /// Accept NATS servers that don't sync every write (`sync_interval: always`), or that don't tell: a power cut of all of
    /// them at once loses messages of the last interval that have a receipt.
    #[arg(long, requires = "nats", help_heading = "Cluster")]
    accept_async_sync: bool,
}

/// The mailboxes of a cluster, before the broker joins it.
pub struct OpenCluster {
    cluster: Cluster,
    identity: ClusterIdentity,
    partitions: Partitions,
    /// The name of this process among the brokers. Different from those of its earlier processes, whose partitions are taken
    /// over like any others.
    name: String,
    mirrors: Mirrors,
    following: Following,
    pub mailboxes: Arc<ClusterMailboxes>,
}

/// What the brokers share beside the mailboxes, followed while it exists.
struct Following {
    _hosts: SharedHosts,
    _agents: Option<SharedAgents>,
}

impl ClusterArgs {
    /// Whether the broker is a member of a cluster.
    pub fn is_given(&self) -> bool {
        !self.nats.is_empty()
    }

    /// Connects to NATS, checks that its servers keep what a receipt promises, and reads what all brokers share. With
    /// `shares_agents`, the agents of the data folder are those of the cluster from then on.
    pub async fn open(&self, data: &Path, core: CoreOptions, shares_agents: bool) -> Result<OpenCluster, Failure> {
        let partitions = self.options.check()?;
        let folder = data.to_owned();
        let opened = spawn_blocking(move || Mirrors::open(&folder)).await;
        let mirrors = opened.map_err(|error| MirrorError::Io(error.into())).flatten();
        let mirrors = mirrors.map_err(|source| Failure::ClusterFolder { folder: data.to_owned(), source })?;
        let cluster = self.options.connect(&self.nats).await?;
        let identity = cluster.identity(partitions).await?;
        let name = uuid::Uuid::new_v4().to_string();
        let agents = match shares_agents {
            true => Some(cluster.agents(AgentsFolder::new(data)).await?),
            false => None,
        };
        let hosts = cluster.hosts(&identity, &name).await?;
        let mailboxes = ClusterMailboxes::new(ClusterMailboxesOptions {
            identity: StoreIdentity { id: identity.id.clone(), seed: identity.seed },
            partitions,
            hosts: Arc::new(hosts.directory.clone()),
            core,
        });
        let following = Following { _hosts: hosts, _agents: agents };
        Ok(OpenCluster { cluster, identity, partitions, name, mirrors, following, mailboxes })
    }

    /// The address of this broker for the others.
    pub fn advertised(&self, listening: SocketAddr) -> Result<String, Failure> {
        match &self.advertise {
            Some(address) => Ok(address.clone()),
            None if listening.ip().is_unspecified() => Err(Failure::NoAdvertisedAddress { address: listening }),
            None => Ok(listening.to_string()),
        }
    }
}

impl NatsArgs {
    /// Checks what can be checked without a connection. Returns the number of partitions.
    pub fn check(&self) -> Result<Partitions, Failure> {
        if self.replicas < 3 && !self.allow_single {
            return Err(Failure::TooFewReplicas { replicas: self.replicas });
        }
        Partitions::new(self.partitions).ok_or(Failure::Partitions { wanted: self.partitions })
    }

    /// Connects to NATS, and checks that its servers keep what a receipt promises.
    pub async fn connect(&self, servers: &[String]) -> Result<Cluster, Failure> {
        let options = ClusterOptions {
            credentials: self.nats_creds.clone(),
            tls: NatsTls { required: self.nats_ca.is_some(), ca_file: self.nats_ca.clone() },
            name: self.cluster.clone(),
            replicas: self.replicas,
            max_bytes: self.stream_limit << 20,
            ..ClusterOptions::new(servers.to_vec())
        };
        let cluster = Cluster::connect(options).await?;
        if !self.accept_async_sync {
            check_sync(&self.nats_monitor).await?;
        }
        Ok(cluster)
    }
}

impl OpenCluster {
    /// When the cluster was created.
    pub fn created(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.identity.created_ms)
    }
}

/// A broker that is about to join its cluster.
pub struct Joining {
    cluster: OpenCluster,
    address: String,
    is_secure: bool,
    max_frame: usize,
}

/// A broker in its cluster.
pub struct Member {
    stop: CancellationToken,
    running: JoinHandle<()>,
    _following: Following,
}

impl Joining {
    pub fn new(cluster: OpenCluster, address: String, is_secure: bool, max_frame: usize) -> Self {
        Self { cluster, address, is_secure, max_frame }
    }

    /// Joins the cluster: the broker accepts links of other brokers, and serves its share of the partitions.
    pub async fn join(self, server: &BrokerServer) -> Result<Member, Failure> {
        let Self { cluster, address, is_secure, max_frame } = self;
        let OpenCluster { cluster, identity, partitions, name, mirrors, following, mailboxes } = cluster;
        let link_options = LinkOptions { tls: is_secure, ..LinkOptions::new(&name, identity.link_secret) };
        // A client can submit several messages at once.
        let max_frame_bytes = link_options.max_frame_bytes.max(max_frame.saturating_mul(4));
        let max_queued_bytes = link_options.max_queued_bytes.max(max_frame_bytes.saturating_mul(4));
        let link_options = LinkOptions { max_frame_bytes, max_queued_bytes, ..link_options };
        let links = Links::new(link_options, Arc::clone(&mailboxes) as _);
        server.set_links(Arc::clone(&links));
        let place = mirrors.place().to_owned();
        let mirrors = Arc::new(mirrors);
        let creating = Arc::clone(&mirrors);
        let options = OwnershipOptions {
            name,
            address,
            place,
            partitions,
            lease: LeaseOptions::default(),
            key: identity.checksum_key(),
            mirror: Arc::new(move |partition| creating.create(partition)),
        };
        let ownership = Ownership::join(&cluster, options).await?;
        let stop = CancellationToken::new();
        let membership = Membership { mailboxes, links, mirrors };
        let running = tokio::spawn(membership.run(ownership, stop.clone()));
        Ok(Member { stop, running, _following: following })
    }
}

impl Member {
    /// Gives all partitions to other brokers, and waits until they may take them over.
    pub async fn leave(self) {
        self.stop.cancel();
        self.running.await.ok();
    }
}
