//! The listener: accepts, counts, and stops in order.

use crate::app::HttpApp;
use crate::connection;
use crate::core::BrokerCore;
use crate::error::{BrokerError, BrokerResult};
use crate::handshake;
use crate::http::{self, Visitor};
use crate::names::{BrokerNames, SendRules};
use crate::prefixed::Prefixed;
use crate::presented::Presented;
use crate::tls::{Tls, TlsSettings};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;
use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolbus_audit::AuditLog;
use toolbus_engine::Names;
use toolbus_identity::{AuthRefusal, Authenticator, Credential, Identity, Rights, SharedToken};
use toolbus_protocol::{AgentRef, BrokerKey, ErrorCode, Limits, check_name};

/// Bytes on their way through a pipe within the process, in each direction.
const PIPE_BYTES: usize = 256 << 10;

#[derive(Debug, Clone)]
pub struct ServerOptions {
    pub max_connections: usize,
    /// Connections of one agent, so that none takes all seats. Where one token is shared by all, there are no agents.
    pub max_connections_per_agent: usize,
    /// Connections that have not said hello yet.
    pub max_unknown_peers: usize,
    pub max_frame_bytes: usize,
    /// How long a peer may take to say hello.
    pub hello_timeout: Duration,
    /// A silent peer is asked for a sign of life after one and a half of these, and given up after two and a half.
    pub heartbeat: Duration,
    /// Origins of web pages that may connect. None by default.
    pub allowed_origins: Vec<String>,
    /// Names that clients may call this broker by, beside addresses and `localhost`; with a port, that port only.
    pub allowed_hosts: Vec<String>,
    /// How long stopping may take.
    pub stop_limit: Duration,
    /// Where connections and refusals are written down.
    pub audit: Option<AuditLog>,
    /// Without it connections are in plain text.
    pub tls: Option<TlsSettings>,
    /// Proves to clients on this machine that this broker belongs to its data folder.
    pub broker_key: Option<BrokerKey>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_connections: 4096,
            max_connections_per_agent: 1024,
            max_unknown_peers: 512,
            max_frame_bytes: 16 << 20,
            hello_timeout: Duration::from_secs(5),
            heartbeat: Duration::from_secs(10),
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            stop_limit: Duration::from_secs(4),
            audit: None,
            tls: None,
            broker_key: None,
        }
    }
}

/// The broker on a listener.
pub struct BrokerServer {
    shared: Arc<ServerShared>,
    /// Asks `serve` to return.
    stop_serving: CancellationToken,
}

pub(crate) struct ServerShared {
    pub core: Arc<BrokerCore>,
    pub authenticator: Arc<dyn Authenticator>,
    pub names: Arc<BrokerNames>,
    /// Names of agents in this process, which nobody comes with from outside.
    reserved: RwLock<HashSet<String>>,
    /// How many connections each agent has.
    present: Mutex<HashMap<String, usize>>,
    pub options: ServerOptions,
    apps: RwLock<Vec<(&'static str, Arc<dyn HttpApp>)>>,
    seats: Arc<Semaphore>,
    unknown_peers: Arc<Semaphore>,
    pub connections: TaskTracker,
    /// Ends the connections.
    pub stop: CancellationToken,
    draining: AtomicBool,
}

impl BrokerServer {
    pub fn new(core: Arc<BrokerCore>, token: impl Into<String>) -> Arc<Self> {
        Self::with_options(core, Box::new(SharedToken::new(token)), ServerOptions::default())
    }

    pub fn with_options(
        core: Arc<BrokerCore>,
        authenticator: Box<dyn Authenticator>,
        options: ServerOptions,
    ) -> Arc<Self> {
        Self::with_authenticator(core, Arc::from(authenticator), options)
    }

