//! The upgrade of a request to a link of another broker.

use super::upgrade::{has_word, switching_to};
use super::{HttpPeer, HttpResponse, Slot, text};
use crate::links::{Binding, LINK_PROTOCOL, Links, RefusedLink, ServedLink};
use crate::prefixed::Prefixed;
use crate::server::ServerShared;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use toolbus_protocol::ErrorCode;

pub fn upgrade(mut request: Request<Incoming>, peer: &HttpPeer, links: Arc<Links>) -> HttpResponse {
    let has = |name, word| has_word(request.headers(), name, word);
    let is_wanted = request.method() == Method::GET && has(CONNECTION, "upgrade") && has(UPGRADE, LINK_PROTOCOL);
    if !is_wanted {
        let mut response = text(StatusCode::UPGRADE_REQUIRED, "this is an endpoint for other brokers\n");
        response.headers_mut().insert(UPGRADE, HeaderValue::from_static(LINK_PROTOCOL));
        return response;
    }
    let upgraded = hyper::upgrade::on(&mut request);
    let pending =
        PendingLink { server: Arc::clone(&peer.server), address: peer.address, slot: peer.take_slot(), links };
    peer.server.connections.spawn(pending.serve(upgraded));
    switching_to(LINK_PROTOCOL)
}

/// A link whose peer is not authenticated.
struct PendingLink {
    server: Arc<ServerShared>,
    address: SocketAddr,
    /// Until the handshake is complete, the peer counts as unauthenticated.
    slot: Slot,
    links: Arc<Links>,
}

impl PendingLink {
    async fn serve(self, upgraded: OnUpgrade) {
        let server = Arc::clone(&self.server);
        let serving = async {
            if let Some(link) = self.accept(upgraded).await {
                link.run().await;
            }
        };
        tokio::select! {
            () = serving => {}
            () = server.stop.cancelled() => {}
        }
    }

    async fn accept(self, upgraded: OnUpgrade) -> Option<ServedLink<Prefixed>> {
        let Self { server, address, slot, links } = self;
        let accepting = async {
            let (stream, binding) = into_bound(upgraded.await.map_err(io::Error::other)?)?;
            links.accept(stream, &binding).await
        };
        let outcome = tokio::time::timeout(server.options.hello_timeout, accepting).await;
        drop(slot);
        match outcome.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into())) {
            Ok(link) => link,
            Err(RefusedLink::Authentication) => {
                server.refusal_log.line(|suppressed| {
                    tracing::warn!(%address, suppressed, "refused a link: the peer's proof is not valid");
                });
                if let Some(audit) = &server.options.audit {
                    audit.connection_refused(ErrorCode::BadCredentials.code());
                }
                None
            }
            Err(error) => {
                tracing::debug!(%address, %error, "refused a link");
                None
            }
        }
    }
}

/// The underlying connection, and its TLS connection as what proofs are bound to.
fn into_bound(upgraded: Upgraded) -> io::Result<(Prefixed, Binding)> {
    match upgraded.downcast::<TokioIo<TcpStream>>() {
        Ok(parts) => Ok((Prefixed::new(parts.read_buf, parts.io.into_inner()), Binding::plain())),
        Err(upgraded) => {
            let unknown = |_| io::Error::other("the connection is neither TCP nor TLS");
            let parts = upgraded.downcast::<TokioIo<TlsStream<TcpStream>>>().map_err(unknown)?;
            let stream = parts.io.into_inner();
            let binding = Binding::of_tls(stream.get_ref().1);
            let binding = binding.ok_or_else(|| io::Error::other("a link requires TLS 1.3"))?;
            Ok((Prefixed::new(parts.read_buf, stream), binding))
        }
    }
}
