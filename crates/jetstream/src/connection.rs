//! How to connect to the NATS servers: addresses, credentials and TLS. No secret is printed: addresses are kept apart from the
//! user names, passwords and tokens that were written into them.

use crate::ClusterError;
use crate::cluster::ANSWER;
use async_nats::{Client, ConnectOptions};
use std::error::Error;
use std::fmt::{Debug, Formatter};
use std::path::PathBuf;
use std::time::Duration;
use toolbus_base::{check_trusted, read_trusted_text};

/// How long the first connection may take.
const CONNECT: Duration = Duration::from_secs(10);

/// TLS towards the NATS servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NatsTls {
    /// Refuse servers that don't offer TLS.
    pub required: bool,
    /// A file of further root certificates.
    pub ca_file: Option<PathBuf>,
}

/// The addresses of the servers, and the user or token that they all accept.
#[derive(Clone, Default)]
pub(crate) struct Servers {
    addresses: Vec<String>,
    login: Option<Login>,
}

#[derive(Clone, PartialEq, Eq)]
enum Login {
    User { name: String, password: String },
    Token(String),
}

impl Servers {
    /// Splits addresses such as `nats://user:password@host` and `nats://token@host`.
    pub fn read(servers: &[String]) -> Self {
        let mut read = Self::default();
        for server in servers.iter().flat_map(|servers| servers.split(',')).map(str::trim).filter(|s| !s.is_empty()) {
            let (scheme, rest) = server.split_once("://").unwrap_or(("nats", server));
            let (login, host) = rest.rsplit_once('@').map_or((None, rest), |(login, host)| (Some(login), host));
            read.addresses.push(format!("{scheme}://{host}"));
            let login = login.map(|login| match login.split_once(':') {
                Some((name, password)) => Login::User { name: decoded(name), password: decoded(password) },
                None => Login::Token(decoded(login)),
            });
            read.login = read.login.or(login);
        }
        read
    }
}

impl Debug for Servers {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.addresses).finish()
    }
}

/// Connects to one of the servers. The connection is restored by itself, to any server of the cluster.
pub(crate) async fn connect(
    servers: &Servers,
    credentials: Option<&PathBuf>,
    tls: &NatsTls,
) -> Result<Client, ClusterError> {
    let mut options = ConnectOptions::new().name("toolbus").connection_timeout(ANSWER * 2).require_tls(tls.required);
    if let Some(file) = &tls.ca_file {
        // The library reads it. It would report a missing file as an error of TLS without its name.
        check_trusted(file).map_err(|source| ClusterError::File { path: file.clone(), source })?;
        options = options.add_root_certificates(file.clone());
    }
    options = match &servers.login {
        Some(Login::User { name, password }) => options.user_and_password(name.clone(), password.clone()),
        Some(Login::Token(token)) => options.token(token.clone()),
        None => options,
    };
    if let Some(file) = credentials {
        let unusable = |source| ClusterError::File { path: file.clone(), source };
        let text = read_trusted_text(file).map_err(unusable)?;
        options = options.credentials(&text).map_err(unusable)?;
    }
    let connecting = options.connect(servers.addresses.clone());
    let connected = tokio::time::timeout(CONNECT, connecting).await;
    let connected = connected.map_err(|_| ClusterError::Connect("no server answers".into()))?;
    connected.map_err(|error| {
        let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        ClusterError::Connect(format!("{}{source} ({})", error.kind(), servers.addresses.join(", ")))
    })
}

/// `HOST:PORT` of an address that may be a URL.
pub(crate) fn without_scheme(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

/// Decodes `%40` and the like; anything else stays as it is.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.filter(|_| *first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_split_from_addresses() {
        let read = |servers: &[&str]| Servers::read(&servers.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
        let servers = read(&["nats://ann:p%40ss:w@a:4222, tls://b", "c:4223"]);
        assert_eq!(servers.addresses, ["nats://a:4222", "tls://b", "nats://c:4223"]);
        let user = Login::User { name: "ann".into(), password: "p@ss:w".into() };
        assert!(servers.login == Some(user), "the login of the first address is used");
        assert_eq!(format!("{servers:?}"), r#"["nats://a:4222", "tls://b", "nats://c:4223"]"#);
        assert!(read(&["nats://s3cret%@a"]).login == Some(Login::Token("s3cret%".into())));
        assert!(read(&["a", ""]).login.is_none());
    }
}