    /// The same for an authenticator that others use as well.
    pub fn with_authenticator(
        core: Arc<BrokerCore>,
        authenticator: Arc<dyn Authenticator>,
        options: ServerOptions,
    ) -> Arc<Self> {
        let names = Arc::new(BrokerNames::new(Arc::clone(&authenticator), core.hosts()));
        core.set_names(Arc::clone(&names) as Arc<dyn Names>);
        let shared = Arc::new(ServerShared {
            core,
            authenticator,
            names,
            reserved: RwLock::default(),
            present: Mutex::default(),
            seats: Arc::new(Semaphore::new(options.max_connections)),
            unknown_peers: Arc::new(Semaphore::new(options.max_unknown_peers)),
            options,
            apps: RwLock::default(),
            connections: TaskTracker::new(),
            stop: CancellationToken::new(),
            draining: AtomicBool::new(false),
        });
        Arc::new(Self { shared, stop_serving: CancellationToken::new() })
    }

    /// Lets an application answer all requests to that path.
    pub fn mount(&self, path: &'static str, app: Arc<dyn HttpApp>) {
        self.shared.apps.write().expect("no code panics while it holds the apps").push((path, app));
    }

    /// Who may write to whom from now on. Without rules nobody may who is not an operator.
    pub fn set_send_rules(&self, rules: Arc<dyn SendRules>) {
        self.shared.names.set_rules(rules);
    }

    /// Keeps a name for an agent in this process: whoever comes with a credential for it is refused. Where all share one
    /// token, names belong to nobody.
    pub fn reserve(&self, name: &str) {
        self.shared.reserved.write().expect("no code panics while it holds the names").insert(name.to_owned());
    }

    /// Who a peer with that credential is; for applications, which meet their peers by themselves.
    pub fn authenticate(&self, credential: &Credential<'_>) -> Result<Identity, AuthRefusal> {
        let outcome = self.shared.authenticate(credential);
        if let (Err(refusal), Some(audit)) = (&outcome, &self.shared.options.audit) {
            audit.connection_refused(refusal.code.code());
        }
        outcome
    }

    /// A bus connection for code in this process, without a socket or a token: the other end of the pipe is served like
    /// any connection, as that agent, without limits to what it may do. Takes a seat. Has to be called within a tokio
    /// runtime.
    pub fn attach(&self, agent: AgentRef) -> BrokerResult<DuplexStream> {
        self.attach_as(Identity::local(agent, Rights::UNRESTRICTED))
    }

    /// The same for an agent whose rights are known.
    pub fn attach_as(&self, identity: Identity) -> BrokerResult<DuplexStream> {
        for name in std::iter::once(&identity.agent.session_id).chain(&identity.agent.role) {
            check_name(name).map_err(BrokerError::BadName)?;
        }
        let seat = self.shared.take_seat().ok_or(BrokerError::NoSeat)?;
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let server = Arc::clone(&self.shared);
        self.shared.connections.spawn(async move {
            let _seat = seat;
            let pipe = Prefixed::new(Bytes::new(), ours);
            if let Some(greeted) = handshake::greet(pipe, Presented::known_as(identity), &server).await {
                connection::serve(greeted, &server).await;
            }
        });
        Ok(theirs)
    }

    /// Makes [`BrokerServer::serve`] finish: accepted messages become durable, receipts go out, connections close.
    pub fn stop(&self) {
        self.stop_serving.cancel();
    }

    /// Serves until [`BrokerServer::stop`] or until storage fails.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) -> BrokerResult<()> {
        let bound = listener.local_addr()?;
        let tls = self.shared.options.tls.clone().map(Tls::load).transpose();
        let tls = tls.map_err(|error| BrokerError::Tls(Arc::new(error)))?.map(Arc::new);
        let outcome = tokio::select! {
            () = self.accept_loop(listener, bound, tls.as_ref()) => Ok(()),
            () = follow(tls.clone()) => Ok(()),
            () = self.stop_serving.cancelled() => Ok(()),
            failure = self.shared.core.failed() => Err(failure),
        };
        self.shared.draining.store(true, Ordering::Relaxed);
        let limit = self.shared.options.stop_limit;
        if outcome.is_ok() {
            self.shared.core.drain(limit / 2).await;
        }
        self.shared.stop.cancel();
        self.shared.connections.close();
        tokio::time::timeout(limit / 2, self.shared.connections.wait()).await.ok();
        match outcome {
            Ok(()) if self.shared.core.has_failed() => Err(self.shared.core.failed().await),
            outcome => outcome,
        }
    }

