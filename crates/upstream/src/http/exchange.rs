//! One POST and its response, as a body or as a stream, and the resumption of a broken legacy stream.

use super::Shared;
use super::client::{BodyError, read_body};
use super::headers;
use super::sse::{SseItem, SseParser};
use crate::calls::Origin;
use crate::error::ServerError;
use crate::inbound::Received;
use bytes::Bytes;
use bytestring::ByteString;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use std::sync::Arc;
use std::time::Duration;
use toolbus_mcp::{Era, Id, Message, Outcome, Request};

/// Delay before a reconnect, unless the server sets another.
const RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(30);
/// Consecutive attempts without a new event.
const MAX_ATTEMPTS: u32 = 5;
/// How long to wait for the end of a stream after the response, so that its connection can be reused.
const TRAILING_TIMEOUT: Duration = Duration::from_millis(500);

/// Sends the request and delivers the response stream, until the call has ended.
pub(super) async fn run(shared: &Arc<Shared>, number: u64, request: Request) {
    let mut extra = HeaderMap::new();
    if shared.era == Era::Modern {
        headers::of_request(&request, &shared.http.tools(), &mut extra);
    }
    let method = request.method.clone();
    if method == "initialize" {
        *shared.http.session() = super::client::Session::default();
    }
    let body = Message::from(request).to_json();
    let _in_use = shared.http.connections.begin_use();
    let ended = match shared.http.post(body, extra).await {
        Ok(response) => Exchange { shared, number, method }.answer(response).await,
        Err(error) => Err(error),
    };
    if shared.inbound.calls.is_open(number) {
        let broken = || ServerError::BrokenOff { server: shared.inbound.server.clone(), reason: String::new() };
        shared.inbound.calls.finish(number, Err(ended.err().unwrap_or_else(broken)));
    }
}

struct Exchange<'a> {
    shared: &'a Arc<Shared>,
    number: u64,
    method: String,
}

impl Exchange<'_> {
    async fn answer(&self, response: Response<Incoming>) -> Result<(), ServerError> {
        let status = response.status().as_u16();
        if self.method == "initialize" && response.status().is_success() {
            let id = response.headers().get(headers::SESSION_ID).cloned();
            self.shared.http.session().id = id;
        }
        if response.status().is_success() && is_event_stream(&response) {
            return self.stream(response.into_body()).await;
        }
        let body = match read_body(response.into_body(), self.shared.limit).await {
            Ok(body) => Bytes::from(body),
            Err(BodyError::TooLarge(bytes)) => return Err(self.too_large(bytes)),
            Err(BodyError::Broken(error)) => return Err(self.broken_off(error.to_string())),
        };
        let received = self.shared.inbound.receive(text_of(&body));
        let response = received.response();
        // A JSON-RPC response with the request's own id counts, whatever the HTTP status.
        if response.is_some_and(|response| response.id == Some(Id::number(self.number))) {
            self.deliver(received).await;
            return Ok(());
        }
        let is_rpc_error =
            response.is_some_and(|response| response.id.is_none() && matches!(response.outcome, Outcome::Error(_)));
        if self.shared.is_session_gone(status, &body) {
            return Err(self.shared.session_gone());
        }
        match status {
            200..=299 if body.is_empty() => {
                Err(self.shared.inbound.bad_message(format!("HTTP {status} without an answer to {:?}", self.method)))
            }
            200..=299 => {
                self.deliver(received).await;
                Ok(())
            }
            // A JSON-RPC error without an id can only refer to this request.
            _ if is_rpc_error => {
                self.deliver(received).await;
                Ok(())
            }
            _ => Err(self.shared.http.status_error(status, &body)),
        }
    }

    async fn stream(&self, body: Incoming) -> Result<(), ServerError> {
        let mut events = SseParser::new(self.shared.limit);
        let mut retry = RETRY;
        let mut attempts = 0;
        let mut reason = match self.pump(body, &mut events, &mut retry).await {
            Pumped::Answered => return Ok(()),
            Pumped::Ended { reason, .. } => reason,
        };
        loop {
            // Only legacy servers that send event ids support resumption.
            if self.shared.era == Era::Modern || events.last_id.is_none() || attempts == MAX_ATTEMPTS {
                return Err(self.broken_off(reason));
            }
            tokio::time::sleep(retry.min(MAX_RETRY)).await;
            attempts += 1;
            events.restart();
            let response = match self.shared.http.get_stream(events.last_id.as_deref()).await {
                Ok(response) => response,
                Err(error) => {
                    reason = error.to_string();
                    continue;
                }
            };
            let status = response.status().as_u16();
            if self.shared.is_session_gone(status, b"") {
                self.shared.session_gone();
                return Err(self.broken_off(format!("{reason}; the server no longer knows the session")));
            }
            if !response.status().is_success() || !is_event_stream(&response) {
                return Err(self.broken_off(format!("{reason}; the stream can't be resumed: HTTP {status}")));
            }
            match self.pump(response.into_body(), &mut events, &mut retry).await {
                Pumped::Answered => return Ok(()),
                Pumped::Ended { reason: new_reason, made_progress } => {
                    reason = new_reason;
                    attempts = if made_progress { 0 } else { attempts };
                }
            }
        }
    }

    /// Delivers the events of a stream until the call has its response or the stream ends.
    async fn pump(&self, mut body: Incoming, events: &mut SseParser, retry: &mut Duration) -> Pumped {
        let mut found = Vec::new();
        let mut made_progress = false;
        loop {
            let data = match next_data(&mut body).await {
                Ok(Some(data)) => data,
                Ok(None) => return Pumped::Ended { reason: "the stream ended".into(), made_progress },
                Err(error) => return Pumped::Ended { reason: error.to_string(), made_progress },
            };
            events.feed(&data, &mut found);
            for item in found.drain(..) {
                match item {
                    SseItem::Event(data) if data.is_empty() => {}
                    SseItem::Event(data) => {
                        made_progress = true;
                        self.deliver(self.shared.inbound.receive(data.into())).await;
                    }
                    SseItem::Retry(millis) => *retry = Duration::from_millis(millis),
                    SseItem::Endpoint(_) => {}
                    SseItem::TooLarge(bytes) => {
                        self.shared.inbound.calls.finish(self.number, Err(self.too_large(bytes)));
                    }
                }
            }
            if !self.shared.inbound.calls.is_open(self.number) {
                let rest = async { while let Ok(Some(_)) = next_data(&mut body).await {} };
                let _ = tokio::time::timeout(TRAILING_TIMEOUT, rest).await;
                return Pumped::Answered;
            }
        }
    }

    async fn deliver(&self, received: Received) {
        if let Some(Outcome::Result(result)) = received.response().map(|response| &response.outcome) {
            match self.method.as_str() {
                "initialize" => {
                    let version = result.members().ok().and_then(|result| result.text("protocolVersion"));
                    let version = version.and_then(|version| HeaderValue::try_from(version).ok());
                    self.shared.http.session().version = version;
                }
                "tools/list" => self.shared.http.tools().learn(result),
                _ => {}
            }
        }
        let reaction = self.shared.inbound.deliver(received, Origin::Call(self.number)).await;
        self.shared.react(reaction).await;
    }

    fn too_large(&self, bytes: u64) -> ServerError {
        let (server, limit) = (self.shared.inbound.server.clone(), self.shared.limit);
        crate::inbound::increment(&self.shared.inbound.counters.too_large);
        ServerError::TooLarge { server, bytes, limit }
    }

    fn broken_off(&self, reason: String) -> ServerError {
        ServerError::BrokenOff { server: self.shared.inbound.server.clone(), reason }
    }
}

