//! A broker in this process, on a free loopback port, in a temporary folder.

use super::{Credentials, Peer, TOKEN, hello, hello_compact, hello_v2, within};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use toolbus_broker::{Authenticator, BrokerCore, BrokerResult, BrokerServer, CoreOptions, ServerOptions, SharedToken};
use toolbus_policy::PolicySet;

/// Options of a test broker.
#[derive(Default)]
pub struct Setup {
    pub server: ServerOptions,
    pub core: CoreOptions,
}

pub struct Bus {
    pub address: SocketAddr,
    server: Arc<BrokerServer>,
    serving: JoinHandle<BrokerResult<()>>,
    folder: TempDir,
}

impl Bus {
    pub async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    pub fn set_offer_rules(&self, rules: Arc<PolicySet>) {
        self.server.set_offer_rules(rules);
    }

    pub async fn with(setup: Setup) -> Self {
        Self::reopen(TempDir::new().expect("a folder"), setup).await
    }

    /// A bus on the data folder of an earlier one.
    pub async fn reopen(folder: TempDir, setup: Setup) -> Self {
        Self::open(folder, setup, Box::new(SharedToken::new(TOKEN))).await
    }

    /// A bus whose agents have credentials of their own.
    pub async fn with_credentials(setup: Setup, credentials: &Credentials) -> Self {
        Self::open(TempDir::new().expect("a folder"), setup, Box::new(credentials.clone())).await
    }

    pub async fn open(folder: TempDir, setup: Setup, authenticator: Box<dyn Authenticator>) -> Self {
        let core = BrokerCore::open(folder.path(), setup.core).expect("the folder opens");
        let server = BrokerServer::with_options(core, authenticator, setup.server);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let serving = tokio::spawn(Arc::clone(&server).serve(listener));
        Self { address, server, serving, folder }
    }

    /// Aborts the server while its connections are open. Returns its folder.
    pub async fn abort(self) -> TempDir {
        self.serving.abort();
        self.serving.await.expect_err("it was aborted");
        self.folder
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn server(&self) -> &BrokerServer {
        &self.server
    }

    /// Starts the shutdown without waiting for its end.
    pub fn begin_stop(&self) {
        self.server.stop();
    }

    /// Shuts the bus down and returns its data folder.
    pub async fn stop(self) -> TempDir {
        self.server.stop();
        let outcome = within("the bus to stop", self.serving).await.expect("serving does not panic");
        outcome.expect("the bus stops without a failure");
        self.folder
    }

    /// A version 1 peer: its `hello` has no version.
    pub async fn peer(&self, name: &str) -> Peer {
        Peer::join(self.address, hello(name)).await
    }

    pub async fn peer_v2(&self, name: &str) -> Peer {
        Peer::join(self.address, hello_v2(name)).await
    }

    pub async fn compact_peer(&self, name: &str) -> Peer {
        Peer::join(self.address, hello_compact(name)).await
    }

    /// A version 1 peer on a pipe instead of a socket. Its reads and writes need no help of the system, so a test can
    /// pause the clock meanwhile.
    pub async fn piped_peer(&self, name: &str) -> Peer<DuplexStream> {
        let (ours, theirs) = tokio::io::duplex(256 << 10);
        self.server.serve_peer(theirs);
        Peer::on_pipe(ours, hello(name)).await
    }

    pub async fn subscriber(&self, name: &str) -> Peer {
        let mut peer = self.peer(name).await;
        peer.subscribe().await;
        peer
    }
}
