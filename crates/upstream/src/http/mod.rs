//! The connection to a server over streamable HTTP, in either era. Every call is a POST in a task of its own; the
//! messages on its response stream belong to it. Legacy servers also have a session, and a stream for messages outside
//! of calls.

mod client;
mod connector;
mod event_link;
mod exchange;
mod headers;
pub(crate) mod sse;

pub(crate) use event_link::EventLink;

use crate::config::ServerConfig;
use crate::error::ServerError;
use crate::inbound::{Inbound, Reaction};
use crate::options::ConnectionOptions;
use crate::secrets::Resolved;
use crate::stdio::cancelled;
use client::HttpClient;
use hyper::header::HeaderMap;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use toolbus_mcp::{Era, Message, Raw, Request};

/// Timeout for posting a notification or an answer.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct HttpLink {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    inbound: Arc<Inbound>,
    http: HttpClient,
    era: Era,
    limit: usize,
    shutdown_timeout: Duration,
    stop: CancellationToken,
    listening: AtomicBool,
    /// The task of each open call. Aborting it closes its stream.
    streams: Mutex<HashMap<u64, AbortHandle>>,
}

impl HttpLink {
    pub fn open(
        config: &ServerConfig,
        resolved: &Resolved,
        era: Era,
        options: &ConnectionOptions,
        inbound: Arc<Inbound>,
    ) -> Result<Self, ServerError> {
        let http = HttpClient::new(config, resolved)?;
        let shared = Shared {
            inbound,
            http,
            era,
            limit: options.max_message_bytes,
            shutdown_timeout: options.grace,
            stop: CancellationToken::new(),
            listening: AtomicBool::new(false),
            streams: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub fn start(&self, number: u64, request: Request) -> Result<(), ServerError> {
        let shared = self.shared.clone();
        // Locked until the task is inserted, so that the task can't remove itself before.
        let mut streams = self.shared.streams();
        let task = tokio::spawn(async move {
            exchange::run(&shared, number, request).await;
            shared.streams().remove(&number);
        });
        streams.insert(number, task.abort_handle());
        Ok(())
    }

    /// Sends a notification, or an answer to a request of the server.
    pub async fn send(&self, message: Message) -> Result<(), ServerError> {
        let is_initialized =
            matches!(&message, Message::Notification(note) if note.method == "notifications/initialized");
        self.shared.send(message).await?;
        if is_initialized && self.shared.era == Era::Legacy && !self.shared.listening.swap(true, Ordering::Relaxed) {
            let shared = self.shared.clone();
            let stop = self.shared.stop.clone();
            tokio::spawn(async move { stop.run_until_cancelled(exchange::listen(&shared)).await });
        }
        Ok(())
    }

    pub fn learn_tools(&self, list: &Raw) {
        self.shared.http.tools().learn(list);
    }

    /// The number of TCP connections that were opened so far.
    pub fn connections_opened(&self) -> u64 {
        self.shared.http.connections.opened()
    }

    /// Whether the next request opens a TCP connection.
    pub fn would_connect(&self) -> bool {
        self.shared.http.connections.would_open()
    }

    /// Legacy servers get a notification; for modern servers, closing the stream is the cancellation.
    pub fn cancel(&self, number: u64, _method: &str, reason: Option<&str>) {
        self.shared.cancel(number, reason);
    }

    pub fn stop(&self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let shared = self.shared.clone();
            runtime.spawn(async move { shared.close().await });
        } else {
            self.shared.stop.cancel();
        }
    }

    pub async fn close(&self) {
        self.shared.close().await;
    }
}

impl Shared {
    async fn send(&self, message: Message) -> Result<(), ServerError> {
        let mut extra = HeaderMap::new();
        if self.era == Era::Modern {
            let method = match &message {
                Message::Notification(note) => note.method.clone(),
                _ => String::new(),
            };
            let request = Request { id: toolbus_mcp::Id::number(0), method, params: None };
            headers::of_request(&request, &self.http.tools(), &mut extra);
        }
        let _in_use = self.http.connections.begin_use();
        let post = async {
            let response = self.http.post(message.to_json(), extra).await?;
            if response.status().is_success() {
                return Ok(());
            }
            let status = response.status().as_u16();
            let body = client::read_body(response.into_body(), self.limit).await.unwrap_or_default();
            if self.is_session_gone(status, &body) {
                return Err(self.session_gone());
            }
            Err(self.http.status_error(status, &body))
        };
        let silent = || ServerError::NotReading { server: self.inbound.server.clone(), after: SEND_TIMEOUT };
        tokio::time::timeout(SEND_TIMEOUT, post).await.unwrap_or_else(|_| Err(silent()))
    }

    fn cancel(self: &Arc<Self>, number: u64, reason: Option<&str>) {
        match self.era {
            Era::Modern => {
                if let Some(stream) = self.streams().remove(&number) {
                    stream.abort();
                }
                let server = self.inbound.server.clone();
                self.inbound.calls.finish(number, Err(ServerError::Cancelled { server }));
            }
            Era::Legacy => self.send_later(cancelled(number, reason).into()),
        }
    }

    /// For callers that can't await. A failure shows at the next use of the connection.
    fn send_later(self: &Arc<Self>, message: Message) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let shared = self.clone();
            runtime.spawn(async move { shared.send(message).await });
        }
    }

    async fn react(self: &Arc<Self>, reaction: Reaction) {
        match reaction {
            Reaction::Nothing => {}
            Reaction::Garbage(reason) => self.inbound.ignore_event(&reason),
            Reaction::Reply(response) => self.send_later(response.into()),
            Reaction::Cancel(number) => self.cancel(number, None),
        }
    }

    /// Servers answer 404 (some 400) if they no longer know the session.
    fn is_session_gone(&self, status: u16, body: &[u8]) -> bool {
        // Another request may have detected it first.
        let lost_session = || matches!(self.inbound.calls.closed(), Some(ServerError::SessionGone { .. }));
        let had_session = self.http.session().id.is_some() || lost_session();
        let names_session = || String::from_utf8_lossy(body).to_lowercase().contains("session");
        had_session && (status == 404 || (status == 400 && names_session()))
    }

    /// Only the rejected request is known not to have run. Earlier requests of the session may have run, so they are
    /// left to end on their own.
    fn session_gone(&self) -> ServerError {
        let error = ServerError::SessionGone { server: self.inbound.server.clone() };
        self.http.session().id = None;
        self.stop.cancel();
        self.inbound.close_to_new_calls(error.clone());
        error
    }

    /// Ends every stream and deletes the session of a legacy server.
    async fn close(&self) {
        self.inbound.close(ServerError::Closed { server: self.inbound.server.clone() });
        self.stop.cancel();
        for (_, stream) in self.streams().drain() {
            stream.abort();
        }
        let session = self.http.session().id.is_some();
        if session {
            let _ = tokio::time::timeout(self.shutdown_timeout, self.http.delete()).await;
            self.http.session().id = None;
        }
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<u64, AbortHandle>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
