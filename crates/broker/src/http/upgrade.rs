//! The upgrade of a request to a WebSocket connection of the bus.

use super::{HttpPeer, HttpResponse, foreign_origin, text};
use crate::prefixed::Prefixed;
use crate::presented::PresentedCredentials;
use crate::{connection, handshake};
use base64::Engine as _;
use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::upgrade::Upgraded;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use toolbus_protocol::{CHALLENGE_HEADER, MAX_CHALLENGE_BYTES, PROOF_HEADER};

pub fn upgrade(mut request: Request<Incoming>, peer: &HttpPeer) -> HttpResponse {
    if let Err(origin) = peer.rules().check_origin(request.headers()) {
        return foreign_origin(&peer.server, origin);
    }
    let Some(accept) = accept_key(request.headers()) else {
        let mut response = text(StatusCode::UPGRADE_REQUIRED, "this is a WebSocket endpoint\n");
        response.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
        return response;
    };
    let server = Arc::clone(&peer.server);
    let presented = PresentedCredentials::in_request(request.headers(), peer.certificate.clone());
    let proof = proof(request.headers(), peer);
    let upgraded = hyper::upgrade::on(&mut request);
    let http_slot = peer.take_slot();
    let tracker = server.connections.clone();
    tracker.spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let Some(stream) = into_transport(upgraded) else { return };
        let accepted = handshake::handshake(stream, presented, &server).await;
        // Until here the peer counts as unauthenticated.
        drop(http_slot);
        if let Some(accepted) = accepted {
            connection::serve(accepted, &server).await;
        }
    });
    let mut response = switching_to("websocket");
    let headers = response.headers_mut();
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(proof) = proof {
        headers.insert(PROOF_HEADER, proof);
    }
    response
}

/// The response that switches to a protocol.
pub(super) fn switching_to(protocol: &'static str) -> HttpResponse {
    let mut response = text(StatusCode::SWITCHING_PROTOCOLS, "");
    let headers = response.headers_mut();
    headers.remove(CONTENT_TYPE);
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(protocol));
    response
}

/// Whether a header has that word in its list.
pub(super) fn has_word(headers: &HeaderMap, name: HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
}

/// The response to a challenge, for clients that connected to a loopback address: only they check it.
fn proof(headers: &HeaderMap, peer: &HttpPeer) -> Option<HeaderValue> {
    let key = peer.server.options.broker_key.as_ref()?;
    let challenge = headers.get(CHALLENGE_HEADER).filter(|challenge| challenge.len() <= MAX_CHALLENGE_BYTES)?;
    let local_address = peer.local_address.filter(|address| address.ip().to_canonical().is_loopback())?;
    HeaderValue::try_from(key.prove(challenge.as_bytes(), local_address)).ok()
}

/// Returns the underlying connection, which is TCP or TLS as passed to [`super::serve_http`].
fn into_transport(upgraded: Upgraded) -> Option<Prefixed> {
    match upgraded.downcast::<TokioIo<TcpStream>>() {
        Ok(parts) => Some(Prefixed::new(parts.read_buf, parts.io.into_inner())),
        Err(upgraded) => {
            let parts = upgraded.downcast::<TokioIo<TlsStream<TcpStream>>>().ok()?;
            Some(Prefixed::new(parts.read_buf, parts.io.into_inner()))
        }
    }
}

/// The `Sec-WebSocket-Accept` value (RFC 6455), if the request is a WebSocket upgrade.
fn accept_key(headers: &HeaderMap) -> Option<HeaderValue> {
    let has = |name, word| has_word(headers, name, word);
    let wanted = has(CONNECTION, "upgrade") && has(UPGRADE, "websocket") && has(SEC_WEBSOCKET_VERSION, "13");
    let key = headers.get(SEC_WEBSOCKET_KEY).filter(|_| wanted)?;
    let mut hash = sha1_smol::Sha1::new();
    hash.update(key.as_bytes());
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let accept = base64::engine::general_purpose::STANDARD.encode(hash.digest().bytes());
    HeaderValue::try_from(accept).ok()
}
