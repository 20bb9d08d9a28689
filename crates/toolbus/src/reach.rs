//! Connection options shared by all commands that talk to a broker: address, credential and TLS.

use crate::commands::broker::DEFAULT_PORT;
use crate::config::{LocalBroker, local_broker};
use crate::endpoint;
use crate::failure::Failure;
use crate::folders;
use crate::output::print_error;
use crate::roles::claimed_role_without_rules;
use clap::Args;
use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toolbus_broker::{OWN_NAME, TokenError, read_private_token, read_token};
use toolbus_client::{BrokerClient, BrokerError, ClientOptions, TlsOptions, TokenScope};
use toolbus_identity::read_broker_key;
use toolbus_protocol::{AgentRef, ErrorCode};

/// Timeout of the probe whether anything listens at the broker's address.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Args)]
pub struct BusArgs {
    /// Address of the broker; HOST:PORT is short for ws://HOST:PORT/bus. Brokers of a cluster are separated by commas: if
    /// one is away, the next is used. Default: the one in toolbus.toml, or ws://127.0.0.1:7420/bus.
    #[arg(long, global = true, env = "TOOLBUS_BROKER", value_name = "URL")]
    broker: Option<String>,
    /// File with the token. Default: TOOLBUS_TOKEN, or the token in the data folder of this user's broker on this
    /// machine.
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// CA certificate to verify a wss:// broker (PEM). Default: the system's certificates.
    #[arg(long, global = true, env = "TOOLBUS_CA_CERT", value_name = "FILE")]
    ca_cert: Option<PathBuf>,
    /// Client certificate (PEM), for a wss:// broker that authenticates clients by certificate.
    #[arg(long, global = true, env = "TOOLBUS_CLIENT_CERT", requires = "client_key", value_name = "FILE")]
    client_cert: Option<PathBuf>,
    /// Private key of the client certificate (PEM).
    #[arg(long, global = true, env = "TOOLBUS_CLIENT_KEY", requires = "client_cert", value_name = "FILE")]
    client_key: Option<PathBuf>,
    /// Allow sending the token in plain text (ws://) to another machine, where it can be read on the network.
    #[arg(long, global = true)]
    insecure: bool,
}

/// The token of a command, and where it may be sent.
struct Credential {
    token: String,
    scope: TokenScope,
    origin: TokenOrigin,
}

/// Where a token was found, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenOrigin {
    /// In `TOOLBUS_TOKEN`.
    Environment,
    /// In a file.
    File(PathBuf),
    /// There is none: a client certificate is used.
    Certificate,
}

impl fmt::Display for TokenOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment => f.write_str("the token in TOOLBUS_TOKEN"),
            Self::File(file) => write!(f, "the token in {}", file.display()),
            Self::Certificate => f.write_str("the client certificate"),
        }
    }
}

#[derive(Args)]
pub struct ReachArgs {
    #[command(flatten)]
    bus: BusArgs,
    /// Print JSON.
    #[arg(long, global = true)]
    pub json: bool,
}

/// Which token in the data folder of a local broker a command uses if none is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalAgent {
    /// The agent `local`, which calls tools.
    Worker,
    /// The agent `host`, which offers tools.
    Host,
    /// The agent `operator`, which administers the bus.
    Operator,
}

impl LocalAgent {
    /// The second file is the fallback for a shared token, which has only one file.
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
    pub async fn connect(
        &self,
        local_agent: LocalAgent,
        agent: AgentRef,
        reconnect: bool,
    ) -> Result<BrokerClient, Failure> {
        self.bus.connect(local_agent, agent, reconnect).await
    }
}

impl BusArgs {
    /// The current content of the given token file, if any.
    pub fn token_in_file(&self) -> Option<String> {
        read_token(self.token_file.as_deref()?).ok()
    }

    /// Whether the command was given a token of its own.
    pub fn has_token(&self) -> bool {
        self.token_file.is_some() || env::var("TOOLBUS_TOKEN").is_ok_and(|token| !token.trim().is_empty())
    }

