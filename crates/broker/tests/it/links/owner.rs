//! The broker that owns a partition, and the way to it.

use crate::support::TOKEN;
use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use toolbus_broker::{
    BrokerCore, BrokerResult, BrokerServer, CoreOptions, Link, LinkError, LinkOptions, Links, LocalPartition,
    LocalPartitions, ServerOptions, SharedToken, TlsSettings,
};
use toolbus_cluster::Partition;
use toolbus_engine::Mailboxes;

pub const OWNER: &str = "owner";
pub const PARTITION: Partition = Partition(3);
pub const EPOCH: u64 = 7;
pub const SECRET: [u8; 32] = [9; 32];

/// Partitions in this process, of one epoch.
#[derive(Default)]
pub struct Owned(Mutex<HashMap<Partition, LocalPartition>>);

impl Owned {
    pub fn insert(&self, partition: Partition, mailboxes: Arc<dyn Mailboxes>) {
        self.lock().insert(partition, LocalPartition { mailboxes, ended: CancellationToken::new() });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Partition, LocalPartition>> {
        self.0.lock().expect("no panic while holding the lock")
    }
}

impl LocalPartitions for Owned {
    fn local(&self, partition: Partition, epoch: u64) -> Option<LocalPartition> {
        self.lock().get(&partition).filter(|local| epoch == EPOCH && !local.ended.is_cancelled()).cloned()
    }

    fn end_links(&self, partition: Partition) {
        self.lock().get(&partition).iter().for_each(|local| local.ended.cancel());
    }
}

/// How an owner is started.
pub struct OwnerSetup {
    pub server: ServerOptions,
    pub links: LinkOptions,
    pub partitions: Arc<dyn LocalPartitions>,
    pub is_tls: bool,
}

impl OwnerSetup {
    pub fn new(partitions: Arc<dyn LocalPartitions>) -> Self {
        let links = LinkOptions::new(OWNER, SECRET);
        Self { server: ServerOptions::default(), links, partitions, is_tls: false }
    }
}

pub struct Owner {
    pub address: SocketAddr,
    pub server: Arc<BrokerServer>,
    pub links: Arc<Links>,
    serving: JoinHandle<BrokerResult<()>>,
    _folder: TempDir,
}

impl Owner {
    pub async fn start(setup: OwnerSetup) -> Self {
        let folder = TempDir::new().expect("a folder");
        let core = BrokerCore::open(&folder.path().join("own"), CoreOptions::default()).expect("the folder opens");
        let tls = setup.is_tls.then(|| certificate(&folder));
        let options = ServerOptions { tls, ..setup.server };
        let server = BrokerServer::with_options(core, Box::new(SharedToken::new(TOKEN)), options);
        let links = Links::new(setup.links, setup.partitions);
        server.set_links(Arc::clone(&links));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let serving = tokio::spawn(Arc::clone(&server).serve(listener));
        Self { address, server, links, serving, _folder: folder }
    }

    pub async fn stop(self) {
        self.server.stop();
        self.serving.await.expect("serving does not panic").expect("the server stops without a failure");
    }
}

/// A self-signed certificate, in files.
pub fn certificate(folder: &TempDir) -> TlsSettings {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let (certificate, key) = (folder.path().join("c.pem"), folder.path().join("k.pem"));
    fs::write(&certificate, made.cert.pem()).expect("written");
    fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    TlsSettings { certificate, key, client_ca: None }
}

/// A core in a folder of its own, which owns nothing else.
pub fn core() -> (Arc<BrokerCore>, TempDir) {
    let folder = TempDir::new().expect("a folder");
    let options = CoreOptions { first_seq: PARTITION.first_seq(), ..CoreOptions::default() };
    (BrokerCore::open(&folder.path().join("core"), options).expect("the folder opens"), folder)
}

/// A broker with [`PARTITION`] and its mailboxes.
pub struct OwnerOfOne {
    pub owner: Owner,
    pub core: Arc<BrokerCore>,
    pub partitions: Arc<Owned>,
    _folder: TempDir,
}

impl OwnerOfOne {
    pub async fn start() -> Self {
        Self::with(|_| ()).await
    }

    pub async fn with(change: impl FnOnce(&mut OwnerSetup)) -> Self {
        let (core, folder) = core();
        let partitions = Arc::new(Owned::default());
        partitions.insert(PARTITION, Arc::clone(&core) as Arc<dyn Mailboxes>);
        let mut setup = OwnerSetup::new(Arc::clone(&partitions) as Arc<dyn LocalPartitions>);
        change(&mut setup);
        Self { owner: Owner::start(setup).await, core, partitions, _folder: folder }
    }

    pub fn address(&self) -> SocketAddr {
        self.owner.address
    }
}

pub fn front_options() -> LinkOptions {
    LinkOptions::new("front", SECRET)
}

/// A link to [`PARTITION`] in [`EPOCH`] at that address.
pub async fn open(address: SocketAddr, options: LinkOptions) -> Result<Link, LinkError> {
    let links = Links::new(options, Arc::new(Owned::default()));
    links.open(OWNER, &address.to_string(), PARTITION, EPOCH).await
}
