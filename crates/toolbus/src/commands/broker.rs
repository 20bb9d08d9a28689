//! `toolbus broker`: the mailboxes, their WebSocket and the MCP endpoint, until SIGTERM or Ctrl-C.

use super::tell;
use crate::config::LocalBroker;
use crate::endpoint::{self, EndpointArgs};
use crate::failure::Failure;
use crate::folders;
use crate::hosting::Identities;
use crate::reach::from_here;
use crate::reload;
use crate::roles::unknown_role;
use crate::stop::service_stop_signal;
use clap::Args;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use toolbus_broker::{
    BrokerCore, BrokerServer, CoreOptions, ServerOptions, SharedToken, read_or_create_token, read_token,
};
use toolbus_host::LivePolicy;

pub const DEFAULT_PORT: u16 = 7420;

#[derive(Args)]
pub struct BrokerArgs {
    /// Address to listen on. Port 0 takes any free port. Default: 127.0.0.1:7420.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Folder for the mailboxes. Default: TOOLBUS_DATA, or toolbus in the user's data folder.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// File with the token that clients must present. Without it, one is made in the data folder.
    #[arg(long, value_name = "FILE")]
    shared_token_file: Option<PathBuf>,
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
}

/// A broker with its data open and its port bound, ready to serve.
pub struct OpenBroker {
    pub server: Arc<BrokerServer>,
    pub listener: TcpListener,
    pub address: SocketAddr,
    pub data: PathBuf,
    pub token_file: PathBuf,
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
    let unknown = [("--loopback-role", &args.endpoint.loopback_role), ("--mcp-role", &args.endpoint.mcp_role)];
    let unknown = unknown.map(|(option, role)| unknown_role(option, role.as_deref(), &roles));
    for warning in &local.warnings {
        tracing::warn!("{warning}");
    }
    let stop = service_stop_signal()?;
    let broker = args.broker.or(local.listen, local.data.clone()).open().await?;
    let loopback_role = args.endpoint.loopback_role.clone();
    endpoint::mount(&broker, args.endpoint)?;
    let mut text = broker.whereabouts();
    text.push_str(&format!("\nMCP over HTTP at http://{}{}", from_here(broker.address), endpoint::PATH));
    for warning in loopback_role.map(|role| endpoint::warning(&role)).into_iter().chain(unknown.into_iter().flatten()) {
        text.push_str(&format!("\n{warning}"));
    }
    tell(&text);
    let mode = Identities::SharedToken;
    let policy = LivePolicy::new(mode.policy(local.policy.clone()));
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
    /// What a configuration file says counts where no flag does.
    pub fn or(mut self, listen: Option<SocketAddr>, data: Option<PathBuf>) -> Self {
        self.listen = self.listen.or(listen);
        self.data = self.data.or(data);
        self
    }

    pub async fn open(self) -> Result<OpenBroker, Failure> {
        raise_descriptor_limit();
        let data = match self.data {
            Some(folder) => folder,
            None => folders::data_folder()?,
        };
        let core =
            BrokerCore::open(&data, CoreOptions { reserve_bytes: self.reserve << 20, ..CoreOptions::default() })?;
        let (token, token_file) = match self.shared_token_file {
            Some(file) => (read_token(&file)?, file),
            None => {
                let file = data.join(folders::TOKEN_FILE);
                (read_or_create_token(&file)?, file)
            }
        };
        let listen = self.listen.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)));
        let cannot = |source| Failure::Listen { address: listen, source };
        let listener = TcpListener::bind(listen).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let options = ServerOptions {
            max_connections: self.max_connections,
            max_frame_bytes: self.max_frame,
            allowed_origins: self.allow_origin,
            allowed_hosts: self.allow_host,
            ..ServerOptions::default()
        };
        let server = BrokerServer::with_options(core, Box::new(SharedToken::new(token)), options);
        Ok(OpenBroker { server, listener, address, data, token_file })
    }
}

impl OpenBroker {
    pub fn whereabouts(&self) -> String {
        let (data, token) = (self.data.display(), self.token_file.display());
        format!("data in {data}\ntoken in {token}\nlistening on ws://{}/bus", self.address)
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
