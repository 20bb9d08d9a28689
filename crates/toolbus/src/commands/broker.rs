//! `toolbus broker`: the mailboxes, their WebSocket and the MCP endpoint, until SIGTERM or Ctrl-C.

use super::tell;
use crate::config::LocalBroker;
use crate::endpoint::{self, EndpointArgs};
use crate::failure::Failure;
use crate::folders;
use crate::host_state::AUDIT_FOLDER;
use crate::hosting::Identities;
use crate::reach::from_here;
use crate::reload;
use crate::send_rules::PolicySendRules;
use crate::stop::service_stop_signal;
use clap::Args;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpListener;
use toolbus_audit::{AuditLog, AuditOptions};
use toolbus_broker::{BrokerCore, BrokerServer, CoreOptions, ServerOptions, SharedToken, TlsSettings, read_token};
use toolbus_host::LivePolicy;
use toolbus_identity::{
    AuthConfig, Authenticator, CertificateAuthenticator, Chain, JwtAuthenticator, Registry, ensure_broker_key,
    ensure_local_credentials,
};

pub const DEFAULT_PORT: u16 = 7420;

#[derive(Args)]
pub struct BrokerArgs {
    /// Address to listen on. Port 0 takes any free port. Default: 127.0.0.1:7420.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Folder for the mailboxes. Default: TOOLBUS_DATA, or toolbus in the user's data folder.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// One token for all, as in the original system: whoever has it may take any name and role. On loopback only. Without
    /// it, agents have tokens of their own (see `toolbus agent`).
    #[arg(long, value_name = "FILE")]
    shared_token_file: Option<PathBuf>,
    /// Of the configuration file.
    #[arg(skip)]
    auth: AuthConfig,
    /// Connections served at the same time.
    #[arg(long, default_value_t = ServerOptions::default().max_connections, value_name = "N")]
    max_connections: usize,
    /// Largest frame, in bytes.
    #[arg(long, default_value_t = ServerOptions::default().max_frame_bytes, value_name = "BYTES")]
    max_frame: usize,
    /// Web page origin that may connect, such as https://console.example. Can be given several times.
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Name that clients may call this broker by, such as bus.example. Addresses and localhost need none of this.
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Free space below which no new messages are taken, in MiB.
    #[arg(long, default_value_t = CoreOptions::default().reserve_bytes >> 20, value_name = "MIB")]
    reserve: u64,
    /// Certificate for TLS, with those between it and its root (PEM). Read again when it changes.
    #[arg(long, requires = "tls_key", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Key of that certificate (PEM).
    #[arg(long, requires = "tls_cert", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Who may issue certificates to clients (PEM): then a client may be known by its certificate.
    #[arg(long, requires = "tls_cert", value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// Listen without TLS where other machines can reach it: tokens and messages can be read on the way.
    #[arg(long)]
    insecure: bool,
}

/// A broker with its data open and its port bound, ready to serve.
pub struct OpenBroker {
    pub server: Arc<BrokerServer>,
    pub listener: TcpListener,
    pub address: SocketAddr,
    pub data: PathBuf,
    pub token_file: PathBuf,
    authenticator: Arc<dyn Authenticator>,
    /// Whether one secret is for all.
    pub shared_token: bool,
    /// Whether it speaks TLS.
    pub is_secure: bool,
}

#[derive(Args)]
pub struct BrokerCommandArgs {
    /// The toolbus.toml to read `listen` and `data` from. Default: toolbus.toml in this folder, or in ~/.config/toolbus.
    #[arg(long, env = "TOOLBUS_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    broker: BrokerArgs,
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
    let broker_args =
        args.broker.or(local.listen, local.data.clone(), local.shared_token_file.clone(), local.auth.clone());
    let mode = broker_args.identities();
    let broker = broker_args.open().await?;
    let warnings = args.endpoint.warnings(&roles, broker.shared_token);
    endpoint::mount(&broker, args.endpoint)?;
    let mut text = broker.whereabouts();
    text.push_str(&format!("\nMCP over HTTP at {}{}", broker.web_address(), endpoint::PATH));
    for warning in warnings {
        text.push_str(&format!("\n{warning}"));
    }
    tell(&text);
    let policy = LivePolicy::new(mode.policy(local.policy.clone()));
    broker.follow(&policy);
    tokio::spawn(reload::of_broker(local, mode, policy, stop.clone()));
    let server = Arc::clone(&broker.server);
    tokio::spawn(async move {
        stop.cancelled().await;
        tracing::info!("stopping");
        server.stop();
    });
    broker.server.serve(broker.listener).await?;
    tracing::info!("stopped; everything accepted is on disk");
    Ok(())
}

