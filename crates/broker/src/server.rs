//! The listener: accepts connections, enforces connection limits, and shuts down gracefully.

use crate::agent_ends;
use crate::app::HttpApp;
use crate::backend::Backend;
use crate::connection;
use crate::core::BrokerCore;
use crate::error::{BrokerError, BrokerResult};
use crate::handshake;
use crate::http::{self, HttpPeer};
use crate::links::Links;
use crate::names::{BrokerNames, SendRules};
use crate::refusal_log::RefusalLog;
use crate::shares::{ShareLimits, Shares};
use crate::tls::{Tls, TlsSettings};
use hashbrown::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolbus_audit::AuditLog;
use toolbus_base::BoxFuture;
use toolbus_engine::{Names, Share};
use toolbus_identity::{AuthRefusal, Authenticator, Credential, Identity, Rights, SharedToken};
use toolbus_policy::PolicySet;
use toolbus_protocol::{AgentRef, BrokerKey, ClientLink, ErrorCode, Limits, check_name, link};

/// Options of [`BrokerServer`].
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Maximum number of connections.
    pub max_connections: usize,
    /// Maximum number of requests per second, of which each agent has a share. One that exceeds it is read from more slowly.
    pub max_requests: u64,
    /// Maximum size of input that has not arrived completely: frames of the bus and bodies of HTTP requests.
    pub max_input_bytes: u64,
    /// Maximum number of connections that are not authenticated yet.
    pub max_unknown_peers: usize,
    /// Maximum size of a frame in bytes.
    pub max_frame_bytes: usize,
    /// Timeout of each step before a peer is authenticated: TLS handshake, first request, `hello`.
    pub hello_timeout: Duration,
    /// A silent peer is pinged after 1.5 heartbeats and disconnected after 2.5.
    pub heartbeat: Duration,
    /// Origins of web pages that may connect; empty by default.
    pub allowed_origins: Vec<String>,
    /// Accepted `Host` names besides IP addresses and `localhost`. An entry with a port allows only that port.
    pub allowed_hosts: Vec<String>,
    /// Maximum duration of a shutdown.
    pub stop_limit: Duration,
    /// Audit log of connections and refusals.
    pub audit: Option<AuditLog>,
    /// TLS settings; without them connections are in plain text.
    pub tls: Option<TlsSettings>,
    /// Proves to clients on this machine that this broker belongs to its data folder.
    pub broker_key: Option<BrokerKey>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_connections: 4096,
            max_requests: 100_000,
            max_input_bytes: 96 << 20,
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

/// Serves a [`BrokerCore`], or another [`Backend`], on a listener.
pub struct BrokerServer {
    shared: Arc<ServerShared>,
    /// Makes `serve` shut down.
    stop_serving: CancellationToken,
}

pub(crate) struct ServerShared {
    pub core: Arc<dyn Backend>,
    pub authenticator: Arc<dyn Authenticator>,
    pub names: Arc<BrokerNames>,
    /// Names of in-process agents; remote peers can't use them.
    reserved: RwLock<HashSet<String>>,
    pub shares: Arc<Shares>,
    pub options: ServerOptions,
    apps: RwLock<Vec<(&'static str, Arc<dyn HttpApp>)>>,
    links: RwLock<Option<Arc<Links>>>,
    unknown_peers: Arc<Semaphore>,
    pub refusal_log: RefusalLog,
    pub connections: TaskTracker,
    /// Ends all connections.
    pub stop: CancellationToken,
    draining: AtomicBool,
}

impl BrokerServer {
    /// A server with default options whose peers share one token.
    pub fn new(core: Arc<BrokerCore>, token: impl Into<String>) -> Arc<Self> {
        Self::with_options(core, Box::new(SharedToken::new(token)), ServerOptions::default())
    }

    /// A server with its own authenticator and options.
    pub fn with_options(
        core: Arc<impl Backend>,
        authenticator: Box<dyn Authenticator>,
        options: ServerOptions,
    ) -> Arc<Self> {
        Self::with_authenticator(core, Arc::from(authenticator), options)
    }

    /// Like [`with_options`](Self::with_options), for an authenticator that is shared with other components.
    pub fn with_authenticator(
        core: Arc<impl Backend>,
        authenticator: Arc<dyn Authenticator>,
        options: ServerOptions,
    ) -> Arc<Self> {
        let names = Arc::new(BrokerNames::new(Arc::clone(&authenticator), core.hosts()));
        core.set_names(Arc::clone(&names) as Arc<dyn Names>);
        let shares = Shares::new(
            ShareLimits {
                connections: options.max_connections as u64,
                input_bytes: options.max_input_bytes,
                requests: options.max_requests,
            },
            Arc::clone(&names) as Arc<dyn Names>,
        );
        let shared = Arc::new(ServerShared {
            core,
            authenticator,
            names,
            shares,
            reserved: RwLock::default(),
            unknown_peers: Arc::new(Semaphore::new(options.max_unknown_peers)),
            refusal_log: RefusalLog::default(),
            options,
            apps: RwLock::default(),
            links: RwLock::default(),
            connections: TaskTracker::new(),
            stop: CancellationToken::new(),
            draining: AtomicBool::new(false),
        });
        Arc::new(Self { shared, stop_serving: CancellationToken::new() })
    }

