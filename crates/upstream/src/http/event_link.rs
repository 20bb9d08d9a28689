//! The connection to a server over the HTTP transport before streamable HTTP: one stream of events carries all messages of
//! the server, and its first event names the endpoint that messages are posted to. The stream is the session; like a
//! process, it is not resumed.

use super::SEND_TIMEOUT;
use super::client::{HttpClient, read_body};
use super::exchange::{is_event_stream, next_data};
use super::sse::{SseItem, SseParser};
use crate::calls::Origin;
use crate::config::ServerConfig;
use crate::error::ServerError;
use crate::inbound::{Inbound, Reaction, increment};
use crate::options::ConnectionOptions;
use crate::secrets::Resolved;
use crate::stdio::cancelled;
use hyper::header::HeaderMap;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolbus_mcp::{Message, Request};

/// Many files still say `sse` for servers that have moved on.
const OTHER_TRANSPORT: &str = "for a server that speaks streamable HTTP, the type is \"http\"";

pub(crate) struct EventLink {
    shared: Arc<Shared>,
    /// Set once the endpoint is known. Closed when the stream has ended.
    ready: watch::Receiver<bool>,
}

struct Shared {
    inbound: Arc<Inbound>,
    http: HttpClient,
    limit: usize,
    stop: CancellationToken,
}

impl EventLink {
    pub fn open(
        config: &ServerConfig,
        resolved: &Resolved,
        options: &ConnectionOptions,
        inbound: Arc<Inbound>,
    ) -> Result<Self, ServerError> {
        let http = HttpClient::new(config, resolved)?;
        let limit = options.max_message_bytes;
        let shared = Arc::new(Shared { inbound, http, limit, stop: CancellationToken::new() });
        let (sender, ready) = watch::channel(false);
        let listening = EventLinkTask { shared: Arc::clone(&shared), ready: sender, replies: ready.clone() };
        tokio::spawn(listening.run());
        Ok(Self { shared, ready })
    }

    /// Posts the request in a task of its own: its answer is on the stream. Some servers accept a request only when they
    /// have answered it, so the caller's deadline limits the wait.
    pub fn start(&self, number: u64, request: Request) {
        let (shared, ready) = (Arc::clone(&self.shared), self.ready.clone());
        tokio::spawn(async move {
            let posted = shared.stop.run_until_cancelled(shared.post(ready, request.into())).await;
            if let Some(Err(error)) = posted {
                shared.inbound.calls.finish(number, Err(error));
            }
        });
    }

    /// Sends a notification, or an answer to a request of the server.
    pub async fn send(&self, message: Message) -> Result<(), ServerError> {
        self.shared.post_in_time(self.ready.clone(), message).await
    }

    pub fn cancel(&self, number: u64, reason: Option<&str>) {
        self.shared.post_later(&self.ready, cancelled(number, reason).into());
    }

    /// Closes the stream, and with it the session.
    pub fn stop(&self) {
        self.shared.inbound.close(self.shared.closed());
        self.shared.stop.cancel();
    }
}

impl Shared {
    async fn post(&self, mut ready: watch::Receiver<bool>, message: Message) -> Result<(), ServerError> {
        if ready.wait_for(|ready| *ready).await.is_err() {
            return Err(self.closed());
        }
        let response = self.http.post(message.to_json(), HeaderMap::new()).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let body = read_body(response.into_body(), self.limit).await.unwrap_or_default();
        if status.as_u16() == 404 {
            let gone = ServerError::SessionGone { server: self.inbound.server.clone() };
            self.inbound.close_to_new_calls(gone.clone());
            return Err(gone);
        }
        Err(self.http.status_error(status.as_u16(), &body))
    }

    async fn post_in_time(&self, ready: watch::Receiver<bool>, message: Message) -> Result<(), ServerError> {
        let silent = || ServerError::NotReading { server: self.inbound.server.clone(), after: SEND_TIMEOUT };
        tokio::time::timeout(SEND_TIMEOUT, self.post(ready, message)).await.unwrap_or_else(|_| Err(silent()))
    }