    /// Never ends by itself: an error of `accept` (such as no descriptors left) passes, a broker that stopped
    /// accepting would not.
    async fn accept_loop(&self, listener: TcpListener, bound: SocketAddr, tls: Option<&Arc<Tls>>) {
        let mut troubled = false;
        loop {
            match listener.accept().await {
                Ok((socket, peer)) => {
                    troubled = false;
                    let Ok(permit) = Arc::clone(&self.shared.unknown_peers).try_acquire_owned() else {
                        tracing::debug!("too many peers that have not said hello; one more is dropped");
                        continue;
                    };
                    if let Err(error) = socket.set_nodelay(true) {
                        tracing::debug!(%error, "a connection ended at once");
                        continue;
                    }
                    let visitor = Visitor::new(Arc::clone(&self.shared), bound, peer, permit);
                    self.shared.connections.spawn(http::serve(socket, tls.cloned(), visitor));
                }
                Err(error) => {
                    if !troubled {
                        tracing::error!(%error, "can't accept connections; trying again");
                    }
                    troubled = true;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

/// Follows the certificate's files. Never ends.
async fn follow(tls: Option<Arc<Tls>>) {
    match tls {
        Some(tls) => tls.follow().await,
        None => std::future::pending().await,
    }
}

/// Counts a connection of an agent as long as it lives.
pub(crate) struct AgentPlace {
    server: Arc<ServerShared>,
    agent: String,
}

impl Drop for AgentPlace {
    fn drop(&mut self) {
        let mut present = self.server.present.lock().expect("no code panics while it counts");
        if let Some(count) = present.get_mut(&self.agent) {
            *count -= 1;
            if *count == 0 {
                present.remove(&self.agent);
            }
        }
    }
}

impl ServerShared {
    /// None if the agent has as many connections as it may.
    pub fn take_place(self: &Arc<Self>, identity: &Identity) -> Option<AgentPlace> {
        let agent = identity.principal().to_owned();
        let mut present = self.present.lock().expect("no code panics while it counts");
        let count = present.entry(agent.clone()).or_insert(0);
        if !identity.rights.unrestricted && *count >= self.options.max_connections_per_agent {
            return None;
        }
        *count += 1;
        drop(present);
        Some(AgentPlace { server: Arc::clone(self), agent })
    }

    pub fn authenticate(&self, credential: &Credential<'_>) -> Result<Identity, AuthRefusal> {
        let identity = self.authenticator.authenticate(credential)?;
        let reserved = self.reserved.read().expect("no code panics while it holds the names");
        if !identity.rights.unrestricted && reserved.contains(identity.principal()) {
            let reason = format!("the name {:?} belongs to an agent in the broker's own process", identity.principal());
            return Err(AuthRefusal::new(ErrorCode::NotYourName, reason));
        }
        Ok(identity)
    }

    pub fn take_seat(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.seats).try_acquire_owned().ok()
    }

    pub fn app_at(&self, path: &str) -> Option<Arc<dyn HttpApp>> {
        let apps = self.apps.read().expect("no code panics while it holds the apps");
        apps.iter().find(|(mounted, _)| *mounted == path).map(|(_, app)| Arc::clone(app))
    }

    pub fn ready(&self) -> Result<(), String> {
        if self.core.has_failed() {
            return Err("storage failed\n".into());
        }
        if self.draining.load(Ordering::Relaxed) {
            return Err("stopping\n".into());
        }
        if self.core.disk_low() {
            return Err("the disk is nearly full; no new messages are taken\n".into());
        }
        Ok(())
    }

    /// Where everybody may be a host, it is known only once a peer announces itself.
    pub fn announced_limits(&self, rights: Rights) -> Limits {
        let window = self.core.window(rights.host && !rights.unrestricted);
        Limits {
            max_frame_bytes: self.options.max_frame_bytes as u64,
            window_messages: window.messages as u64,
            window_bytes: window.bytes,
        }
    }
}

impl From<std::io::Error> for BrokerError {
    fn from(error: std::io::Error) -> Self {
        Self::Listen(Arc::new(error))
    }
}
