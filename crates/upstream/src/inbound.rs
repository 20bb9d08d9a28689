//! Handles the server's messages for both transports: routes them, delivers them with a bounded wait, and counts
//! protocol violations.

use crate::call::CallEvent;
use crate::calls::{Answered, Calls, Destination, Origin};
use crate::connection::ServerEvent;
use crate::error::ServerError;
use crate::queue::CallQueue;
use crate::secrets::Redactor;
use bytestring::ByteString;
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use toolbus_mcp::{
    Id, IdScan, Message, MessageError, Notification, Outcome, Request, Response, RpcError, ScannedId, codes,
};

/// How long the reader waits for a caller or the owner to read. Then it continues: backpressure from one of them must
/// not block the others.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Protocol violations and drops that the connection tolerated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Oddities {
    /// Lines or events that are not JSON-RPC messages.
    pub garbage: u64,
    /// Responses to unknown requests, or to requests that were answered before.
    pub unknown_answers: u64,
    /// Progress notifications dropped in favour of newer ones.
    pub dropped_progress: u64,
    /// Events outside of calls that the owner did not read in time.
    pub dropped_events: u64,
    /// Messages over the size limit.
    pub too_large: u64,
    /// Calls that were ended because their caller did not read their events.
    pub slow_callers: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub garbage: AtomicU64,
    pub unknown_answers: AtomicU64,
    pub dropped_progress: AtomicU64,
    pub dropped_events: AtomicU64,
    pub too_large: AtomicU64,
    pub slow_callers: AtomicU64,
    /// The owner let a wait time out and has read nothing since.
    owner_is_stalled: AtomicBool,
}

pub(crate) struct Inbound {
    pub server: String,
    pub calls: Calls,
    pub redactor: Redactor,
    /// Errors are always redacted; all other messages only if this is set.
    pub redact_results: bool,
    pub counters: Counters,
    pub events: mpsc::Sender<ServerEvent>,
}

/// A message of the server, without secrets.
pub(crate) struct Received {
    text: ByteString,
    message: Result<Message, MessageError>,
}

impl Received {
    pub fn response(&self) -> Option<&Response> {
        match &self.message {
            Ok(Message::Response(response)) => Some(response),
            _ => None,
        }
    }
}

/// The follow-up to a delivered message.
#[derive(Debug)]
pub(crate) enum Reaction {
    Nothing,
    /// The text is not a JSON-RPC message.
    Garbage(String),
    /// Send this response to the server.
    Reply(Response),
    /// The call was ended here; the server should cancel it.
    Cancel(u64),
}

impl Inbound {
    /// Redacts and parses a message.
    pub fn receive(&self, text: ByteString) -> Received {
        let text = if self.redact_results { self.redacted(text) } else { text };
        let message = match Message::parse(text.clone()) {
            Ok(message @ Message::Response(Response { outcome: Outcome::Error(_), .. })) if !self.redact_results => {
                Message::parse(self.redacted(text.clone())).or(Ok(message))
            }
            parsed => parsed,
        };
        Received { text, message }
    }

    pub async fn deliver(&self, Received { text, message }: Received, origin: Origin) -> Reaction {
        match message {
            Ok(Message::Response(response)) => self.response(response, origin),
            Ok(Message::Notification(notification)) => self.notification(notification, origin).await,
            Ok(Message::Request(request)) => self.request(request, origin).await,
            Err(error) => self.invalid(error, &text, origin),
        }
    }

    fn redacted(&self, text: ByteString) -> ByteString {
        match self.redactor.redact_message(&text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(redacted) => redacted.into(),
        }
    }

    fn response(&self, Response { id, outcome }: Response, origin: Origin) -> Reaction {
        let number = match id {
            Some(id) => id.as_u64(),
            // On a call's own stream, a response without an id can only belong to that call.
            None => origin.call(),
        };
        self.finish(number, Ok(outcome));
        Reaction::Nothing
    }

    /// Ends a call, or counts a response to an unknown one.
    pub fn finish(&self, number: Option<u64>, outcome: Result<Outcome, ServerError>) {
        let answered = number.map_or(Answered::Unknown, |number| self.calls.finish(number, outcome));
        if matches!(answered, Answered::Unknown) && increment(&self.counters.unknown_answers) == 0 {
            tracing::warn!(server = self.server, code = "TB0409", "dropping a response to an unknown request");
        }
    }

    async fn notification(&self, Notification { method, mut params }: Notification, origin: Origin) -> Reaction {
        if let Some((number, reason)) = self.calls.ended_by_server(&method, &params) {
            let server = self.server.clone();
            self.calls.finish(number, Err(ServerError::EndedByServer { server, reason }));
            return Reaction::Nothing;
        }
        match self.calls.route_notification(&method, &mut params, origin) {
            Destination::Call(call, queue) => {
                self.to_call(call, &queue, CallEvent::Notification { method, params }).await
            }
            Destination::Owner => {
                self.to_owner(ServerEvent::Notification { method, params }).await;
                Reaction::Nothing
            }
        }
    }

    async fn request(&self, Request { id, method, params }: Request, origin: Origin) -> Reaction {
        match self.calls.route_request(origin) {
            Destination::Call(call, queue) => {
                self.to_call(call, &queue, CallEvent::Request { id, method, params }).await
            }
            Destination::Owner if self.to_owner(ServerEvent::Request { id: id.clone(), method, params }).await => {
                Reaction::Nothing
            }
            Destination::Owner => reject(id, "the client does not accept requests at the moment"),
        }
    }

