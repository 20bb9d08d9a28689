//! HTTP on the broker's port: health endpoints, the WebSocket upgrade to the bus, and mounted applications.

mod link_upgrade;
mod upgrade;

use crate::app::{AppBody, HttpApp, PeerAddress, PeerCertificate, UntilStopped};
use crate::budget::{REQUEST_COST, SESSION_COST};
use crate::links::LINK_PATH;
use crate::prefixed::Transport;
use crate::server::ServerShared;
use crate::shares::AgentConnection;
use crate::tls::{Tls, client_certificate};
use crate::web_origin::WebRules;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use toolbus_identity::Identity;
use toolbus_protocol::ErrorCode;

type HttpResponse = Response<AppBody>;

/// How long a token of a connection is not authenticated again. The end of a credential applies at once.
const PROVEN_FOR: Duration = Duration::from_secs(1);
/// How long a keep-alive connection may be idle between two requests.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// Maximum number of logged characters of a refused `Host` or `Origin` header.
const MAX_LOGGED_CHARS: usize = 100;
/// Maximum time for running responses to finish when the server stops.
const LAST_RESPONSES_LIMIT: Duration = Duration::from_secs(1);

/// A TCP connection and the connection slot that it occupies.
pub struct HttpPeer {
    server: Arc<ServerShared>,
    /// Address of the listener.
    bound: SocketAddr,
    /// Address of the peer.
    address: SocketAddr,
    /// Local address that the peer connected to.
    local_address: Option<SocketAddr>,
    is_encrypted: bool,
    certificate: Option<Bytes>,
    slot: Mutex<Slot>,
    proven: Mutex<Option<Proven>>,
    /// Cancelled by the first request, which has to arrive within the hello timeout.
    first_request: CancellationToken,
}

/// The last token of a connection that was authenticated, and the identity that it proves.
struct Proven {
    token: Bytes,
    identity: Identity,
    at: Instant,
}

/// The permit of a connection. Unauthenticated peers have a limit of their own.
enum Slot {
    Unknown {
        _permit: OwnedSemaphorePermit,
    },
    Counted(AgentConnection),
    /// Passed on to the bus connection after the upgrade.
    Moved,
}

impl HttpPeer {
    pub fn new(
        server: Arc<ServerShared>,
        bound: SocketAddr,
        address: SocketAddr,
        unknown_peer: OwnedSemaphorePermit,
    ) -> Self {
        let slot = Mutex::new(Slot::Unknown { _permit: unknown_peer });
        let first_request = CancellationToken::new();
        let (local_address, certificate) = (None, None);
        let proven = Mutex::default();
        Self { server, bound, address, local_address, is_encrypted: false, certificate, slot, proven, first_request }
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

    fn take_slot(&self) -> Slot {
        std::mem::replace(&mut *self.slot(), Slot::Moved)
    }

    fn proven(&self) -> MutexGuard<'_, Option<Proven>> {
        self.proven.lock().expect("no code panics while holding the lock of the proven token")
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().expect("no code panics while holding the slot lock")
    }
}

/// What an application counts in the share of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpWork {
    /// A request.
    Request,
    /// A request has opened a session. Counted in addition to the request.
    NewSession,
    /// A request was refused. Counted in addition to the request.
    Refusal,
}

/// The connection of a request, for the application that authenticates it; an extension of every request that is passed to
/// an application.
#[derive(Clone)]
pub struct PeerConnection(Arc<HttpPeer>);

impl PeerConnection {
    /// Counts the connection against the agent's share from now on, instead of the limit of unauthenticated peers. Returns
    /// the response to send if the agent has used up its share.
    pub fn belongs_to(&self, identity: &Identity) -> Result<(), Box<Response<AppBody>>> {
        let mut slot = self.0.slot();
        if let Slot::Counted(counted) = &*slot
            && counted.is_of(identity)
        {
            return Ok(());
        }
        let counted =
            self.0.server.shares.connect(identity).ok_or_else(|| Box::new(too_many_connections(&self.0.server)))?;
        *slot = Slot::Counted(counted);
        Ok(())
    }

