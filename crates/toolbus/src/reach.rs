//! How a command reaches the broker: address and token, shared by all commands that talk to one.

use crate::commands::broker::DEFAULT_PORT;
use crate::config::{LocalBroker, local_broker};
use crate::failure::Failure;
use crate::folders;
use crate::roles::claimed_role_without_rules;
use clap::Args;
use std::env;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use toolbus_broker::{OWN_NAME, TokenError, read_token};
use toolbus_client::{BrokerClient, ClientOptions, TlsOptions, TokenScope};
use toolbus_identity::read_broker_key;
use toolbus_protocol::AgentRef;

/// How long it may take to find out that there is no broker.
const PROBE: Duration = Duration::from_secs(2);

#[derive(Args)]
pub struct BusArgs {
    /// Address of the broker. Default: the one of toolbus.toml here, or ws://127.0.0.1:7420/bus.
    #[arg(long, global = true, env = "TOOLBUS_BROKER", value_name = "URL")]
    broker: Option<String>,
    /// File with the token. Without it: TOOLBUS_TOKEN, or the token of a broker of this user on this machine.
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Certificate to trust a wss:// broker by (PEM). Default: those of the system.
    #[arg(long, global = true, env = "TOOLBUS_CA_CERT", value_name = "FILE")]
    ca_cert: Option<PathBuf>,
    /// Our certificate (PEM), for a wss:// broker that knows its clients by certificate.
    #[arg(long, global = true, env = "TOOLBUS_CLIENT_CERT", requires = "client_key", value_name = "FILE")]
    client_cert: Option<PathBuf>,
    /// Key of that certificate (PEM).
    #[arg(long, global = true, env = "TOOLBUS_CLIENT_KEY", requires = "client_cert", value_name = "FILE")]
    client_key: Option<PathBuf>,
    /// Send the token in plain text (ws://) to another machine: it can be read on the way.
    #[arg(long, global = true)]
    insecure: bool,
}

/// What a command shows to the broker, and where it may be sent.
struct Credential {
    token: String,
    scope: TokenScope,
}

#[derive(Args)]
pub struct ReachArgs {
    #[command(flatten)]
    bus: BusArgs,
    /// Print JSON.
    #[arg(long, global = true)]
    pub json: bool,
}

/// As whom a command comes when it is given no token: which of the tokens in a local broker's data folder it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalAgent {
    /// Uses tools.
    Worker,
    /// Offers tools.
    Host,
    /// Looks after the bus.
    Operator,
}

impl LocalAgent {
    /// With a shared token there is only one file.
    fn token_files(self) -> [&'static str; 2] {
        let own = match self {
            Self::Worker => folders::TOKEN_FILE,
            Self::Host => toolbus_identity::HOST_TOKEN_FILE,
            Self::Operator => toolbus_identity::OPERATOR_TOKEN_FILE,
        };
        [own, folders::TOKEN_FILE]
    }
}

impl ReachArgs {
    pub async fn connect(&self, who: LocalAgent, agent: AgentRef, reconnect: bool) -> Result<BrokerClient, Failure> {
        self.bus.connect(who, agent, reconnect).await
    }
}

impl BusArgs {
    /// What the token file says now, where one was given.
    pub fn token_in_file(&self) -> Option<String> {
        read_token(self.token_file.as_deref()?).ok()
    }

    /// Whether the command was given a token of its own.
    pub fn has_token(&self) -> bool {
        self.token_file.is_some() || env::var("TOOLBUS_TOKEN").is_ok_and(|token| !token.trim().is_empty())
    }

    /// The broker that is meant.
    pub fn url(&self) -> String {
        self.broker.clone().unwrap_or_else(|| local_url(&local_broker().unwrap_or_default()))
    }