    /// Mounts an application that handles all requests to `path`.
    pub fn mount(&self, path: &'static str, app: Arc<dyn HttpApp>) {
        self.shared.apps.write().expect("no code panics while holding the apps lock").push((path, app));
    }

    /// Serves links of the other brokers of the cluster, until [`BrokerServer::stop`]: a draining broker still owns its
    /// partitions.
    pub fn set_links(&self, links: Arc<Links>) {
        *self.shared.links.write().expect("no code panics while holding the links lock") = Some(links);
    }

    /// Replaces the rules for unsolicited messages. Without rules only operators may send them.
    pub fn set_send_rules(&self, rules: Arc<dyn SendRules>) {
        self.shared.names.set_rules(rules);
    }

    /// Replaces the rules about which host may offer which name. Blocks on disk I/O.
    pub fn set_offer_rules(&self, rules: Arc<PolicySet>) {
        self.shared.core.hosts().set_rules(rules);
    }

    /// Reserves a name for an in-process agent: remote peers whose credential has this name are refused. Does not apply
    /// to peers with a shared token, which may choose any name.
    pub fn reserve(&self, name: &str) {
        self.shared.reserved.write().expect("no code panics while holding the names lock").insert(name.to_owned());
    }

    /// How much of each resource an agent of the role may use.
    pub fn share(&self, role: Option<&str>) -> Share {
        self.shared.names.share(role)
    }

    /// Follows the agents of the authenticator's registry: what an agent began ends with its credential, also if that ended
    /// while no broker was running. [`BrokerServer::serve`] includes it; call it before an in-process agent connects, and
    /// after its name is reserved. Blocks on disk I/O.
    pub fn follow_agents(&self) {
        let server = Arc::downgrade(&self.shared);
        self.shared.authenticator.follow_agents(Arc::new(move |agents| agent_ends::update(&server, agents)));
    }

    /// Authenticates a credential, for applications that authenticate their clients themselves. Refusals are audited.
    pub fn authenticate(&self, credential: &Credential<'_>) -> Result<Identity, AuthRefusal> {
        let outcome = self.shared.authenticate(credential);
        if let (Err(refusal), Some(audit)) = (&outcome, &self.shared.options.audit) {
            audit.connection_refused(refusal.code.code());
        }
        outcome
    }

    /// Opens an in-process bus connection with unrestricted rights, without a socket or a token. The other end of the
    /// link is served like any connection, as `agent`, and counts towards the connection limit. Must be called within a
    /// tokio runtime.
    pub fn attach(&self, agent: AgentRef) -> BrokerResult<ClientLink> {
        self.attach_as(Identity::local(agent, Rights::UNRESTRICTED))
    }

    /// Like [`attach`](Self::attach), with the given identity and rights.
    pub fn attach_as(&self, identity: Identity) -> BrokerResult<ClientLink> {
        for name in std::iter::once(&identity.agent.session_id).chain(&identity.agent.role) {
            check_name(name).map_err(BrokerError::BadName)?;
        }
        let counted = self.shared.shares.connect(&identity).ok_or(BrokerError::NoSeat)?;
        let (theirs, ours) = link();
        let server = Arc::clone(&self.shared);
        let accepted = handshake::accept_link(ours, identity, counted, &server);
        self.shared.connections.spawn(async move { connection::serve(accepted, &server).await });
        Ok(theirs)
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn shared(&self) -> &Arc<ServerShared> {
        &self.shared
    }

    /// Announces a stop: `/readyz` answers 503, so that load balancers send no more clients, and new bus connections are
    /// refused with TB0209. Everything else is served until [`BrokerServer::stop`].
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
    }

    /// Makes [`BrokerServer::serve`] shut down: accepted messages become durable, receipts are sent, connections close.
    /// Includes [`BrokerServer::drain`].
    pub fn stop(&self) {
        self.stop_serving.cancel();
    }

    /// Serves until [`BrokerServer::stop`] is called or storage fails. If the future is dropped, as by aborting its task,
    /// the connections end too, and the data folder can be opened again.
    pub fn serve(self: Arc<Self>, listener: TcpListener) -> BoxFuture<'static, BrokerResult<()>> {
        Box::pin(self.run(listener))
    }

