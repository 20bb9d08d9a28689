//! Entry points for fuzz targets and tests: connections of unauthenticated peers without a socket.

use crate::connection;
use crate::handshake;
use crate::http::{self, HttpPeer};
use crate::prefixed::Prefixed;
use crate::presented::PresentedCredentials;
use crate::server::BrokerServer;
use bytes::Bytes;
use hyper::HeaderMap;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::DuplexStream;

impl BrokerServer {
    /// Performs the handshake with a peer after its WebSocket upgrade. Returns whether it is accepted.
    #[doc(hidden)]
    pub async fn handshake_with(&self, stream: DuplexStream) -> bool {
        let presented = PresentedCredentials::in_request(&HeaderMap::new(), None);
        handshake::handshake(Prefixed::new(Bytes::new(), stream), presented, self.shared()).await.is_some()
    }

    /// Serves a peer after its WebSocket upgrade.
    #[doc(hidden)]
    pub fn serve_peer(&self, stream: DuplexStream) {
        let server = Arc::clone(self.shared());
        server.connections.clone().spawn(async move {
            let presented = PresentedCredentials::in_request(&HeaderMap::new(), None);
            if let Some(accepted) = handshake::handshake(Prefixed::new(Bytes::new(), stream), presented, &server).await
            {
                connection::serve(accepted, &server).await;
            }
        });
    }

    /// Serves the HTTP requests of a peer.
    #[doc(hidden)]
    pub async fn serve_http_to(&self, stream: DuplexStream) {
        let address = SocketAddr::from(([127, 0, 0, 1], 7420));
        let permit = self.shared().try_unknown_peer_permit().expect("the target has one connection at a time");
        http::serve_http(stream, HttpPeer::new(Arc::clone(self.shared()), address, address, permit)).await;
    }
}