    pub async fn connect(&self, who: LocalAgent, agent: AgentRef, reconnect: bool) -> Result<BrokerClient, Failure> {
        let local = match local_broker() {
            Err(failure) if self.broker.is_none() => return Err(failure.into()),
            local => local.unwrap_or_default(),
        };
        // Roles are the hosts' business; those of this file are known to count only if its broker is meant.
        if self.broker.is_none() {
            let roles: Vec<&str> = local.roles.iter().map(String::as_str).collect();
            let role = agent.role.as_deref();
            let warning = role.and_then(|role| claimed_role_without_rules("--role", role, &roles));
            warning.into_iter().for_each(|warning| eprintln!("{warning}"));
        }
        let url = self.broker.clone().unwrap_or_else(|| local_url(&local));
        let Credential { token, scope: token_scope } = match self.credential(who, local) {
            // Without a broker there is no token either; that is not what to look for then.
            Err(Failure::NoToken) if !somebody_listens(&url).await => return Err(Failure::NoBroker { url }),
            credential => credential?,
        };
        let options = ClientOptions { reconnect, tls: self.tls(), token_scope, ..ClientOptions::default() };
        Ok(BrokerClient::connect_with(&url, agent, &token, options).await?)
    }

    fn tls(&self) -> TlsOptions {
        TlsOptions {
            ca_cert: self.ca_cert.clone(),
            client_cert: self.client_cert.clone(),
            client_key: self.client_key.clone(),
        }
    }

    fn credential(&self, who: LocalAgent, local: LocalBroker) -> Result<Credential, Failure> {
        if let Some(token) = self.given_token()? {
            let scope = if self.insecure { TokenScope::Anywhere } else { TokenScope::EncryptedOrLoopback };
            return Ok(Credential { token, scope });
        }
        // A client with a certificate needs no token, and wants to be known by the former.
        if self.client_cert.is_some() {
            return Ok(Credential { token: String::new(), scope: TokenScope::EncryptedOrLoopback });
        }
        let folder = match local.data {
            Some(folder) => folder,
            None => folders::data_folder()?,
        };
        found_credential(who, &folder)
    }

    /// From a file or the environment, never from the command line: that is visible to everyone on the machine.
    fn given_token(&self) -> Result<Option<String>, Failure> {
        if let Some(file) = &self.token_file {
            return Ok(Some(read_token(file)?));
        }
        let token = env::var("TOOLBUS_TOKEN").unwrap_or_default();
        Ok(Some(token.trim().to_owned()).filter(|token| !token.is_empty()))
    }
}

/// A token that was found in a data folder goes to the broker of that folder and to no other: the address may come from a
/// toolbus.toml that somebody else wrote, and another program may listen there.
fn found_credential(who: LocalAgent, folder: &Path) -> Result<Credential, Failure> {
    for file in who.token_files() {
        let token = match read_token(&folder.join(file)) {
            Err(TokenError::Read { .. }) => continue,
            token => token?,
        };
        let key = read_broker_key(folder)?.ok_or_else(|| Failure::NoBrokerKey { folder: folder.to_owned() })?;
        return Ok(Credential { token, scope: TokenScope::Holder(key) });
    }
    Err(Failure::NoToken)
}

async fn somebody_listens(url: &str) -> bool {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let mut address = rest.split('/').next().unwrap_or_default().to_owned();
    if !address.trim_end_matches(|c: char| c.is_ascii_digit()).ends_with(':') {
        address.push_str(if scheme == "ws" { ":80" } else { ":443" });
    }
    let connecting = tokio::net::TcpStream::connect(address);
    matches!(tokio::time::timeout(PROBE, connecting).await, Ok(Ok(_)))
}

/// Where a broker of this folder's configuration is to be found from this machine.
fn local_url(local: &LocalBroker) -> String {
    let address = local.listen.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)));
    format!("ws://{}/bus", from_here(address))
}

/// Where this machine itself reaches what listens there.
pub fn from_here(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// A name for a command that only sends or asks.
pub fn passing_agent(role: Option<String>) -> AgentRef {
    in_role(AgentRef::new(own_mailbox("cli")), role)
}

/// A mailbox of the credential's agent that nobody else uses.
pub fn own_mailbox(purpose: &str) -> String {
    format!("{OWN_NAME}#{purpose}-{}", uuid::Uuid::new_v4())
}

pub fn in_role(agent: AgentRef, role: Option<String>) -> AgentRef {
    match role {
        Some(role) => agent.with_role(role),
        None => agent,
    }
}