impl BrokerArgs {
    pub fn identities(&self) -> Identities {
        if self.shared_token_file.is_some() { Identities::SharedToken } else { Identities::Credentials }
    }

    /// What a configuration file says counts where no flag does.
    pub fn or(
        mut self,
        listen: Option<SocketAddr>,
        data: Option<PathBuf>,
        shared_token_file: Option<PathBuf>,
        auth: AuthConfig,
    ) -> Self {
        self.listen = self.listen.or(listen);
        self.data = self.data.or(data);
        self.shared_token_file = self.shared_token_file.or(shared_token_file);
        self.auth = auth;
        self
    }

    pub async fn open(self) -> Result<OpenBroker, Failure> {
        raise_descriptor_limit();
        let listen = self.listen.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)));
        let shared_token = self.shared_token_file.is_some();
        if shared_token && !listen.ip().is_loopback() {
            return Err(Failure::SharedToAll { address: listen });
        }
        let tls = self.tls();
        if let Some(tls) = &tls {
            tls.check()?;
        } else if !self.insecure && !listen.ip().is_loopback() {
            return Err(Failure::PlainText { address: listen });
        }
        let is_secure = tls.is_some();
        let data = match self.data {
            Some(folder) => folder,
            None => folders::data_folder()?,
        };
        let core =
            BrokerCore::open(&data, CoreOptions { reserve_bytes: self.reserve << 20, ..CoreOptions::default() })?;
        let (authenticator, token_file): (Arc<dyn Authenticator>, _) = match self.shared_token_file {
            Some(file) => (Arc::new(SharedToken::new(read_token(&file)?)), file),
            None => {
                let files = ensure_local_credentials(&data)?;
                (Arc::new(known_agents(&data, self.auth)?), files.token)
            }
        };
        let cannot = |source| Failure::Listen { address: listen, source };
        let listener = TcpListener::bind(listen).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let options = ServerOptions {
            max_connections: self.max_connections,
            max_frame_bytes: self.max_frame,
            allowed_origins: self.allow_origin,
            allowed_hosts: self.allow_host,
            audit: Some(AuditLog::open(&data.join(AUDIT_FOLDER), AuditOptions::default())?),
            tls,
            broker_key: Some(ensure_broker_key(&data)?),
            ..ServerOptions::default()
        };
        let server = BrokerServer::with_authenticator(core, Arc::clone(&authenticator), options);
        Ok(OpenBroker { server, authenticator, listener, address, data, token_file, shared_token, is_secure })
    }

    fn tls(&self) -> Option<TlsSettings> {
        let (certificate, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(TlsSettings { certificate, key, client_ca: self.tls_client_ca.clone() })
    }
}

/// Tokens of our own, and whoever the configuration believes.
fn known_agents(data: &Path, auth: AuthConfig) -> Result<Chain, Failure> {
    Ok(Chain {
        registry: Registry::open(data)?,
        jwt: auth.jwt.map(JwtAuthenticator::new).transpose()?,
        certificates: auth.certificates.map(CertificateAuthenticator::new),
    })
}

impl OpenBroker {
    /// Lets the rules for messages be those of the policy, also when it is replaced.
    pub fn follow(&self, policy: &Arc<LivePolicy>) {
        let rules = PolicySendRules { policy: Arc::clone(policy), authenticator: Arc::clone(&self.authenticator) };
        self.server.set_send_rules(Arc::new(rules));
    }

    pub fn whereabouts(&self) -> String {
        let (data, token) = (self.data.display(), self.token_file.display());
        let scheme = if self.is_secure { "wss" } else { "ws" };
        let mut text = format!("data in {data}\ntoken in {token}\nlistening on {scheme}://{}/bus", self.address);
        if self.shared_token {
            text.push_str(
                "\nWARNING: one shared token for all. Whoever has it may take any name and any role; `toolbus agent` gives \
                 each agent a token of its own.",
            );
        }
        text
    }

    /// Where applications on the port are found from this machine.
    pub fn web_address(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}", from_here(self.address))
    }
}

/// Every connection is a descriptor, and the usual soft limit is small.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}
