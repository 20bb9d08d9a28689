//! How a command reaches the broker: address and token, shared by all commands that talk to one.

use crate::commands::broker::DEFAULT_PORT;
use crate::config::{LocalBroker, local_broker};
use crate::failure::Failure;
use crate::folders;
use crate::roles::claimed_role_without_rules;
use clap::Args;
use std::env;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use toolbus_broker::{OWN_NAME, TokenError, read_token};
use toolbus_client::{BrokerClient, ClientOptions, TlsOptions};
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
        let options = ClientOptions { reconnect, tls: self.tls(), ..ClientOptions::default() };
        let token = match self.token(who, local) {
            // Without a broker there is no token either; that is not what to look for then.
            Err(Failure::NoToken) if !somebody_listens(&url).await => return Err(Failure::NoBroker { url }),
            token => token?,
        };
        Ok(BrokerClient::connect_with(&url, agent, &token, options).await?)
    }

    fn tls(&self) -> TlsOptions {
        TlsOptions {
            ca_cert: self.ca_cert.clone(),
            client_cert: self.client_cert.clone(),
            client_key: self.client_key.clone(),
        }
    }

    /// Never from the command line: that is visible to everyone on the machine.
    fn token(&self, who: LocalAgent, local: LocalBroker) -> Result<String, Failure> {
        if let Some(file) = &self.token_file {
            return Ok(read_token(file)?);
        }
        if let Ok(token) = env::var("TOOLBUS_TOKEN")
            && !token.trim().is_empty()
        {
            return Ok(token.trim().to_owned());
        }
        // Whoever has a certificate to show needs no token, and means to be known by the former.
        if self.client_cert.is_some() {
            return Ok(String::new());
        }
        // What lets in here is nobody else's business.
        if self.broker.as_deref().is_some_and(|url| !is_this_machine(url)) {
            return Err(Failure::NoToken);
        }
        let folder = match local.data {
            Some(folder) => folder,
            None => folders::data_folder()?,
        };
        for file in who.token_files() {
            match read_token(&folder.join(file)) {
                Err(TokenError::Read { .. }) => {}
                other => return Ok(other?),
            }
        }
        Err(Failure::NoToken)
    }
}

/// Whether the address is of a kind that no other machine can have.
fn is_this_machine(url: &str) -> bool {
    let authority = url.split("://").nth(1).and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    if let Ok(address) = host.parse::<SocketAddr>() {
        return address.ip().is_loopback();
    }
    let name = host.split(':').next().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_this_machine_are_for_this_machine() {
        for here in
            ["ws://127.0.0.1:7420/bus", "wss://localhost/bus", "ws://LOCALHOST:1", "ws://[::1]:7420/", "ws://[::1]"]
        {
            assert!(is_this_machine(here), "{here}");
        }
        for elsewhere in [
            "ws://bus.example/bus",
            "ws://localhost.example",
            "ws://10.0.0.1:7420",
            "ws://127.0.0.1@evil:7420/bus",
            "",
            "x",
        ] {
            assert!(!is_this_machine(elsewhere), "{elsewhere}");
        }
    }
}
