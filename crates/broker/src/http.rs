//! The HTTP face of the one port: health pages and the way into the bus.

use crate::prefixed::Prefixed;
use crate::server::ServerShared;
use crate::{connection, handshake};
use base64::Engine as _;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, ORIGIN, SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use toolbus_protocol::ErrorCode;

type Answer = Response<Full<Bytes>>;

/// Serves one TCP connection until it ends or becomes a bus connection. The permit belongs to peers that are not known
/// yet; it is given back as soon as the peer is.
pub async fn serve(socket: TcpStream, server: Arc<ServerShared>, unknown_peer: OwnedSemaphorePermit) {
    let permit = Arc::new(std::sync::Mutex::new(Some(unknown_peer)));
    let service = service_fn(|request| {
        let (server, permit) = (Arc::clone(&server), Arc::clone(&permit));
        async move { Ok::<_, Infallible>(answer(request, &server, &permit)) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(server.options.hello_timeout)
        .max_buf_size(64 << 10)
        // The buffer's limit alone is passed by a head that arrives in one piece.
        .max_header_size(64 << 10)
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades();
    tokio::select! {
        outcome = serving => {
            if let Err(error) = outcome {
                tracing::debug!(%error, "an HTTP connection ended badly");
            }
        }
        () = server.stop.cancelled() => {}
    }
}

type Permit = Arc<std::sync::Mutex<Option<OwnedSemaphorePermit>>>;

fn answer(request: Request<Incoming>, server: &Arc<ServerShared>, permit: &Permit) -> Answer {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => text(StatusCode::OK, "ok\n"),
        (&Method::GET, "/readyz") => match server.ready() {
            Ok(()) => text(StatusCode::OK, "ready\n"),
            Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, reason),
        },
        (&Method::GET, "/" | "/bus") => upgrade(request, server, permit),
        (_, "/" | "/bus" | "/healthz" | "/readyz") => {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET works here\n");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
            answer
        }
        _ => text(StatusCode::NOT_FOUND, "nothing here; the bus is at /bus\n"),
    }
}

fn upgrade(mut request: Request<Incoming>, server: &Arc<ServerShared>, permit: &Permit) -> Answer {
    let allowed = |origin: &&HeaderValue| {
        server.options.allowed_origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes())
    };
    // All of them: a second one must not hide behind the first.
    if let Some(origin) = request.headers().get_all(ORIGIN).iter().find(|origin| !allowed(origin)) {
        tracing::warn!(?origin, code = ErrorCode::OriginRefused.code(), "a web page was refused");
        return refused(StatusCode::FORBIDDEN, ErrorCode::OriginRefused);
    }
    let Some(accept) = accept_key(request.headers()) else {
        let mut answer = text(StatusCode::UPGRADE_REQUIRED, "this is a WebSocket endpoint\n");
        answer.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
        return answer;
    };
    let Some(seat) = server.take_seat() else {
        tracing::warn!(code = ErrorCode::TooManyConnections.code(), "a connection was refused");
        return refused(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::TooManyConnections);
    };
    let upgraded = hyper::upgrade::on(&mut request);
    let unknown_peer = permit.lock().ok().and_then(|mut permit| permit.take());
    let tracker = server.connections.clone();
    let server = Arc::clone(server);
    tracker.spawn(async move {
        let _seat = seat;
        let Ok(upgraded) = upgraded.await else { return };
        let Ok(parts) = upgraded.downcast::<TokioIo<TcpStream>>() else { return };
        let stream = Prefixed::new(parts.read_buf, parts.io.into_inner());
        let greeted = handshake::greet(stream, &server).await;
        drop(unknown_peer);
        if let Some(greeted) = greeted {
            connection::serve(greeted, &server).await;
        }
    });
    let mut answer = text(StatusCode::SWITCHING_PROTOCOLS, "");
    let headers = answer.headers_mut();
    headers.remove(CONTENT_TYPE);
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    answer
}

/// The answer to the client's key (RFC 6455), if this is a request for a WebSocket.
fn accept_key(headers: &HeaderMap) -> Option<HeaderValue> {
    let has = |name: HeaderName, word: &str| {
        let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    let wanted = has(CONNECTION, "upgrade") && has(UPGRADE, "websocket") && has(SEC_WEBSOCKET_VERSION, "13");
    let key = headers.get(SEC_WEBSOCKET_KEY).filter(|_| wanted)?;
    let mut hash = sha1_smol::Sha1::new();
    hash.update(key.as_bytes());
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let accept = base64::engine::general_purpose::STANDARD.encode(hash.digest().bytes());
    HeaderValue::try_from(accept).ok()
}

fn refused(status: StatusCode, code: ErrorCode) -> Answer {
    text(status, format!("{} {} hint: {}\n", code.code(), code.meaning(), code.hint()))
}

/// A page after which the connection closes. This is said here and not to hyper, which would say it in the answer to an
/// upgrade as well: the original's client takes no `Connection` but `Upgrade` alone.
fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}
