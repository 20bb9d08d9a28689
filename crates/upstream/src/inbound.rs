//! What both transports do with a message of the server: find its place, deliver it without ever waiting for long, and
//! keep count of what makes no sense.

use crate::call::CallEvent;
use crate::calls::{Answered, Calls, Place, Way};
use crate::connection::ServerEvent;
use crate::error::ServerError;
use crate::queue::CallQueue;
use crate::secrets::Redactor;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use toolbus_mcp::{Id, Message, MessageError, Notification, Outcome, Request, Response, RpcError, codes};

/// How long the reader waits for a caller, or for the owner, to take what is there. Then it reads on: one who doesn't
/// listen must not stop the others.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a server did that it should not have done, and that was passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Oddities {
    /// Lines that were no messages.
    pub garbage: u64,
    /// Answers to requests that nobody made, or that were answered before.
    pub unknown_answers: u64,
    /// Reports of progress that made room for newer ones.
    pub dropped_progress: u64,
    /// Events outside of calls that their owner did not take in time.
    pub dropped_events: u64,
    /// Messages past the limit.
    pub too_large: u64,
    /// Calls that were ended because nobody took their events.
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
    /// The owner has let one wait run out, and has taken nothing since.
    owner_is_deaf: AtomicBool,
}

pub(crate) struct Inbound {
    pub server: String,
    pub calls: Calls,
    pub redactor: Redactor,
    /// Errors are always without secrets; whether the rest is too, its configuration says.
    pub redact_results: bool,
    pub counters: Counters,
    pub events: mpsc::Sender<ServerEvent>,
}

/// What is to be done about a message after it was delivered.
#[derive(Debug)]
pub(crate) enum Reaction {
    Nothing,
    /// It was no message.
    Garbage(String),
    /// The server has to be told.
    Reply(Response),
    /// The call ended here and the server need not go on with it.
    Cancel(u64),
}

impl Inbound {
    /// Delivers one message.
    pub async fn deliver(&self, text: &str, way: Way) -> Reaction {
        let clean = self.redact_results.then(|| self.redactor.redact_message(text));
        let text = clean.as_deref().unwrap_or(text);
        match Message::parse(text) {
            Ok(Message::Response(response)) => self.response(self.with_clean_error(response, text), way),
            Ok(Message::Notification(notification)) => self.notification(notification, way).await,
            Ok(Message::Request(request)) => self.request(request, way).await,
            Err(error) => self.unreadable(error, text, way),
        }
    }

    fn with_clean_error(&self, response: Response, text: &str) -> Response {
        if self.redact_results || matches!(response.outcome, Outcome::Result(_)) {
            return response;
        }
        match Message::parse(&self.redactor.redact_message(text)) {
            Ok(Message::Response(clean)) => clean,
            _ => response,
        }
    }

    fn response(&self, Response { id, outcome }: Response, way: Way) -> Reaction {
        let number = match id {
            Some(id) => id.as_u64(),
            // On a call's own stream an answer without an id can only be meant for it.
            None => way.call(),
        };
        self.finish(number, Ok(outcome));
        Reaction::Nothing
    }

    /// Ends a call, or keeps count of an answer that has none.
    pub fn finish(&self, number: Option<u64>, outcome: Result<Outcome, ServerError>) {
        let answered = number.map_or(Answered::Unknown, |number| self.calls.finish(number, outcome));
        if matches!(answered, Answered::Unknown) && count(&self.counters.unknown_answers) == 0 {
            tracing::warn!(
                server = self.server,
                code = "TB0409",
                "the server answered a request that is not open; such answers are dropped"
            );
        }
    }

    async fn notification(&self, Notification { method, mut params }: Notification, way: Way) -> Reaction {
        if let Some((number, reason)) = self.calls.ended_by_server(&method, &params) {
            let server = self.server.clone();
            self.calls.finish(number, Err(ServerError::EndedByServer { server, reason }));
            return Reaction::Nothing;
        }
        match self.calls.place_of_notification(&method, &mut params, way) {
            Place::Call(call, queue) => self.to_call(call, &queue, CallEvent::Notification { method, params }).await,
            Place::Owner => {
                self.to_owner(ServerEvent::Notification { method, params }).await;
                Reaction::Nothing
            }
        }
    }

