//! Opening a WebSocket to an address. The token's scope is enforced here, before `hello` could carry the token.

use crate::connection::{Socket, Transport};
use crate::options::{ClientOptions, TokenScope};
use crate::tls;
use crate::{BrokerError, BrokerResult};
use http::{HeaderName, HeaderValue, Uri};
use std::net::SocketAddr;
use tokio::net::{TcpStream, lookup_host};
use tokio_websockets::upgrade::{Error as UpgradeError, Response};
use tokio_websockets::{ClientBuilder, Error as WsError, Limits};
use toolbus_protocol::{BrokerKey, CHALLENGE_HEADER, ErrorCode, MsgId, PROOF_HEADER};

/// One attempt to connect to a broker over the network.
pub struct Dialer<'a> {
    pub uri: &'a Uri,
    pub is_secure: bool,
    pub options: &'a ClientOptions,
}

impl Dialer<'_> {
    pub async fn connect(&self, limits: Limits) -> BrokerResult<Socket> {
        let socket = self.connect_tcp().await?;
        let peer = socket.peer_addr().map_err(|error| self.transport("can't reach", &error))?;
        socket.set_nodelay(true).map_err(|error| self.transport("can't set up", &error))?;
        let socket: Box<dyn Transport> = match self.is_secure {
            true => Box::new(tls::connect(socket, self.uri, self.host(), &self.options.tls).await?),
            false => Box::new(socket),
        };
        match &self.options.token_scope {
            TokenScope::Holder(key) => self.upgrade_with_proof(socket, limits, key, peer).await,
            _ => Ok(self.upgrade(socket, ClientBuilder::from_uri(self.uri.clone()).limits(limits)).await?.0),
        }
    }

    /// Connects to an address that the token may be sent to. All addresses of the name must be allowed, since any of
    /// them may accept the connection.
    async fn connect_tcp(&self) -> BrokerResult<TcpStream> {
        let usual_port = if self.is_secure { 443 } else { 80 };
        let name = (self.host(), self.uri.port_u16().unwrap_or(usual_port));
        let unreachable = |error: std::io::Error| self.transport("can't reach", &error);
        let addresses: Vec<SocketAddr> = lookup_host(name).await.map_err(unreachable)?.collect();
        if let Some(address) = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback()) {
            self.check_non_loopback(*address)?;
        }
        TcpStream::connect(&*addresses).await.map_err(unreachable)
    }

    fn check_non_loopback(&self, address: SocketAddr) -> BrokerResult<()> {
        let uri = self.uri;
        match &self.options.token_scope {
            TokenScope::Holder(_) => Err(BrokerError::TokenWithheld {
                code: ErrorCode::BrokerUnproven,
                reason: format!(
                    "{uri} is not on loopback, and a token found in a data folder is sent only on the same machine"
                ),
            }),
            _ if self.is_secure => Ok(()),
            TokenScope::EncryptedOrLoopback => Err(BrokerError::TokenWithheld {
                code: ErrorCode::PlainTextToken,
                reason: format!("{uri} is not encrypted, and {} is another machine", address.ip()),
            }),
            TokenScope::Anywhere => {
                tracing::warn!("{uri} is not encrypted: the token and all messages can be read on the network");
                Ok(())
            }
        }
    }

    async fn upgrade_with_proof(
        &self,
        socket: Box<dyn Transport>,
        limits: Limits,
        key: &BrokerKey,
        peer: SocketAddr,
    ) -> BrokerResult<Socket> {
        let unproven = |reason: &str| BrokerError::TokenWithheld {
            code: ErrorCode::BrokerUnproven,
            reason: format!("{} {reason}", self.uri),
        };
        let challenge = MsgId::new();
        let header = HeaderValue::from_str(challenge.as_str()).expect("an id is visible ASCII");
        let builder = ClientBuilder::from_uri(self.uri.clone()).limits(limits);
        let builder = builder.add_header(HeaderName::from_static(CHALLENGE_HEADER), header);
        let builder = builder.map_err(|error| self.transport("can't set up", &error))?;
        let (socket, response) = self.upgrade(socket, builder).await?;
        let proof = response.headers().get(PROOF_HEADER).and_then(|proof| proof.to_str().ok());
        match proof {
            None => Err(unproven("does not prove that it belongs to the data folder where the token was found")),
            Some(proof) if key.verify(challenge.as_str().as_bytes(), peer, proof) => Ok(socket),
            Some(_) => Err(unproven("belongs to another data folder than the token")),
        }
    }

    async fn upgrade(
        &self,
        socket: Box<dyn Transport>,
        builder: ClientBuilder<'_>,
    ) -> BrokerResult<(Socket, Response)> {
        let uri = self.uri;
        builder.connect_on(socket).await.map_err(|error| match error {
            WsError::Io(error) if self.is_secure => tls::explain(uri, &error),
            WsError::Upgrade(UpgradeError::DidNotSwitchProtocols(400)) if !self.is_secure => {
                BrokerError::Tls(format!("{uri} rejected plain text; if it requires TLS, use wss://"))
            }
            error => self.transport("no WebSocket at", &error),
        })
    }

    fn host(&self) -> &str {
        self.uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
    }

    fn transport(&self, what: &str, error: &dyn std::fmt::Display) -> BrokerError {
        BrokerError::Transport(format!("{what} {}: {error}", self.uri))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_leaves_loopback_only_if_its_scope_allows_it() {
        let uri: Uri = "ws://bus.example/bus".parse().expect("a valid URI");
        let address = "192.0.2.7:80".parse().expect("a valid address");
        let check = |token_scope: TokenScope, is_secure| {
            let options = ClientOptions { token_scope, ..ClientOptions::default() };
            let dialer = Dialer { uri: &uri, is_secure, options: &options };
            dialer.check_non_loopback(address).map_err(|error| error.code())
        };
        let holder = || TokenScope::Holder(BrokerKey::new(&[0; 32]));
        assert_eq!(check(TokenScope::Anywhere, false), Ok(()));
        assert_eq!(check(TokenScope::EncryptedOrLoopback, false), Err(Some(ErrorCode::PlainTextToken)));
        assert_eq!(check(TokenScope::EncryptedOrLoopback, true), Ok(()));
        assert_eq!(check(holder(), false), Err(Some(ErrorCode::BrokerUnproven)));
        assert_eq!(check(holder(), true), Err(Some(ErrorCode::BrokerUnproven)));
    }
}