    /// The address of the broker.
    pub fn url(&self) -> Result<String, Failure> {
        let local = || Ok(local_url(&local_broker().unwrap_or_default()));
        self.broker.as_deref().map_or_else(local, bus_urls)
    }

    pub async fn connect(
        &self,
        local_agent: LocalAgent,
        agent: AgentRef,
        reconnect: bool,
    ) -> Result<BrokerClient, Failure> {
        let local = match local_broker() {
            Err(failure) if self.broker.is_none() => return Err(failure.into()),
            local => local.unwrap_or_default(),
        };
        // Hosts decide about roles. The roles of this file are known to apply only to its own broker.
        if self.broker.is_none() {
            let roles: Vec<&str> = local.roles.iter().map(String::as_str).collect();
            let role = agent.role.as_deref();
            let warning = role.and_then(|role| claimed_role_without_rules("--role", role, &roles));
            warning.into_iter().for_each(print_error);
        }
        let url = self.broker.as_deref().map_or_else(|| Ok(local_url(&local)), bus_urls)?;
        let Credential { token, scope: token_scope, origin } = match self.credential(local_agent, local) {
            // Without a broker there is no token either, and the missing broker is the error to report.
            Err(Failure::NoToken) if !is_listening(&url).await => return Err(Failure::NoBroker { url }),
            credential => credential?,
        };
        let options = ClientOptions { reconnect, tls: self.tls(), token_scope, ..ClientOptions::default() };
        BrokerClient::connect_with(&url, agent, &token, options).await.map_err(|error| match error {
            BrokerError::Auth { code: Some(ErrorCode::BadCredentials), reason } => {
                Failure::WrongToken { url, origin, reason }
            }
            error => error.into(),
        })
    }

    fn tls(&self) -> TlsOptions {
        TlsOptions {
            ca_cert: self.ca_cert.clone(),
            client_cert: self.client_cert.clone(),
            client_key: self.client_key.clone(),
        }
    }

    fn credential(&self, local_agent: LocalAgent, local: LocalBroker) -> Result<Credential, Failure> {
        if let Some((token, origin)) = self.given_token()? {
            let scope = if self.insecure { TokenScope::Anywhere } else { TokenScope::EncryptedOrLoopback };
            return Ok(Credential { token, scope, origin });
        }
        // With a token as well, the broker would authenticate the client by the token.
        if self.client_cert.is_some() {
            let scope = TokenScope::EncryptedOrLoopback;
            return Ok(Credential { token: String::new(), scope, origin: TokenOrigin::Certificate });
        }
        found_credential(local_agent, &folders::data_root(local.data)?)
    }

    /// From a file or the environment, never from the command line, which every user of the machine can read.
    fn given_token(&self) -> Result<Option<(String, TokenOrigin)>, Failure> {
        if let Some(file) = &self.token_file {
            return Ok(Some((read_given_token(file)?, TokenOrigin::File(file.clone()))));
        }
        let token = env::var("TOOLBUS_TOKEN").unwrap_or_default();
        let token = token.trim();
        Ok((!token.is_empty()).then(|| (token.to_owned(), TokenOrigin::Environment)))
    }
}

/// Reads the token file of an option, with a warning if it is readable by all. It is not refused, because secrets that are
/// mounted into containers often are.
pub fn read_given_token(file: &Path) -> Result<String, Failure> {
    let token = read_token(file)?;
    if fs::metadata(file).is_ok_and(|found| found.is_file() && found.mode() & 0o004 != 0) {
        print_error(format_args!("warning: other users can read the token file {}; run chmod 600", file.display()));
    }
    Ok(token)
}