    async fn request(&self, Request { id, method, params }: Request, way: Way) -> Reaction {
        match self.calls.place_of_request(way) {
            Place::Call(call, queue) => self.to_call(call, &queue, CallEvent::Request { id, method, params }).await,
            Place::Owner if self.to_owner(ServerEvent::Request { id: id.clone(), method, params }).await => {
                Reaction::Nothing
            }
            Place::Owner => refuse(id, "the client takes no requests at the moment"),
        }
    }

    async fn to_call(&self, call: u64, queue: &CallQueue, event: CallEvent) -> Reaction {
        let mut event = event;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            match queue.offer(event) {
                Ok(dropped) => {
                    self.counters.dropped_progress.fetch_add(dropped as u64, Ordering::Relaxed);
                    return Reaction::Nothing;
                }
                Err(back) => event = back,
            }
            if tokio::time::timeout_at(deadline, queue.emptied()).await.is_err() {
                let error = ServerError::SlowCaller { server: self.server.clone(), after: PATIENCE };
                count(&self.counters.slow_callers);
                self.calls.give_up(call);
                queue.end(CallEvent::Done(Err(error)));
                return Reaction::Cancel(call);
            }
        }
    }

    /// False if the owner did not take it.
    async fn to_owner(&self, event: ServerEvent) -> bool {
        // After the end there is nothing more.
        if self.calls.closed().is_some() {
            return false;
        }
        let deaf = &self.counters.owner_is_deaf;
        let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(event) else {
            deaf.store(false, Ordering::Relaxed);
            return true;
        };
        // Who has let one wait run out is not waited for again, or every event would hold up all calls.
        let wait = async { self.events.send(event).await.is_ok() };
        let taken = !deaf.load(Ordering::Relaxed) && tokio::time::timeout(PATIENCE, wait).await.unwrap_or(false);
        deaf.store(!taken, Ordering::Relaxed);
        if !taken && count(&self.counters.dropped_events) == 0 {
            tracing::warn!(server = self.server, "events of the server are not taken; they are dropped");
        }
        taken
    }

    /// A message that can't be read may still name its call, which is then not left to wait.
    fn unreadable(&self, error: MessageError, text: &str, way: Way) -> Reaction {
        let mut scan = crate::stdio::scan::IdScan::default();
        scan.feed(text.as_bytes());
        let found = scan.finish();
        let is_json = text.trim_start().starts_with('{') && found.balanced;
        let id = is_json.then(|| found.id.as_deref().and_then(Id::from_raw)).flatten();
        match (id, found.has_method) {
            (Some(id), true) => refuse(id, &error.to_string()),
            (Some(id), false) if id.as_u64().is_some_and(|number| self.calls.is_open(number)) => {
                self.finish(id.as_u64(), Err(self.bad_message(error.to_string())));
                Reaction::Nothing
            }
            _ => {
                if let Some(call) = way.call() {
                    self.calls.finish(call, Err(self.bad_message(error.to_string())));
                }
                Reaction::Garbage(error.to_string())
            }
        }
    }

    /// A message past the limit, of which only this is known.
    pub fn too_large(&self, found: crate::stdio::scan::Found, limit: usize) -> Reaction {
        count(&self.counters.too_large);
        let id = found.id.as_deref().and_then(Id::from_raw);
        match (id, found.has_method) {
            (Some(id), true) => refuse(id, "the request is too large"),
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
                    "a message past the limit was dropped"
                );
                Reaction::Nothing
            }
        }
    }

    pub fn bad_message(&self, reason: String) -> ServerError {
        ServerError::BadMessage { server: self.server.clone(), reason }
    }

    /// Ends every call and tells the owner, once. It does not wait for the owner, who may be the one that closes.
    pub fn close(&self, error: ServerError) {
        if self.calls.close(&error) {
            self.tell_closed(error);
        }
    }

    /// The end of the connection for all but the calls that are under way.
    pub fn close_to_new(&self, error: ServerError) {
        if self.calls.refuse_new(&error) {
            self.tell_closed(error);
        }
    }

    fn tell_closed(&self, error: ServerError) {
        let error = error.redacted(&self.redactor);
        if let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(ServerEvent::Closed(error)) {
            let events = self.events.clone();
            tokio::spawn(async move { tokio::time::timeout(PATIENCE, events.send(event)).await });
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

/// What it was before.
pub(crate) fn count(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed)
}

fn refuse(id: Id, reason: &str) -> Reaction {
    let error = RpcError::new(codes::INTERNAL_ERROR, reason);
    Reaction::Reply(Response { id: Some(id), outcome: error.into() })
}
