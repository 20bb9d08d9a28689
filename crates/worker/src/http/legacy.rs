//! The legacy era over HTTP: sessions, a resumable stream per call, and one for messages that belong to no call.
//! Closing a stream is not a cancellation: the call goes on and its messages are kept.

use super::abandoned::{AbandonedCalls, CallKey, JoinedCall, LostCaller};
use super::events::{EventId, EventLog, LastEvent, NextEvent, STANDALONE};
use super::session::Session;
use super::{HttpBody, HttpService, Principal, headers, reply, sse};
use crate::error;
use crate::frontend::{FrontendCall, joined};
use bytes::Bytes;
use futures_util::{Stream, stream};
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Response, StatusCode};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use toolbus_mcp::{Era, LEGACY_VERSIONS, Message, Request, Response as RpcResponse, RpcError, codes};

/// The first version whose clients accept an event without data.
const PRIMING_SINCE: &str = "2025-11-25";
const RETRY_MS: u64 = 1000;

pub async fn post(
    service: &Arc<HttpService>,
    principal: Principal,
    headers: &HeaderMap,
    message: Message,
) -> Response<HttpBody> {
    if let Message::Request(request) = &message
        && request.method == "initialize"
    {
        return initialize(service, &principal, request.clone()).await;
    }
    let session = match session(service, &principal, headers).await {
        Ok(session) => session,
        Err((status, error)) => {
            let id = if let Message::Request(request) = message { Some(request.id) } else { None };
            return reply::error(status, id, error);
        }
    };
    match message {
        Message::Request(request) => call(service, &principal, session, request).await,
        Message::Notification(notification) => {
            session.frontend.notification(Era::Legacy, notification).await;
            reply::empty(StatusCode::ACCEPTED)
        }
        Message::Response(response) => {
            session.frontend.response(response).await;
            reply::empty(StatusCode::ACCEPTED)
        }
    }
}

/// `GET`: the messages that belong to no call, or the rest of a broken stream.
pub async fn open_stream(service: &Arc<HttpService>, principal: &Principal, headers: &HeaderMap) -> Response<HttpBody> {
    if !headers::accepts(headers, "text/event-stream") {
        let error = RpcError::new(codes::INVALID_REQUEST, "Not Acceptable: Accept must include text/event-stream");
        return reply::error(StatusCode::NOT_ACCEPTABLE, None, error);
    }
    let session = match session(service, principal, headers).await {
        Ok(session) => session,
        Err((status, error)) => return reply::error(status, None, error),
    };
    let last = headers.get(headers::LAST_EVENT).map(|last| session.log.parse(last.to_str().ok()?));
    let (at, reader) = match last {
        Some(None) => {
            let error = RpcError::new(codes::INVALID_REQUEST, "Bad Request: invalid Last-Event-ID");
            return reply::error(StatusCode::BAD_REQUEST, None, error);
        }
        Some(Some(LastEvent::Known(last))) if last.stream != STANDALONE => {
            service.abandoned.stream_resumed(&session.id, last.stream);
            (last, 0)
        }
        Some(Some(LastEvent::Known(last))) => session.log.take_standalone(Some(last.number)),
        // The call may still run at its host, but only a repetition can be joined to it.
        Some(Some(LastEvent::Earlier { stream, request })) if stream != STANDALONE => {
            let lost = request.map(|id| RpcResponse { id: Some(id), outcome: error::cut_off().into() }.into());
            return reply::stream(stream::iter(lost.map(|lost| sse::event(&lost))));
        }
        Some(Some(LastEvent::Earlier { .. })) | None => session.log.take_standalone(None),
    };
    let primes = can_prime(&session);
    with_session(reply::stream(StreamReader::new(service, session, at, reader).events(primes)), None)
}

pub async fn end_session(service: &Arc<HttpService>, principal: &Principal, headers: &HeaderMap) -> Response<HttpBody> {
    match session(service, principal, headers).await {
        Ok(session) => {
            service.sessions.end(&session);
            reply::empty(StatusCode::OK)
        }
        Err((status, error)) => reply::error(status, None, error),
    }
}

