//! The HTTP face of the one port: health pages, the way into the bus, and mounted applications.

use crate::app::{AppBody, HttpApp, PeerAddress, PeerCertificate, UntilStopped};
use crate::prefixed::{Prefixed, Transport};
use crate::presented::Presented;
use crate::server::ServerShared;
use crate::tls::{Tls, client_certificate};
use crate::web_origin::WebRules;
use crate::{connection, handshake};
use base64::Engine as _;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use toolbus_protocol::{CHALLENGE_HEADER, ErrorCode, MAX_CHALLENGE_BYTES, PROOF_HEADER};

type Answer = Response<AppBody>;

/// How long a connection to an application may rest between two requests.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// What the log shows of a host that somebody made up.
const MOST_OF_A_HOST: usize = 100;
/// How long answers may take to end when the server stops.
const FAREWELL_LIMIT: Duration = Duration::from_secs(1);

/// A TCP connection and what it occupies.
pub struct Visitor {
    server: Arc<ServerShared>,
    /// Where the listener is bound.
    bound: SocketAddr,
    peer: SocketAddr,
    /// The address that the peer connected to.
    dialled: Option<SocketAddr>,
    is_encrypted: bool,
    certificate: Option<Bytes>,
    place: Mutex<Place>,
    /// Set by the first request: until then the peer has only the time for a hello.
    spoke: CancellationToken,
}

/// Peers that are not known yet are counted apart from those that are served.
enum Place {
    Unknown {
        _permit: OwnedSemaphorePermit,
    },
    Seated {
        _seat: OwnedSemaphorePermit,
    },
    /// Given to the bus connection that this one became.
    Moved,
}

impl Visitor {
    pub fn new(
        server: Arc<ServerShared>,
        bound: SocketAddr,
        peer: SocketAddr,
        unknown_peer: OwnedSemaphorePermit,
    ) -> Self {
        let place = Mutex::new(Place::Unknown { _permit: unknown_peer });
        let spoke = CancellationToken::new();
        Self { server, bound, peer, dialled: None, is_encrypted: false, certificate: None, place, spoke }
    }

    fn rules(&self) -> WebRules<'_> {
        let options = &self.server.options;
        WebRules {
            bound: self.bound,
            is_encrypted: self.is_encrypted,
            allowed_hosts: &options.allowed_hosts,
            allowed_origins: &options.allowed_origins,
        }
    }

    /// Takes a seat for the rest of the connection, unless it has one. False if there is none.
    fn sit_down(&self) -> bool {
        let mut place = self.place.lock().expect("no code panics while it holds the place");
        if let Place::Unknown { .. } = &*place {
            let Some(seat) = self.server.take_seat() else { return false };
            *place = Place::Seated { _seat: seat };
        }
        true
    }

    fn move_out(&self) -> Place {
        let mut place = self.place.lock().expect("no code panics while it holds the place");
        std::mem::replace(&mut *place, Place::Moved)
    }
}

/// Serves one TCP connection until it ends or becomes a bus connection.
pub async fn serve(socket: TcpStream, tls: Option<Arc<Tls>>, mut visitor: Visitor) {
    visitor.dialled = socket.local_addr().ok();
    let Some(tls) = tls else { return converse(socket, visitor).await };
    // A peer has the time for a hello to come to terms about TLS, and is counted as unknown meanwhile.
    let accepting = tokio::time::timeout(visitor.server.options.hello_timeout, tls.accept(socket));
    let accepted = tokio::select! {
        accepted = accepting => accepted,
        () = visitor.server.stop.cancelled() => return,
    };
    match accepted {
        Ok(Ok(stream)) => {
            visitor.is_encrypted = true;
            visitor.certificate = client_certificate(&stream);
            converse(stream, visitor).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "no TLS with a peer"),
        Err(_) => tracing::debug!("a peer took too long to begin TLS"),
    }
}

