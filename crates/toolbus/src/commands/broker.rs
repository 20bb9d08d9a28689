//! `toolbus broker`: serves the mailboxes over WebSocket, and the MCP endpoint, until SIGTERM or Ctrl-C.

use crate::cluster::{ClusterArgs, Joining, Member};
use crate::config::LocalBroker;
use crate::endpoint::{self, EndpointArgs};
use crate::failure::Failure;
use crate::folders;
use crate::host_state::open_audit;
use crate::hosting::Identities;
use crate::output::print_startup;
use crate::reach::dial_address;
use crate::reach::read_given_token;
use crate::reload;
use crate::send_rules::PolicySendRules;
use crate::stop::service_stop_signal;
use clap::Args;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpListener;
use toolbus_broker::{
    BrokerCore, BrokerServer, ClusterMailboxes, CoreOptions, ServerOptions, SharedToken, TlsSettings,
};
use toolbus_host::LivePolicy;
use toolbus_identity::{
    AuthConfig, Authenticator, CertificateAuthenticator, Chain, JwtAuthenticator, Registry, ensure_broker_key,
    ensure_credentials_of_member, ensure_local_credentials,
};
use toolbus_ship::{Shipper, Target};

pub const DEFAULT_PORT: u16 = 7420;

#[derive(Args)]
pub struct BrokerArgs {
    /// Address to listen on. Port 0 takes any free port. Default: `listen` in toolbus.toml, or 127.0.0.1:7420.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Folder for the mailboxes. Default: `data` in toolbus.toml, or TOOLBUS_DATA, or toolbus in the user's data folder.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// File with one token that all agents share, as in the original system: every holder may use any name and role. On
    /// loopback only. Without it, each agent has its own token (see `toolbus agent`).
    #[arg(long, value_name = "FILE")]
    shared_token_file: Option<PathBuf>,
    /// From the configuration file.
    #[arg(skip)]
    auth: AuthConfig,
    /// From the configuration file.
    #[arg(skip)]
    ship_audit: Option<Target>,
    /// Maximum number of connections.
    #[arg(long, default_value_t = ServerOptions::default().max_connections, value_name = "N")]
    max_connections: usize,
    /// Maximum size of a frame, in bytes.
    #[arg(long, default_value_t = ServerOptions::default().max_frame_bytes, value_name = "BYTES")]
    max_frame: usize,
    /// Origin of web pages that may connect, such as https://console.example. Can be repeated.
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Host name that clients may use for this broker, such as bus.example. IP addresses and localhost are always
    /// accepted. Can be repeated.
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Free disk space below which new messages are refused, in MiB.
    #[arg(long, default_value_t = CoreOptions::default().reserve_bytes >> 20, value_name = "MIB")]
    reserve: u64,
    /// TLS certificate with its intermediate certificates (PEM). Reloaded when it changes.
    #[arg(long, requires = "tls_key", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the TLS certificate (PEM).
    #[arg(long, requires = "tls_cert", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// CA certificates for client certificates (PEM). With it, clients can authenticate with a certificate.
    #[arg(long, requires = "tls_cert", value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// Listen without TLS on an address that other machines can reach: tokens and messages can be read on the network.
    #[arg(long)]
    insecure: bool,
}

/// A broker with open storage and a bound port, ready to serve.
pub struct OpenBroker {
    pub server: Arc<BrokerServer>,
    pub listener: TcpListener,
    pub address: SocketAddr,
    pub data: PathBuf,
    pub token_file: PathBuf,
    authenticator: Arc<dyn Authenticator>,
    /// Whether all agents share one token.
    pub shared_token: bool,
    /// Whether the port uses TLS.
    pub is_secure: bool,
    _shipper: Option<Shipper>,
    /// The cluster that it is to join.
    joining: Option<Joining>,
}

/// Where the mailboxes are.
enum Mailboxes {
    Folder(Arc<BrokerCore>),
    Cluster(Arc<ClusterMailboxes>),
}

#[derive(Args)]
pub struct BrokerCommandArgs {
    /// The toolbus.toml to read. Default: toolbus.toml in the working folder, or in ~/.config/toolbus.
    #[arg(long, env = "TOOLBUS_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    endpoint: EndpointArgs,
}