pub async fn session(
    service: &HttpService,
    principal: &Principal,
    headers: &HeaderMap,
) -> Result<Arc<Session>, (StatusCode, RpcError)> {
    let bad = |message: String| (StatusCode::BAD_REQUEST, RpcError::new(codes::INVALID_REQUEST, message));
    let id = headers::session(headers).ok_or_else(|| bad("Bad Request: Missing session ID".into()))?;
    if let Some(version) = headers::version(headers)
        && !LEGACY_VERSIONS.contains(&version)
    {
        let supported = LEGACY_VERSIONS.join(", ");
        return Err(bad(format!("Bad Request: Unsupported protocol version: {version} (supported: {supported})")));
    }
    if let Some(session) = service.sessions.find(principal, id) {
        return Ok(session);
    }
    let unknown = || (StatusCode::NOT_FOUND, error::session_unknown());
    let kept = service.sessions.kept(principal, id).await.ok_or_else(unknown)?;
    let unavailable = |error: RpcError| (StatusCode::SERVICE_UNAVAILABLE, error);
    let worker = service.worker(principal).await.map_err(|refusal| unavailable(error::from_bus(&refusal)))?;
    let share = service.principals.share(principal);
    service.sessions.reopen(id, kept, principal, share, worker).map_err(unavailable)
}

/// Waits for the response, which decides whether the session exists. Messages before it go to the standalone stream.
async fn initialize(service: &Arc<HttpService>, principal: &Principal, request: Request) -> Response<HttpBody> {
    let id = request.id.clone();
    let worker = match service.worker(principal).await {
        Ok(worker) => worker,
        Err(refusal) => return reply::error(StatusCode::OK, Some(id), error::from_bus(&refusal)),
    };
    let session = match service.sessions.open(principal, service.principals.share(principal), worker) {
        Ok(session) => session,
        Err(error) => return reply::error(StatusCode::SERVICE_UNAVAILABLE, Some(id), error),
    };
    let mut guard = SessionGuard { service, session: Some(Arc::clone(&session)) };
    let mut call = session.frontend.request(Era::Legacy, request).await;
    while let Some(message) = call.next().await {
        if !matches!(message, Message::Response(_)) {
            session.log.append(STANDALONE, &message);
            continue;
        }
        if session.frontend.version().is_none() {
            return reply::json(StatusCode::OK, &message);
        }
        guard.session = None;
        service.sessions.keep(&session, service.principals.share(principal));
        return with_session(reply::json(StatusCode::OK, &message), Some(&session.id));
    }
    reply::empty(StatusCode::ACCEPTED)
}

/// Ends a session whose `initialize` failed or whose client disconnected before the response.
struct SessionGuard<'a> {
    service: &'a HttpService,
    session: Option<Arc<Session>>,
}

impl Drop for SessionGuard<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.service.sessions.end(&session);
        }
    }
}

async fn call(
    service: &Arc<HttpService>,
    principal: &Principal,
    session: Arc<Session>,
    request: Request,
) -> Response<HttpBody> {
    let id = request.id.clone();
    let mut exchange = match begin(service, principal, session, request).await {
        Ok(exchange) => exchange,
        Err(answered) => return reply::json(StatusCode::OK, &answered),
    };
    let first = match tokio::time::timeout(service.options.legacy_quiet, exchange.next()).await {
        Ok(Some(message @ Message::Response(_))) => return reply::json(StatusCode::OK, &message),
        Ok(Some(message)) => Some(message),
        Ok(None) => return reply::stream(stream::empty()),
        Err(_) => None,
    };
    let start = exchange.session.log.open_stream(&id);
    exchange.stream = Some(start.stream);
    let mut ready = Vec::new();
    if can_prime(&exchange.session) {
        ready.push(sse::priming(&exchange.session.log.text_of(start), RETRY_MS));
    }
    ready.extend(first.map(|message| exchange.session.log.append(start.stream, &message)));
    ready.reverse();
    reply::stream(exchange.events(ready, service.options.keepalive))
}

/// Starts the call, or joins it to an earlier equal one whose client lost its connection. Returns the response if that one
/// has ended.
pub async fn begin(
    service: &Arc<HttpService>,
    principal: &Principal,
    session: Arc<Session>,
    request: Request,
) -> Result<Exchange, Message> {
    let key = session.frontend.may_join(&request).then(|| CallKey::of(principal, &request)).flatten();
    let earlier = match &key {
        Some(key) => service.abandoned.join(key, &session).await,
        None => None,
    };
    let call = match earlier {
        Some(JoinedCall::Ended(outcome, call)) => {
            let outcome = joined::mark_joined(outcome, call.as_deref());
            return Err(RpcResponse { id: Some(request.id), outcome }.into());
        }
        Some(JoinedCall::Running(mut call, earlier)) => {
            call.join(&session.frontend, &request, earlier);
            call
        }
        None => session.frontend.request(Era::Legacy, request).await,
    };
    let abandoned = Arc::clone(&service.abandoned);
    session.readers.fetch_add(1, Ordering::Relaxed);
    let stopping = service.stopping.clone();
    Ok(Exchange { session, call: Some(call), stream: None, key, abandoned, stopping })
}