    /// The identity that this token proved on this connection within the last second, if the credential has not ended.
    pub fn proven(&self, token: &[u8]) -> Option<Identity> {
        let proven = self.0.proven();
        let proven = proven.as_ref().filter(|proven| proven.at.elapsed() < PROVEN_FOR)?;
        // In constant time: a proxy may forward the requests of several clients on one connection.
        let is_same: bool = proven.token.ct_eq(token).into();
        (is_same && proven.identity.standing.ended().is_none()).then(|| proven.identity.clone())
    }

    /// Remembers an identity for [`PeerConnection::proven`].
    pub fn remember(&self, token: &[u8], identity: &Identity) {
        let (token, identity) = (Bytes::copy_from_slice(token), identity.clone());
        *self.0.proven() = Some(Proven { token, identity, at: Instant::now() });
    }

    /// Counts work for the agent. Returns how long to wait before its next request is handled.
    pub fn work(&self, work: HttpWork) -> Duration {
        match (&*self.0.slot(), work) {
            (Slot::Counted(counted), HttpWork::Request) => counted.work(REQUEST_COST, 0),
            (Slot::Counted(counted), HttpWork::NewSession) => counted.work(SESSION_COST, 0),
            (Slot::Counted(counted), HttpWork::Refusal) => counted.work(0, 1),
            (Slot::Unknown { .. } | Slot::Moved, _) => Duration::ZERO,
        }
    }

    /// Sets how much of a request body is held in memory. Returns false if the agent has used up its share.
    #[must_use]
    pub fn hold_input(&self, bytes: u64) -> bool {
        match &mut *self.0.slot() {
            Slot::Counted(counted) => counted.hold_input(bytes),
            Slot::Unknown { .. } | Slot::Moved => false,
        }
    }
}

