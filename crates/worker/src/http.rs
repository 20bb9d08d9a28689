//! MCP over streamable HTTP, both eras on one path. This module authenticates the client, detects the era and writes
//! the response. `Host` and `Origin` have to be checked by the server that owns the port.

mod abandoned;
mod batch;
mod body;
mod events;
mod headers;
mod kept;
mod legacy;
mod modern;
mod reply;
mod session;
mod sse;

pub use body::BodyError;
pub use headers::SESSION as SESSION_HEADER;
pub use reply::{HttpBody, unauthorized};

use crate::bus::{BoxFuture, Bus};
use crate::error::AuthFailure;
use crate::options::WorkerOptions;
use crate::worker::{Worker, lock};
use abandoned::AbandonedCalls;
use bytes::Bytes;
use bytestring::ByteString;
use hashbrown::HashMap;
use http_body::Body;
use hyper::header::{ALLOW, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use session::Sessions;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use toolbus_base::Share;
use toolbus_client::BrokerError;
use toolbus_mcp::{Era, LEGACY_VERSIONS, MODERN_VERSIONS, Message, MessageError, RpcError, codes};

/// The authenticated identity of an HTTP client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    /// The name of the agent.
    pub name: String,
    /// The role of the agent.
    pub role: Option<String>,
    /// Distinguishes agents that had the same name one after the other.
    pub incarnation: u64,
}

/// Authenticates HTTP clients.
pub trait Principals: Send + Sync + 'static {
    /// Authenticates a request by its headers, and by connection data (such as a client certificate) in its extensions.
    fn authenticate<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Result<Principal, AuthFailure>>;

    /// How many of the sessions a principal may open.
    fn share(&self, _principal: &Principal) -> Share {
        Share::DEFAULT
    }
}

/// Connections to the bus, one per principal. A principal gets the same connection as long as it is alive.
pub trait BusPool: Send + Sync + 'static {
    /// The principal's connection; opens one if needed.
    fn bus<'a>(&'a self, principal: &'a Principal) -> BoxFuture<'a, Result<Arc<dyn Bus>, BrokerError>>;
}

/// The limits and timeouts of the HTTP transport.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// The options of the workers behind the endpoint.
    pub worker: WorkerOptions,
    /// The maximum size of a request body.
    pub max_body_bytes: usize,
    /// Read timeout between two parts of a request body.
    pub body_patience: Duration,
    /// Maximum legacy sessions; each principal has a share of them.
    pub max_sessions: usize,
    /// Idle time after which a legacy session without readers and calls is ended.
    pub session_idle: Duration,
    /// The folder for records of legacy sessions, which continue in the next process. `None`: they end with the process.
    pub session_folder: Option<PathBuf>,
    /// How long a legacy call may be silent before its response becomes an event stream, which can be resumed.
    pub legacy_quiet: Duration,
    /// How long a modern call may be silent before its response becomes an event stream. Until then an error still
    /// determines the HTTP status.
    pub modern_quiet: Duration,
    /// Interval of keepalive comments in a silent event stream.
    pub keepalive: Duration,
    /// Maximum events that a legacy session keeps for resumed streams.
    pub max_replay_events: usize,
    /// Maximum bytes of the events that a legacy session keeps for resumed streams.
    pub max_replay_bytes: usize,
    /// How long the response of a legacy call whose connection broke is kept for an equal call to join.
    pub join_window: Duration,
    /// Maximum bytes of all such responses. One agent's responses may take a quarter of it.
    pub max_join_bytes: usize,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            worker: WorkerOptions::default(),
            max_body_bytes: 16 << 20,
            body_patience: Duration::from_secs(30),
            max_sessions: 1024,
            session_idle: Duration::from_secs(30 * 60),
            session_folder: None,
            legacy_quiet: Duration::from_millis(200),
            modern_quiet: Duration::from_secs(10),
            keepalive: Duration::from_secs(15),
            max_replay_events: 256,
            max_replay_bytes: 4 << 20,
            join_window: Duration::from_secs(600),
            max_join_bytes: 64 << 20,
        }
    }
}

/// The MCP endpoint over HTTP.
pub struct HttpService {
    options: HttpOptions,
    principals: Arc<dyn Principals>,
    pool: Arc<dyn BusPool>,
    workers: Mutex<HashMap<Principal, Arc<Worker>>>,
    sessions: Arc<Sessions>,
    abandoned: Arc<AbandonedCalls>,
    /// Cancelled before the server ends its connections.
    stopping: CancellationToken,
}

/// Number of cached workers from which on those without a session are evicted.
const MAX_IDLE_WORKERS: usize = 512;

impl HttpService {
    /// Creates the service. Requires a tokio runtime, because a background task ends idle sessions.
    pub fn new(principals: Arc<dyn Principals>, pool: Arc<dyn BusPool>, options: HttpOptions) -> Arc<Self> {
        let sessions = Sessions::new(&options);
        let abandoned = Arc::new(AbandonedCalls::new(options.join_window, options.max_join_bytes));
        let (workers, stopping) = (Mutex::default(), CancellationToken::new());
        Arc::new(Self { options, principals, pool, workers, sessions, abandoned, stopping })
    }