pub async fn run(args: BrokerCommandArgs) -> Result<(), Failure> {
    let local = LocalBroker::load(args.config.as_deref())?;
    let roles: Vec<&str> = local.roles.iter().map(String::as_str).collect();
    for warning in &local.warnings {
        tracing::warn!("{warning}");
    }
    let stop = service_stop_signal()?;
    let broker_args = args.broker.or_config(
        local.listen,
        local.data.clone(),
        local.shared_token_file.clone(),
        local.auth.clone(),
        local.ship_audit.clone(),
    );
    let mode = broker_args.identities();
    let opening = async {
        let mut broker = broker_args.open_in(args.cluster.is_given().then_some(&args.cluster)).await?;
        let member = broker.join().await?;
        Ok::<_, Failure>((broker, member))
    };
    // NATS may be away for long.
    let Some(opened) = stop.run_until_cancelled(opening).await else { return Ok(()) };
    let (broker, member) = opened?;
    let warnings = args.endpoint.warnings(&roles, broker.shared_token);
    endpoint::mount(&broker, args.endpoint)?;
    let mut text = broker.startup_lines();
    text.push_str(&format!("\nMCP over HTTP on {}{}", broker.web_address(), endpoint::PATH));
    for warning in warnings {
        text.push_str(&format!("\n{warning}"));
    }
    print_startup(&text);
    let policy = LivePolicy::new(mode.policy(local.policy.clone()));
    broker.use_policy(&policy);
    tokio::spawn(reload::for_broker(local, mode, policy, stop.clone()));
    let server = Arc::clone(&broker.server);
    tokio::spawn(async move {
        stop.cancelled().await;
        tracing::info!("stopping");
        // New clients go elsewhere, then the partitions do, and the connections end last.
        server.drain();
        if let Some(member) = member {
            member.leave().await;
        }
        server.stop();
    });
    broker.server.serve(broker.listener).await?;
    tracing::info!("stopped; all accepted messages are durable");
    Ok(())
}

impl BrokerArgs {
    pub fn identities(&self) -> Identities {
        if self.shared_token_file.is_some() { Identities::SharedToken } else { Identities::Credentials }
    }

    /// Fills in values of the configuration file for flags that are not given.
    pub fn or_config(
        mut self,
        listen: Option<SocketAddr>,
        data: Option<PathBuf>,
        shared_token_file: Option<PathBuf>,
        auth: AuthConfig,
        ship_audit: Option<Target>,
    ) -> Self {
        self.listen = self.listen.or(listen);
        self.data = self.data.or(data);
        self.shared_token_file = self.shared_token_file.or(shared_token_file);
        (self.auth, self.ship_audit) = (auth, ship_audit);
        self
    }

    pub async fn open(self) -> Result<OpenBroker, Failure> {
        self.open_in(None).await
    }