/// A call and its stream in the event log. If the client disconnects, the call goes on in the background.
pub struct Exchange {
    session: Arc<Session>,
    call: Option<FrontendCall>,
    stream: Option<u64>,
    key: Option<CallKey>,
    abandoned: Arc<AbandonedCalls>,
    stopping: CancellationToken,
}

impl Exchange {
    /// All messages of the call, for a response that can't be resumed.
    pub fn messages(self) -> impl Stream<Item = Message> + Send + 'static {
        stream::unfold(self, |mut exchange| async move { Some((exchange.next().await?, exchange)) })
    }

    async fn next(&mut self) -> Option<Message> {
        let message = self.call.as_mut()?.next_or_cut_off(&self.stopping).await;
        if matches!(message, None | Some(Message::Response(_))) {
            self.call = None;
        }
        message
    }

    /// The events in `ready` (in reverse order), then those of the call.
    fn events(self, ready: Vec<Bytes>, keepalive: Duration) -> impl Stream<Item = Bytes> + Send + 'static {
        stream::unfold((self, ready), move |(mut exchange, mut ready)| async move {
            if let Some(event) = ready.pop() {
                return Some((event, (exchange, ready)));
            }
            let stream = exchange.stream?;
            let event = match tokio::time::timeout(keepalive, exchange.next()).await {
                Err(_) => sse::KEEPALIVE,
                Ok(Some(message)) => exchange.session.log.append(stream, &message),
                Ok(None) => {
                    exchange.finish();
                    return None;
                }
            };
            Some((event, (exchange, ready)))
        })
    }

    fn finish(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.session.log.end_stream(stream);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.session.readers.fetch_sub(1, Ordering::Relaxed);
        let Some(mut call) = self.call.take() else { return self.finish() };
        let (session, stream) = (Arc::clone(&self.session), self.stream.take());
        if let Some(key) = self.key.take() {
            let caller = LostCaller { session, stream, id: call.id().clone() };
            return self.abandoned.adopt(key, &caller, call);
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            while let Some(message) = call.next().await {
                stream.iter().for_each(|stream| drop(session.log.append(*stream, &message)));
            }
            stream.iter().for_each(|stream| session.log.end_stream(*stream));
        });
    }
}

/// A client that reads a stream from the event log.
struct StreamReader {
    session: Arc<Session>,
    at: EventId,
    reader: u64,
    keepalive: Duration,
}

impl StreamReader {
    fn new(service: &HttpService, session: Arc<Session>, at: EventId, reader: u64) -> Self {
        session.readers.fetch_add(1, Ordering::Relaxed);
        Self { session, at, reader, keepalive: service.options.keepalive }
    }

    fn events(self, primes: bool) -> impl Stream<Item = Bytes> + Send + 'static {
        let priming = primes.then(|| sse::priming(&self.session.log.text_of(self.at), RETRY_MS));
        stream::unfold((self, priming), |(mut reader, mut priming)| async move {
            if let Some(priming) = priming.take() {
                return Some((priming, (reader, None)));
            }
            let log = Arc::clone(&reader.session.log);
            match tokio::time::timeout(reader.keepalive, reader.next(&log)).await {
                Err(_) => Some((sse::KEEPALIVE, (reader, None))),
                Ok(event) => event.map(|event| (event, (reader, None))),
            }
        })
    }

    async fn next(&mut self, log: &EventLog) -> Option<Bytes> {
        loop {
            let mut changed = std::pin::pin!(log.changed.notified());
            changed.as_mut().enable();
            match log.after(self.at, self.reader) {
                NextEvent::Event(id, text) => {
                    self.at = id;
                    return Some(text);
                }
                NextEvent::Ended => return None,
                NextEvent::Pending => changed.await,
            }
        }
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        self.session.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

fn can_prime(session: &Session) -> bool {
    session.frontend.version().is_some_and(|version| version.as_str() >= PRIMING_SINCE)
}

fn with_session(mut answer: Response<HttpBody>, id: Option<&str>) -> Response<HttpBody> {
    if let Some(id) = id.and_then(|id| HeaderValue::from_str(id).ok()) {
        answer.headers_mut().insert(headers::SESSION, id);
    }
    answer
}