    /// Detaches all workers, before the server ends its connections: see [`Worker::detach`]. Clients that wait for a call get
    /// an error, since the next process can't send them the response.
    pub fn detach(&self) {
        let workers = lock(&self.workers);
        workers.values().for_each(|worker| worker.detach());
        self.stopping.cancel();
        self.sessions.write_kept();
    }

    /// Handles one HTTP request.
    pub async fn handle<B>(self: Arc<Self>, request: Request<B>) -> Response<HttpBody>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<BodyError>,
    {
        let (head, body) = request.into_parts();
        let principal = match self.principals.authenticate(&head).await {
            Ok(principal) => principal,
            Err(failure) => return unauthorized(&failure),
        };
        let is_modern = headers::version(&head.headers).is_some_and(|version| !LEGACY_VERSIONS.contains(&version));
        match head.method {
            Method::POST => self.post(principal, &head.headers, body).await,
            Method::GET if !is_modern => legacy::open_stream(&self, &principal, &head.headers).await,
            Method::DELETE if !is_modern => legacy::end_session(&self, &principal, &head.headers).await,
            _ => {
                let mut answer = reply::empty(StatusCode::METHOD_NOT_ALLOWED);
                let allowed = if is_modern { "POST" } else { "GET, POST, DELETE" };
                answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
                answer
            }
        }
    }

    async fn post<B>(self: &Arc<Self>, principal: Principal, headers: &HeaderMap, body: B) -> Response<HttpBody>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<BodyError>,
    {
        let invalid = |message: &str| RpcError::new(codes::INVALID_REQUEST, message);
        if !headers::is_json(headers) {
            let error = invalid("Bad Request: Content-Type must be application/json");
            return reply::error(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, error);
        }
        if !headers::accepts(headers, "application/json") || !headers::accepts(headers, "text/event-stream") {
            let error = invalid("Not Acceptable: Accept must include application/json and text/event-stream");
            return reply::error(StatusCode::NOT_ACCEPTABLE, None, error);
        }
        let body = match body::read(body, &self.options).await {
            Ok(body) => body,
            Err((status, error)) => return reply::error(status, None, error),
        };
        self.message(principal, headers, body).await
    }

    /// Handles the body of a POST.
    fn message<'a>(
        self: &'a Arc<Self>,
        principal: Principal,
        headers: &'a HeaderMap,
        body: Bytes,
    ) -> BoxFuture<'a, Response<HttpBody>> {
        Box::pin(self.handle_message(principal, headers, body))
    }

    async fn handle_message(
        self: &Arc<Self>,
        principal: Principal,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Response<HttpBody> {
        let text = match ByteString::try_from(body) {
            Ok(text) => text,
            Err(_) => {
                let error = RpcError::new(codes::PARSE_ERROR, "Parse error: not UTF-8");
                return reply::error(StatusCode::BAD_REQUEST, None, error);
            }
        };
        let message = match Message::parse(text.clone()) {
            Ok(message) => message,
            Err(MessageError::Batch) => return batch::post(self, &principal, headers, &text).await,
            Err(error) => return reply::error(StatusCode::BAD_REQUEST, error.id().cloned(), error.to_rpc_error()),
        };
        match era_of(headers, &message) {
            Era::Legacy => legacy::post(self, principal, headers, message).await,
            Era::Modern => modern::post(self, &principal, headers, message).await,
        }
    }

    /// The worker that all sessions of the principal share.
    async fn worker(&self, principal: &Principal) -> Result<Arc<Worker>, BrokerError> {
        self.evict_unused_workers();
        let bus = self.pool.bus(principal).await?;
        let mut workers = lock(&self.workers);
        if let Some(worker) = workers.get(principal).filter(|worker| Arc::ptr_eq(worker.bus(), &bus)) {
            return Ok(Arc::clone(worker));
        }
        let worker = Worker::new(bus, self.options.worker.clone());
        if self.stopping.is_cancelled() {
            worker.detach();
        }
        workers.insert(principal.clone(), Arc::clone(&worker));
        Ok(worker)
    }

    /// Called before a connection is taken from the pool, because a cached worker keeps its connection there in use.
    fn evict_unused_workers(&self) {
        let mut workers = lock(&self.workers);
        if workers.len() >= MAX_IDLE_WORKERS {
            workers.retain(|_, worker| Arc::strong_count(worker) > 1);
        }
    }
}

/// The body takes precedence: a modern request with a legacy header, or without one, is then rejected for the mismatch.
fn era_of(headers: &HeaderMap, message: &Message) -> Era {
    if let Message::Request(request) = message
        && Era::of_params(request.params.as_ref()) == Era::Modern
    {
        return Era::Modern;
    }
    match headers::version(headers) {
        None => Era::Legacy,
        Some(version) if LEGACY_VERSIONS.contains(&version) => Era::Legacy,
        Some(version) if headers::session(headers).is_some() && !MODERN_VERSIONS.contains(&version) => Era::Legacy,
        Some(_) => Era::Modern,
    }
}