enum Pumped {
    Answered,
    Ended { reason: String, made_progress: bool },
}

/// Reads the legacy server's stream for messages outside of calls. Reconnects until the server reports that it has no
/// such stream.
pub(super) async fn listen(shared: &Arc<Shared>) {
    let mut events = SseParser::new(shared.limit);
    let mut retry = RETRY;
    let mut failures = 0_u32;
    loop {
        events.restart();
        let in_use = shared.http.connections.begin_use();
        match shared.http.get_stream(events.last_id.as_deref()).await {
            Ok(response) if response.status().is_success() && is_event_stream(&response) => {
                failures = 0;
                listen_once(shared, response.into_body(), &mut events, &mut retry).await;
            }
            Ok(response) if shared.is_session_gone(response.status().as_u16(), b"") => {
                shared.session_gone();
                return;
            }
            // The server has no such stream, which MCP permits.
            Ok(response) if response.status().is_client_error() => return,
            Ok(_) | Err(_) => failures += 1,
        }
        drop(in_use);
        tokio::time::sleep((retry * 2_u32.pow(failures.min(5))).min(MAX_RETRY)).await;
    }
}

async fn listen_once(shared: &Arc<Shared>, mut body: Incoming, events: &mut SseParser, retry: &mut Duration) {
    let mut found = Vec::new();
    while let Ok(Some(data)) = next_data(&mut body).await {
        events.feed(&data, &mut found);
        for item in found.drain(..) {
            match item {
                SseItem::Event(data) if !data.is_empty() => {
                    let reaction = shared.inbound.deliver(shared.inbound.receive(data.into()), Origin::Outside).await;
                    shared.react(reaction).await;
                }
                SseItem::Retry(millis) => *retry = Duration::from_millis(millis),
                SseItem::Event(_) | SseItem::TooLarge(_) | SseItem::Endpoint(_) => {}
            }
        }
    }
}

pub(super) async fn next_data(body: &mut Incoming) -> Result<Option<Bytes>, hyper::Error> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

pub(super) fn is_event_stream(response: &Response<Incoming>) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream")
}

/// Invalid UTF-8 is replaced.
fn text_of(body: &Bytes) -> ByteString {
    ByteString::try_from(body.clone()).unwrap_or_else(|_| String::from_utf8_lossy(body).into_owned().into())
}
