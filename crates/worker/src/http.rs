//! MCP over streamable HTTP, both eras on one path. Host and Origin are checked by whoever owns the port; here is
//! decided who asks, in which era, and what the answer looks like on the wire.

mod abandoned;
mod events;
mod headers;
mod legacy;
mod modern;
mod reply;
mod session;
mod sse;

pub use reply::{HttpBody, unauthorized};

use crate::bus::{BoxFuture, Bus};
use crate::error::AuthFailure;
use crate::options::WorkerOptions;
use crate::worker::{Worker, lock};
use abandoned::AbandonedCalls;
use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::header::{ALLOW, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use session::Sessions;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use toolbus_client::BrokerError;
use toolbus_mcp::{Era, LEGACY_VERSIONS, MODERN_VERSIONS, Message, RpcError, codes};

/// Who asks, as its credential says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    pub name: String,
    pub role: Option<String>,
}

pub trait Principals: Send + Sync + 'static {
    /// What is known of the peer beside its headers is among the request's extensions.
    fn authenticate<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Result<Principal, AuthFailure>>;
}

/// Connections to the bus, one for each principal. The same principal gets the same one as long as it lives.
pub trait BusPool: Send + Sync + 'static {
    fn bus<'a>(&'a self, principal: &'a Principal) -> BoxFuture<'a, Result<Arc<dyn Bus>, BrokerError>>;
}

#[derive(Debug, Clone)]
pub struct HttpOptions {
    pub worker: WorkerOptions,
    pub max_body_bytes: usize,
    /// The longest pause in the middle of a body.
    pub body_patience: Duration,
    pub max_sessions: usize,
    pub max_sessions_per_principal: usize,
    pub session_idle: Duration,
    /// How long a legacy call may be silent before its answer becomes a stream that can be resumed.
    pub legacy_quiet: Duration,
    /// The same for modern calls. Until then an error still decides the status.
    pub modern_quiet: Duration,
    pub keepalive: Duration,
    /// What a session keeps for clients that come back for what they missed.
    pub max_replay_events: usize,
    pub max_replay_bytes: usize,
    /// How long the answer of a legacy call whose connection broke waits for the same call to come again.
    pub join_window: Duration,
    /// Of all such answers together; one agent's may take a quarter.
    pub max_join_bytes: usize,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            worker: WorkerOptions::default(),
            max_body_bytes: 16 << 20,
            body_patience: Duration::from_secs(30),
            max_sessions: 1024,
            max_sessions_per_principal: 256,
            session_idle: Duration::from_secs(30 * 60),
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

pub struct HttpService {
    options: HttpOptions,
    principals: Arc<dyn Principals>,
    pool: Arc<dyn BusPool>,
    workers: Mutex<HashMap<Principal, Arc<Worker>>>,
    sessions: Arc<Sessions>,
    abandoned: Arc<AbandonedCalls>,
}

/// Workers that are kept for principals without a session; past it the unused ones go.
const MAX_IDLE_WORKERS: usize = 512;

impl HttpService {
    /// Needs a runtime: idle sessions are looked for in the background as long as the service lives.
    pub fn new(principals: Arc<dyn Principals>, pool: Arc<dyn BusPool>, options: HttpOptions) -> Arc<Self> {
        let sessions = Sessions::new(&options);
        let abandoned = Arc::new(AbandonedCalls::new(options.join_window, options.max_join_bytes));
        Arc::new(Self { options, principals, pool, workers: Mutex::default(), sessions, abandoned })
    }

    pub async fn handle<B>(self: Arc<Self>, request: Request<B>) -> Response<HttpBody>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let (head, body) = request.into_parts();
        let principal = match self.principals.authenticate(&head).await {
            Ok(principal) => principal,
            Err(failure) => return unauthorized(&failure),
        };
        let is_modern = headers::version(&head.headers).is_some_and(|version| !LEGACY_VERSIONS.contains(&version));
        match head.method {
            Method::POST => self.post(principal, &head.headers, body).await,
            Method::GET if !is_modern => legacy::open_stream(&self, &principal, &head.headers),
            Method::DELETE if !is_modern => legacy::end_session(&self, &principal, &head.headers),
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
        B::Error: std::fmt::Display,
    {
        let invalid = |message: &str| RpcError::new(codes::INVALID_REQUEST, message);
        if !headers::is_json(headers) {
            let error = invalid("Bad Request: Content-Type has to be application/json");
            return reply::error(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, error);
        }
        if !headers::accepts(headers, "application/json") || !headers::accepts(headers, "text/event-stream") {
            let error = invalid("Not Acceptable: Accept has to name application/json and text/event-stream");
            return reply::error(StatusCode::NOT_ACCEPTABLE, None, error);
        }
        let body = match self.read(body).await {
            Ok(body) => body,
            Err((status, error)) => return reply::error(status, None, error),
        };
        let message = match std::str::from_utf8(&body).map(Message::parse) {
            Ok(Ok(message)) => message,
            Ok(Err(error)) => return reply::error(StatusCode::BAD_REQUEST, error.id().cloned(), error.to_rpc_error()),
            Err(_) => {
                let error = RpcError::new(codes::PARSE_ERROR, "Parse error: not UTF-8");
                return reply::error(StatusCode::BAD_REQUEST, None, error);
            }
        };
        drop(body);
        match era_of(headers, &message) {
            Era::Legacy => legacy::post(self, principal, headers, message).await,
            Era::Modern => modern::post(self, &principal, headers, message).await,
        }
    }

    async fn read<B>(&self, mut body: B) -> Result<Bytes, (StatusCode, RpcError)>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let limit = self.options.max_body_bytes;
        let refuse = |status, message: String| Err((status, RpcError::new(codes::INVALID_REQUEST, message)));
        let too_large = || refuse(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {limit} bytes"));
        if body.size_hint().lower() > limit as u64 {
            return too_large();
        }
        let mut whole = BytesMut::new();
        loop {
            let Ok(frame) = tokio::time::timeout(self.options.body_patience, body.frame()).await else {
                return refuse(StatusCode::REQUEST_TIMEOUT, "the body did not go on".into());
            };
            let data = match frame {
                None => return Ok(whole.freeze()),
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return refuse(StatusCode::BAD_REQUEST, format!("the body broke off: {error}")),
            };
            if whole.len() + data.len() > limit {
                return too_large();
            }
            whole.extend_from_slice(&data);
        }
    }

    /// What the principal's sessions share.
    async fn worker(&self, principal: &Principal) -> Result<Arc<Worker>, BrokerError> {
        self.forget_unused_workers();
        let bus = self.pool.bus(principal).await?;
        let mut workers = lock(&self.workers);
        if let Some(worker) = workers.get(principal).filter(|worker| Arc::ptr_eq(worker.bus(), &bus)) {
            return Ok(Arc::clone(worker));
        }
        let worker = Worker::new(bus, self.options.worker.clone());
        workers.insert(principal.clone(), Arc::clone(&worker));
        Ok(worker)
    }

    /// Before the pool is asked: a worker that is kept keeps its place there as well.
    fn forget_unused_workers(&self) {
        let mut workers = lock(&self.workers);
        if workers.len() >= MAX_IDLE_WORKERS {
            workers.retain(|_, worker| Arc::strong_count(worker) > 1);
        }
    }
}

/// The body's own words count most: a modern request with a legacy header, or none, is told that the two don't agree.
fn era_of(headers: &HeaderMap, message: &Message) -> Era {
    if let Message::Request(request) = message
        && Era::of_params(request.params.as_deref()) == Era::Modern
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