/// Serves one TCP connection until it ends or becomes a bus connection.
pub async fn serve(socket: TcpStream, tls: Option<Arc<Tls>>, mut peer: HttpPeer) {
    peer.local_address = socket.local_addr().ok();
    let Some(tls) = tls else { return serve_http(socket, peer).await };
    // The TLS handshake has the hello timeout, too; until then the peer counts as unauthenticated.
    let accepting = tokio::time::timeout(peer.server.options.hello_timeout, tls.accept(socket));
    let accepted = tokio::select! {
        accepted = accepting => accepted,
        () = peer.server.stop.cancelled() => return,
    };
    match accepted {
        Ok(Ok(stream)) => {
            peer.is_encrypted = true;
            peer.certificate = client_certificate(&stream);
            serve_http(stream, peer).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
}

pub(crate) async fn serve_http(socket: impl Transport + 'static, peer: HttpPeer) {
    let peer = Arc::new(peer);
    let server = Arc::clone(&peer.server);
    let service = service_fn(|request| {
        let peer = Arc::clone(&peer);
        async move { Ok::<_, Infallible>(respond(request, &peer).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(KEEP_ALIVE)
        .max_buf_size(64 << 10)
        // `max_buf_size` alone does not limit a head that arrives in one read.
        .max_header_size(64 << 10)
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades();
    let mut serving = std::pin::pin!(serving);
    let no_request = async {
        if tokio::time::timeout(server.options.hello_timeout, peer.first_request.cancelled()).await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        outcome = serving.as_mut() => {
            if let Err(error) = outcome {
                tracing::debug!(%error, "HTTP connection failed");
            }
        }
        () = no_request => tracing::debug!("timeout: the peer sent no request"),
        () = server.stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            tokio::time::timeout(LAST_RESPONSES_LIMIT, serving).await.ok();
        }
    }
}

async fn respond(request: Request<Incoming>, peer: &Arc<HttpPeer>) -> HttpResponse {
    peer.first_request.cancel();
    let path = request.uri().path();
    let links = peer.server.links().filter(|_| path == LINK_PATH);
    // Health checks may use any host name: the response reveals nothing. So may other brokers, which prove who they are.
    if path != "/healthz"
        && links.is_none()
        && let Err(code) = peer.rules().check_host(&request)
    {
        let host = request.headers().get(HOST).map(shortened).unwrap_or_default();
        peer.server.refusal_log.line(|suppressed| {
            tracing::warn!(?host, code = code.code(), suppressed, "refused a request");
        });
        return refusal(StatusCode::FORBIDDEN, code);
    }
    if let Some(links) = links {
        return link_upgrade::upgrade(request, peer, links);
    }
    if let Some(app) = peer.server.app_at(path) {
        return respond_by_app(request, peer, &*app).await;
    }
    match (request.method(), path) {
        (&Method::GET, "/healthz") => text(StatusCode::OK, "ok\n"),
        (&Method::GET, "/readyz") => match peer.server.ready() {
            Ok(()) => text(StatusCode::OK, "ready\n"),
            Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, reason),
        },
        (&Method::GET, "/" | "/bus") => upgrade::upgrade(request, peer),
        (_, "/" | "/bus" | "/healthz" | "/readyz") => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed; use GET\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
            response
        }
        _ if path.contains("/.well-known/") => no_metadata(),
        _ => text(StatusCode::NOT_FOUND, "not found; the bus is at /bus\n"),
    }
}

/// MCP clients look for OAuth metadata under several such paths, and parse the response as JSON whatever its status.
fn no_metadata() -> HttpResponse {
    let body = json!({
        "error": "not_found",
        "error_description": "this server has no such metadata; it accepts tokens of toolbus in the Authorization header",
    });
    let mut response = text(StatusCode::NOT_FOUND, body.to_string());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn respond_by_app(mut request: Request<Incoming>, peer: &Arc<HttpPeer>, app: &dyn HttpApp) -> HttpResponse {
    if let Err(origin) = peer.rules().check_app_origin(request.headers()) {
        return foreign_origin(&peer.server, origin);
    }
    request.extensions_mut().insert(PeerAddress(peer.address));
    request.extensions_mut().insert(PeerConnection(Arc::clone(peer)));
    if let Some(certificate) = &peer.certificate {
        request.extensions_mut().insert(PeerCertificate(certificate.clone()));
    }
    let stop = peer.server.stop.clone();
    let mut response = app.call(request).await.map(|body| UntilStopped::boxed(body, stop));
    // A client that failed to authenticate must not keep its connection.
    if response.status() == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn foreign_origin(server: &ServerShared, origin: &HeaderValue) -> HttpResponse {
    let code = ErrorCode::OriginRefused;
    server.refusal_log.line(|suppressed| {
        tracing::warn!(origin = ?shortened(origin), code = code.code(), suppressed, "refused a web page");
    });
    refusal(StatusCode::FORBIDDEN, code)
}

/// A header of the peer, for the log.
fn shortened(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).chars().take(MAX_LOGGED_CHARS).collect()
}

fn too_many_connections(server: &ServerShared) -> HttpResponse {
    server.refusal_log.line(|suppressed| {
        tracing::warn!(code = ErrorCode::TooManyConnections.code(), suppressed, "refused a connection");
    });
    refusal(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::TooManyConnections)
}

fn refusal(status: StatusCode, code: ErrorCode) -> HttpResponse {
    text(status, format!("{} {} hint: {}\n", code.code(), code.meaning(), code.hint()))
}

/// A text response that closes the connection. The header is set here instead of disabling keep-alive in hyper, which
/// would add it to upgrade responses as well: the original's client accepts only `Connection: Upgrade` there.
fn text(status: StatusCode, body: impl Into<Bytes>) -> HttpResponse {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