/// A token found in a data folder is sent only to the broker of that folder: the address may come from a toolbus.toml
/// of another author, and another program may listen there.
fn found_credential(local_agent: LocalAgent, folder: &Path) -> Result<Credential, Failure> {
    for file in local_agent.token_files() {
        let file = folder.join(file);
        let token = match read_private_token(&file) {
            Err(TokenError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => continue,
            token => token?,
        };
        let key = read_broker_key(folder)?.ok_or_else(|| Failure::NoBrokerKey { folder: folder.to_owned() })?;
        return Ok(Credential { token, scope: TokenScope::Holder(key), origin: TokenOrigin::File(file) });
    }
    Err(Failure::NoToken)
}

/// Given addresses as the client takes them.
fn bus_urls(given: &str) -> Result<String, Failure> {
    let urls: Vec<String> = given.split(',').map(|given| bus_url(given.trim())).collect::<Result<_, _>>()?;
    Ok(urls.join(","))
}

/// A given address as the client takes it. HOST:PORT is enough, and the scheme of a web address is translated.
fn bus_url(given: &str) -> Result<String, Failure> {
    let (scheme, rest) = match given.split_once("://") {
        Some(("http", rest)) => ("ws", rest),
        Some(("https", rest)) => ("wss", rest),
        Some((scheme, rest)) => (scheme, rest),
        None => ("ws", given),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if let Some(before) = path.trim_end_matches('/').strip_suffix(endpoint::PATH) {
        let bus = format!("{scheme}://{authority}{before}/bus");
        return Err(Failure::McpEndpoint { url: given.to_owned(), bus });
    }
    if given.contains("://") {
        return Ok(format!("{scheme}://{rest}"));
    }
    let has_port = authority.rsplit(']').next().is_some_and(|end| end.contains(':'));
    let port = if has_port { String::new() } else { format!(":{DEFAULT_PORT}") };
    Ok(format!("ws://{authority}{port}{}", if path.len() > 1 { path } else { "/bus" }))
}

/// Whether anything listens at one of the addresses.
async fn is_listening(urls: &str) -> bool {
    for url in urls.split(',') {
        if is_listening_at(url).await {
            return true;
        }
    }
    false
}

async fn is_listening_at(url: &str) -> bool {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let mut address = rest.split('/').next().unwrap_or_default().to_owned();
    if !address.trim_end_matches(|c: char| c.is_ascii_digit()).ends_with(':') {
        address.push_str(if scheme == "ws" { ":80" } else { ":443" });
    }
    let connecting = tokio::net::TcpStream::connect(address);
    matches!(tokio::time::timeout(PROBE_TIMEOUT, connecting).await, Ok(Ok(_)))
}

/// The URL at which this machine reaches the configured broker.
fn local_url(local: &LocalBroker) -> String {
    let address = local.listen.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)));
    format!("ws://{}/bus", dial_address(address))
}

/// The address at which this machine reaches a listener: loopback in place of an unspecified address.
pub fn dial_address(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// The agent of a command that does not serve a mailbox.
pub fn transient_agent(role: Option<String>) -> AgentRef {
    in_role(AgentRef::new(own_mailbox("cli")), role)
}

/// A new mailbox of the credential's agent, with a random suffix.
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
    fn an_address_needs_neither_scheme_nor_path() {
        let check = |given: &str, expected: &str| assert_eq!(bus_url(given).expect("an address"), expected);
        check("127.0.0.1:7420", "ws://127.0.0.1:7420/bus");
        check("localhost", "ws://localhost:7420/bus");
        check("[::1]:7421/", "ws://[::1]:7421/bus");
        check("[::1]", "ws://[::1]:7420/bus");
        check("bus.example:80/inner/bus", "ws://bus.example:80/inner/bus");
        check("http://127.0.0.1:7420", "ws://127.0.0.1:7420");
        check("https://bus.example/bus", "wss://bus.example/bus");
        check("wss://bus.example:7420/bus", "wss://bus.example:7420/bus");
    }

    #[test]
    fn the_mcp_endpoint_is_refused_with_the_address_of_the_bus() {
        for (given, expected) in [
            ("http://127.0.0.1:7420/mcp", "ws://127.0.0.1:7420/bus"),
            ("https://bus.example/inner/mcp/", "wss://bus.example/inner/bus"),
            ("127.0.0.1:7420/mcp", "ws://127.0.0.1:7420/bus"),
        ] {
            let refused = bus_url(given);
            assert!(matches!(&refused, Err(Failure::McpEndpoint { bus, .. }) if bus == expected), "{refused:?}");
        }
    }
}