    async fn run(self: Arc<Self>, listener: TcpListener) -> BrokerResult<()> {
        let _ended = Serving::begin(&self.shared);
        let following = Arc::clone(&self);
        // It may write to the mailboxes' log, which blocks.
        tokio::task::spawn_blocking(move || following.follow_agents()).await.ok();
        let bound = listener.local_addr()?;
        let tls = self.shared.options.tls.clone().map(Tls::load).transpose();
        let tls = tls.map_err(|error| BrokerError::Tls(Arc::new(error)))?.map(Arc::new);
        let limit = self.shared.options.stop_limit;
        let outcome = tokio::select! {
            () = self.accept_loop(listener, bound, tls.as_ref()) => Ok(()),
            () = follow_certificate(tls.clone()) => Ok(()),
            failure = self.shared.core.failed() => Err(failure),
            // Health checks are answered until all messages are durable.
            () = self.drain_once_stopped(limit / 2) => Ok(()),
        };
        self.drain();
        self.shared.apps().iter().for_each(|(_, app)| app.stopping());
        self.shared.stop.cancel();
        self.shared.connections.close();
        tokio::time::timeout(limit / 2, self.shared.connections.wait()).await.ok();
        match outcome {
            Ok(()) if self.shared.core.has_failed() => Err(self.shared.core.failed().await),
            outcome => outcome,
        }
    }

    async fn drain_once_stopped(&self, limit: Duration) {
        self.stop_serving.cancelled().await;
        self.drain();
        self.shared.core.drain(limit).await;
    }

    /// Never returns: errors of `accept` (such as running out of file descriptors) are transient, so it retries.
    async fn accept_loop(&self, listener: TcpListener, bound: SocketAddr, tls: Option<&Arc<Tls>>) {
        let mut is_failing = false;
        loop {
            match listener.accept().await {
                Ok((socket, address)) => {
                    is_failing = false;
                    let Some(permit) = self.shared.try_unknown_peer_permit() else {
                        tracing::debug!("dropped a connection: limit of unauthenticated peers reached");
                        continue;
                    };
                    if let Err(error) = socket.set_nodelay(true) {
                        tracing::debug!(%error, "a connection failed right after accept");
                        continue;
                    }
                    let peer = HttpPeer::new(Arc::clone(&self.shared), bound, address, permit);
                    self.shared.connections.spawn(http::serve(socket, tls.cloned(), peer));
                }
                Err(error) => {
                    if !is_failing {
                        tracing::error!(%error, "can't accept connections; retrying");
                    }
                    is_failing = true;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

/// Ends what a server leaves behind, also if its future is dropped.
struct Serving(Arc<ServerShared>);

impl Serving {
    fn begin(server: &Arc<ServerShared>) -> Self {
        server.core.set_served(true);
        Self(Arc::clone(server))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.stop.cancel();
        self.0.core.set_served(false);
    }
}

/// Reloads the TLS certificate when its files change. Never returns.
async fn follow_certificate(tls: Option<Arc<Tls>>) {
    match tls {
        Some(tls) => tls.follow().await,
        None => std::future::pending().await,
    }
}

impl ServerShared {
    pub fn authenticate(&self, credential: &Credential<'_>) -> Result<Identity, AuthRefusal> {
        let identity = self.authenticator.authenticate(credential)?;
        if !identity.rights.unrestricted && self.is_reserved(identity.principal()) {
            let reason =
                format!("the name {:?} is reserved for an agent in the broker's process", identity.principal());
            return Err(AuthRefusal::new(ErrorCode::NotYourName, reason));
        }
        Ok(identity)
    }

    /// Whether an agent in the broker's process has that name.
    pub fn is_reserved(&self, name: &str) -> bool {
        self.reserved.read().expect("no code panics while holding the names lock").contains(name)
    }

    pub fn try_unknown_peer_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.unknown_peers).try_acquire_owned().ok()
    }

    pub fn app_at(&self, path: &str) -> Option<Arc<dyn HttpApp>> {
        self.apps().iter().find(|(mounted, _)| *mounted == path).map(|(_, app)| Arc::clone(app))
    }

    fn apps(&self) -> RwLockReadGuard<'_, Vec<(&'static str, Arc<dyn HttpApp>)>> {
        self.apps.read().expect("no code panics while holding the apps lock")
    }

    pub fn links(&self) -> Option<Arc<Links>> {
        self.links.read().expect("no code panics while holding the links lock").clone()
    }

    /// Whether a stop was announced, so that new bus connections are refused.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub fn ready(&self) -> Result<(), String> {
        if self.core.has_failed() {
            return Err("storage failed\n".into());
        }
        if self.is_draining() {
            return Err("stopping\n".into());
        }
        self.core.unready().map_or(Ok(()), |reason| Err(format!("{reason}\n")))
    }

    /// The limits for `welcome`. With unrestricted rights any peer may be a host, so the window of hosts applies only
    /// after it has announced itself.
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