    async fn to_call(&self, call: u64, queue: &CallQueue, event: CallEvent) -> Reaction {
        let mut event = event;
        let deadline = tokio::time::Instant::now() + DELIVERY_TIMEOUT;
        loop {
            match queue.offer(event) {
                Ok(dropped) => {
                    self.counters.dropped_progress.fetch_add(dropped as u64, Ordering::Relaxed);
                    return Reaction::Nothing;
                }
                Err(returned) => event = returned,
            }
            if tokio::time::timeout_at(deadline, queue.event_taken()).await.is_err() {
                let error = ServerError::SlowCaller { server: self.server.clone(), after: DELIVERY_TIMEOUT };
                increment(&self.counters.slow_callers);
                self.calls.abandon(call);
                queue.end(CallEvent::Done(Err(error)));
                return Reaction::Cancel(call);
            }
        }
    }

    /// Returns false if the owner did not read it.
    async fn to_owner(&self, event: ServerEvent) -> bool {
        // `Closed` is the last event.
        if self.calls.closed().is_some() {
            return false;
        }
        let stalled = &self.counters.owner_is_stalled;
        let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(event) else {
            stalled.store(false, Ordering::Relaxed);
            return true;
        };
        // An owner that let one wait time out is not waited for again: otherwise every event would delay all calls.
        let wait = async { self.events.send(event).await.is_ok() };
        let taken =
            !stalled.load(Ordering::Relaxed) && tokio::time::timeout(DELIVERY_TIMEOUT, wait).await.unwrap_or(false);
        stalled.store(!taken, Ordering::Relaxed);
        if !taken && increment(&self.counters.dropped_events) == 0 {
            tracing::warn!(server = self.server, "dropping events of the server: the owner does not read them");
        }
        taken
    }

    /// An invalid message may still have the id of a call, which then ends with an error instead of hanging.
    fn invalid(&self, error: MessageError, text: &str, origin: Origin) -> Reaction {
        let mut scan = IdScan::default();
        scan.feed(text.as_bytes());
        let found = scan.finish();
        let is_json = text.trim_start().starts_with('{') && found.balanced;
        let id = is_json.then(|| found.id.as_ref().and_then(Id::from_raw)).flatten();
        match (id, found.has_method) {
            (Some(id), true) => reject(id, &error.to_string()),
            (Some(id), false) if id.as_u64().is_some_and(|number| self.calls.is_open(number)) => {
                self.finish(id.as_u64(), Err(self.bad_message(error.to_string())));
                Reaction::Nothing
            }
            _ => {
                if let Some(call) = origin.call() {
                    self.calls.finish(call, Err(self.bad_message(error.to_string())));
                }
                Reaction::Garbage(error.to_string())
            }
        }
    }

    /// Handles a message over the limit, of which only the scan result is known.
    pub fn too_large(&self, found: ScannedId, limit: usize) -> Reaction {
        increment(&self.counters.too_large);
        let id = found.id.as_ref().and_then(Id::from_raw);
        match (id, found.has_method) {
            (Some(id), true) => reject(id, "the request is too large"),
            (Some(id), false) => {
                let error = ServerError::TooLarge { server: self.server.clone(), bytes: found.bytes, limit };
                self.finish(id.as_u64(), Err(error));
                Reaction::Nothing
            }
            (None, _) => {
                tracing::warn!(
                    server = self.server,
                    bytes = found.bytes,
                    limit,
                    "dropping a message over the size limit"
                );
                Reaction::Nothing
            }
        }
    }

    /// Counts an event that is not a JSON-RPC message; the first one is logged.
    pub fn ignore_event(&self, reason: &str) {
        if increment(&self.counters.garbage) == 0 {
            let reason = self.redactor.redact(reason);
            tracing::warn!(
                server = self.server,
                code = "TB0409",
                %reason,
                "ignoring an event that is not a JSON-RPC message"
            );
        }
    }

    pub fn bad_message(&self, reason: String) -> ServerError {
        ServerError::BadMessage { server: self.server.clone(), reason }
    }

    /// Ends every call and notifies the owner, once. Doesn't wait for the owner, which may be the one that closes.
    pub fn close(&self, error: ServerError) {
        if self.calls.close(&error) {
            self.notify_closed(error);
        }
    }

    /// Closes the connection for new calls; running ones continue.
    pub fn close_to_new_calls(&self, error: ServerError) {
        if self.calls.reject_new(&error) {
            self.notify_closed(error);
        }
    }

    fn notify_closed(&self, error: ServerError) {
        let error = error.redacted(&self.redactor);
        if let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(ServerEvent::Closed(error)) {
            let events = self.events.clone();
            tokio::spawn(async move { tokio::time::timeout(DELIVERY_TIMEOUT, events.send(event)).await });
        }
    }

    pub fn oddities(&self) -> Oddities {
        let Counters { garbage, unknown_answers, dropped_progress, dropped_events, too_large, slow_callers, .. } =
            &self.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Oddities {
            garbage: read(garbage),
            unknown_answers: read(unknown_answers),
            dropped_progress: read(dropped_progress),
            dropped_events: read(dropped_events),
            too_large: read(too_large),
            slow_callers: read(slow_callers),
        }
    }
}

/// Increments a counter and returns its previous value.
pub(crate) fn increment(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed)
}

fn reject(id: Id, reason: &str) -> Reaction {
    let error = RpcError::new(codes::INTERNAL_ERROR, reason);
    Reaction::Reply(Response { id: Some(id), outcome: error.into() })
}