    /// Like [`open`](Self::open), with the mailboxes of a cluster instead of those in the data folder, if one is given.
    pub async fn open_in(self, cluster: Option<&ClusterArgs>) -> Result<OpenBroker, Failure> {
        raise_descriptor_limit();
        let listen = self.listen.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)));
        let shared_token = self.shared_token_file.is_some();
        if shared_token && !listen.ip().is_loopback() {
            return Err(Failure::SharedTokenExposed { address: listen });
        }
        let tls = self.tls();
        if let Some(tls) = &tls {
            tls.check()?;
        } else if !self.insecure && !listen.ip().is_loopback() {
            return Err(Failure::PlainText { address: listen });
        }
        let is_secure = tls.is_some();
        let data = folders::data_root(self.data)?;
        let core = CoreOptions { reserve_bytes: self.reserve << 20, ..CoreOptions::default() };
        let (core, joining) = match cluster {
            None => (Mailboxes::Folder(BrokerCore::open(&data, core)?), None),
            Some(args) => {
                let cluster = args.open(&data, core, !shared_token).await?;
                (Mailboxes::Cluster(Arc::clone(&cluster.mailboxes)), Some((cluster, args)))
            }
        };
        let (authenticator, token_file): (Arc<dyn Authenticator>, _) = match self.shared_token_file {
            Some(file) => (Arc::new(SharedToken::new(read_given_token(&file)?)), file),
            None => {
                let files = match &joining {
                    None => ensure_local_credentials(&data)?,
                    Some((cluster, _)) => ensure_credentials_of_member(&data, cluster.created())?,
                };
                (Arc::new(authenticators(&data, self.auth)?), files.token)
            }
        };
        let cannot = |source| Failure::Listen { address: listen, source };
        let listener = TcpListener::bind(listen).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let (audit, shipper) = open_audit(&data, "broker", self.ship_audit.as_ref())?;
        let options = ServerOptions {
            max_connections: self.max_connections,
            max_frame_bytes: self.max_frame,
            allowed_origins: self.allow_origin,
            allowed_hosts: self.allow_host,
            audit: Some(audit),
            tls,
            broker_key: Some(ensure_broker_key(&data)?),
            ..ServerOptions::default()
        };
        let server = match core {
            Mailboxes::Folder(core) => BrokerServer::with_authenticator(core, Arc::clone(&authenticator), options),
            Mailboxes::Cluster(core) => BrokerServer::with_authenticator(core, Arc::clone(&authenticator), options),
        };
        let joining = match joining {
            Some((cluster, args)) => Some(Joining::new(cluster, args.advertised(address)?, is_secure, self.max_frame)),
            None => None,
        };
        Ok(OpenBroker {
            server,
            joining,
            authenticator,
            listener,
            address,
            data,
            token_file,
            shared_token,
            is_secure,
            _shipper: shipper,
        })
    }

    fn tls(&self) -> Option<TlsSettings> {
        let (certificate, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(TlsSettings { certificate, key, client_ca: self.tls_client_ca.clone() })
    }
}

/// The broker's own tokens, and the JWT issuers and certificates of the configuration.
fn authenticators(data: &Path, auth: AuthConfig) -> Result<Chain, Failure> {
    Ok(Chain {
        registry: Registry::open(data)?,
        jwt: auth.jwt.map(JwtAuthenticator::new).transpose()?,
        certificates: auth.certificates.map(CertificateAuthenticator::new),
    })
}

impl OpenBroker {
    /// Joins its cluster, if it has one. To be called before it serves.
    pub async fn join(&mut self) -> Result<Option<Member>, Failure> {
        match self.joining.take() {
            Some(joining) => joining.join(&self.server).await.map(Some),
            None => Ok(None),
        }
    }

    /// Takes the rules for messages and for the names of hosts from the policy, also after the policy was replaced.
    pub fn use_policy(&self, policy: &Arc<LivePolicy>) {
        let (server, mut changes) = (Arc::downgrade(&self.server), policy.watch());
        self.server.set_offer_rules(Arc::clone(&changes.borrow_and_update()));
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                let (rules, Some(server)) = (Arc::clone(&changes.borrow_and_update()), server.upgrade()) else {
                    return;
                };
                tokio::task::spawn_blocking(move || server.set_offer_rules(rules)).await.ok();
            }
        });
        let rules = PolicySendRules { policy: Arc::clone(policy), authenticator: Arc::clone(&self.authenticator) };
        self.server.set_send_rules(Arc::new(rules));
    }

    /// The lines that every broker prints at start: data folder, token file and address. Scripts parse them.
    pub fn startup_lines(&self) -> String {
        let (data, token) = (self.data.display(), self.token_file.display());
        let scheme = if self.is_secure { "wss" } else { "ws" };
        let mut text = format!("data in {data}\ntoken in {token}\nlistening on {scheme}://{}/bus", self.address);
        if self.shared_token {
            text.push_str(
                "\nWARNING: all agents use one shared token. Every holder may use any name and any role; `toolbus \
                 agent` issues a separate token for each agent.",
            );
        }
        text
    }

    /// The HTTP URL of the port, as seen from this machine.
    pub fn web_address(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}", dial_address(self.address))
    }
}

/// Raises the soft limit to the hard limit: every connection needs a descriptor, and the default soft limit is low.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "can't raise the limit of open files");
    }
}