    /// For callers that can't await. A failure shows at the next use of the connection.
    fn post_later(self: &Arc<Self>, ready: &watch::Receiver<bool>, message: Message) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (shared, ready) = (Arc::clone(self), ready.clone());
            runtime.spawn(async move { shared.post_in_time(ready, message).await });
        }
    }

    /// Why the connection is closed.
    fn closed(&self) -> ServerError {
        let closed = || ServerError::Closed { server: self.inbound.server.clone() };
        self.inbound.calls.closed().unwrap_or_else(closed)
    }
}

/// Reads the stream until it ends or the link is stopped.
struct EventLinkTask {
    shared: Arc<Shared>,
    ready: watch::Sender<bool>,
    replies: watch::Receiver<bool>,
}

impl EventLinkTask {
    async fn run(self) {
        let stop = self.shared.stop.clone();
        let Some(error) = stop.run_until_cancelled(self.listen()).await else { return };
        // Before `ready` is closed, so that waiting requests get this error.
        self.shared.inbound.close(error);
    }

    async fn listen(&self) -> ServerError {
        let Shared { inbound, http, limit, .. } = &*self.shared;
        let _in_use = http.connections.begin_use();
        let response = match http.get_stream(None).await {
            Ok(response) => response,
            Err(error) => return error,
        };
        let status = response.status();
        let is_stream = is_event_stream(&response);
        let mut body = response.into_body();
        if !status.is_success() {
            let error = http.status_error(status.as_u16(), &read_body(body, *limit).await.unwrap_or_default());
            return match error {
                ServerError::HttpStatus { server, status: status @ (400 | 404 | 405 | 406), detail } => {
                    ServerError::HttpStatus { server, status, detail: format!("{detail} ({OTHER_TRANSPORT})") }
                }
                error => error,
            };
        }
        if !is_stream {
            return inbound.bad_message(format!("its url is not an event stream ({OTHER_TRANSPORT})"));
        }
        let (mut events, mut found) = (SseParser::with_endpoint(*limit), Vec::new());
        loop {
            let ended = |reason| ServerError::BrokenOff { server: inbound.server.clone(), reason };
            match next_data(&mut body).await {
                Ok(Some(data)) => events.feed(&data, &mut found),
                Ok(None) => return ended("the event stream ended".to_owned()),
                Err(error) => return ended(error.to_string()),
            }
            for item in found.drain(..) {
                if let Err(error) = self.take(item).await {
                    return error;
                }
            }
        }
    }

    async fn take(&self, item: SseItem) -> Result<(), ServerError> {
        let inbound = &self.shared.inbound;
        match item {
            SseItem::Endpoint(endpoint) if !*self.ready.borrow() => {
                if !self.shared.http.set_endpoint(&endpoint) {
                    let reason = "its endpoint for messages is not of the same origin as its url".to_owned();
                    return Err(inbound.bad_message(reason));
                }
                self.ready.send_replace(true);
            }
            SseItem::Event(data) if !data.is_empty() => {
                let reaction = inbound.deliver(inbound.receive(data.into()), Origin::Pipe).await;
                match reaction {
                    Reaction::Nothing => {}
                    Reaction::Garbage(reason) => inbound.ignore_event(&reason),
                    Reaction::Reply(response) => self.shared.post_later(&self.replies, response.into()),
                    Reaction::Cancel(number) => self.shared.post_later(&self.replies, cancelled(number, None).into()),
                }
            }
            // Nothing says which call it answers, and that call must not wait for ever.
            SseItem::TooLarge(bytes) => {
                increment(&inbound.counters.too_large);
                let (server, limit) = (inbound.server.clone(), self.shared.limit);
                return Err(ServerError::TooLarge { server, bytes, limit });
            }
            SseItem::Endpoint(_) | SseItem::Event(_) | SseItem::Retry(_) => {}
        }
        Ok(())
    }
}