async fn converse(socket: impl Transport + 'static, visitor: Visitor) {
    let visitor = Arc::new(visitor);
    let server = Arc::clone(&visitor.server);
    let service = service_fn(|request| {
        let visitor = Arc::clone(&visitor);
        async move { Ok::<_, Infallible>(answer(request, &visitor).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(KEEP_ALIVE)
        .max_buf_size(64 << 10)
        // The buffer's limit alone is passed by a head that arrives in one piece.
        .max_header_size(64 << 10)
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades();
    let mut serving = std::pin::pin!(serving);
    let said_nothing = async {
        if tokio::time::timeout(server.options.hello_timeout, visitor.spoke.cancelled()).await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        outcome = serving.as_mut() => {
            if let Err(error) = outcome {
                tracing::debug!(%error, "an HTTP connection ended badly");
            }
        }
        () = said_nothing => tracing::debug!("a peer made no request in time"),
        () = server.stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            tokio::time::timeout(FAREWELL_LIMIT, serving).await.ok();
        }
    }
}

async fn answer(request: Request<Incoming>, visitor: &Arc<Visitor>) -> Answer {
    visitor.spoke.cancel();
    let path = request.uri().path();
    // Who probes a broker's health may know it by any name, and learns nothing.
    if path != "/healthz"
        && let Err(code) = visitor.rules().check_host(&request)
    {
        let host = request.headers().get(HOST).map(|host| String::from_utf8_lossy(host.as_bytes()));
        let host: String = host.unwrap_or_default().chars().take(MOST_OF_A_HOST).collect();
        tracing::warn!(?host, code = code.code(), "a request was refused");
        return refused(StatusCode::FORBIDDEN, code);
    }
    if let Some(app) = visitor.server.app_at(path) {
        return answer_by_app(request, visitor, &*app).await;
    }
    match (request.method(), path) {
        (&Method::GET, "/healthz") => text(StatusCode::OK, "ok\n"),
        (&Method::GET, "/readyz") => match visitor.server.ready() {
            Ok(()) => text(StatusCode::OK, "ready\n"),
            Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, reason),
        },
        (&Method::GET, "/" | "/bus") => upgrade(request, visitor),
        (_, "/" | "/bus" | "/healthz" | "/readyz") => {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET works here\n");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
            answer
        }
        _ => text(StatusCode::NOT_FOUND, "nothing here; the bus is at /bus\n"),
    }
}

async fn answer_by_app(mut request: Request<Incoming>, visitor: &Visitor, app: &dyn HttpApp) -> Answer {
    if let Err(code) = visitor.rules().check_app_origin(request.headers()) {
        return refused(StatusCode::FORBIDDEN, code);
    }
    if !visitor.sit_down() {
        return no_seat();
    }
    request.extensions_mut().insert(PeerAddress(visitor.peer));
    if let Some(certificate) = &visitor.certificate {
        request.extensions_mut().insert(PeerCertificate(certificate.clone()));
    }
    let stop = visitor.server.stop.clone();
    let mut answer = app.call(request).await.map(|body| UntilStopped::boxed(body, stop));
    // Whoever the application does not know must not keep a seat from those it does.
    if answer.status() == StatusCode::UNAUTHORIZED {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

fn upgrade(mut request: Request<Incoming>, visitor: &Visitor) -> Answer {
    if let Err(code) = visitor.rules().check_origin(request.headers()) {
        return refused(StatusCode::FORBIDDEN, code);
    }
    let Some(accept) = accept_key(request.headers()) else {
        let mut answer = text(StatusCode::UPGRADE_REQUIRED, "this is a WebSocket endpoint\n");
        answer.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
        return answer;
    };
    let server = Arc::clone(&visitor.server);
    let Some(seat) = server.take_seat() else { return no_seat() };
    let presented = Presented::in_request(request.headers(), visitor.certificate.clone());
    let proof = proof(request.headers(), visitor);
    let upgraded = hyper::upgrade::on(&mut request);
    let unknown_peer = visitor.move_out();
    let tracker = server.connections.clone();
    tracker.spawn(async move {
        let _seat = seat;
        let Ok(upgraded) = upgraded.await else { return };
        let Some(stream) = without_http(upgraded) else { return };
        let greeted = handshake::greet(stream, presented, &server).await;
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
    if let Some(proof) = proof {
        headers.insert(PROOF_HEADER, proof);
    }
    answer
}

/// The answer to a challenge, for clients that dialled a loopback address: others have no use for it.
fn proof(headers: &HeaderMap, visitor: &Visitor) -> Option<HeaderValue> {
    let key = visitor.server.options.broker_key.as_ref()?;
    let challenge = headers.get(CHALLENGE_HEADER).filter(|challenge| challenge.len() <= MAX_CHALLENGE_BYTES)?;
    let dialled = visitor.dialled.filter(|address| address.ip().to_canonical().is_loopback())?;
    HeaderValue::try_from(key.prove(challenge.as_bytes(), dialled)).ok()
}

/// The bare connection, of whichever of the two kinds [`converse`] is given.
fn without_http(upgraded: Upgraded) -> Option<Prefixed> {
    match upgraded.downcast::<TokioIo<TcpStream>>() {
        Ok(parts) => Some(Prefixed::new(parts.read_buf, parts.io.into_inner())),
        Err(upgraded) => {
            let parts = upgraded.downcast::<TokioIo<TlsStream<TcpStream>>>().ok()?;
            Some(Prefixed::new(parts.read_buf, parts.io.into_inner()))
        }
    }
}

fn no_seat() -> Answer {
    tracing::warn!(code = ErrorCode::TooManyConnections.code(), "a connection was refused");
    refused(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::TooManyConnections)
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
    let mut answer = Response::new(Full::new(body.into()).boxed_unsync());
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}
