//! The bounded replay log of one legacy session. A client resumes a broken stream with the id of the last event it got.
//! At the limit, progress that later progress supersedes is dropped first, so that a burst evicts no response.

use super::sse;
use crate::worker::lock;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Mutex;
use tokio::sync::Notify;
use toolbus_mcp::{Id, Message, Raw};

/// The stream of messages that belong to no call.
pub const STANDALONE: u64 = 0;

/// The id of an event: its stream and its number in the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventId {
    pub stream: u64,
    pub number: u64,
}

/// The event after which a client resumes a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum LastEvent {
    Known(EventId),
    /// Of a log that an earlier process had: its stream, and the request that the stream belonged to.
    Earlier {
        stream: u64,
        request: Option<Id>,
    },
}

/// Longer request ids are not repeated in the ids of events.
const MAX_REQUEST_ID_BYTES: usize = 256;

pub struct EventLog {
    /// Tells the events of this log from those of an earlier process.
    epoch: String,
    state: Mutex<State>,
    pub changed: Notify,
    max_events: usize,
    max_bytes: usize,
}

#[derive(Default)]
struct State {
    events: VecDeque<Logged>,
    bytes: usize,
    last_number: u64,
    last_stream: u64,
    /// The open streams of calls, with the ids of their requests as text for the ids of events.
    open: HashMap<u64, String>,
    /// The number of the last standalone event that was read.
    standalone_read: u64,
    /// The current reader of the standalone stream; increases with every takeover.
    standalone_reader: u64,
}

struct Logged {
    id: EventId,
    text: Bytes,
    is_progress: bool,
}

impl State {
    /// Removes the oldest progress that later progress of its stream supersedes, or else the oldest event.
    fn evict(&mut self) {
        let mut later = HashSet::new();
        let superseded = self.events.iter().enumerate().rev().filter(|(_, event)| event.is_progress);
        let superseded = superseded.filter(|(_, event)| !later.insert(event.id.stream)).last().map(|(at, _)| at);
        if let Some(evicted) = self.events.remove(superseded.unwrap_or(0)) {
            self.bytes -= evicted.text.len();
        }
    }
}

/// The result of reading a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum NextEvent {
    Event(EventId, Bytes),
    Pending,
    /// The stream is complete, or another reader has taken it over.
    Ended,
}

impl EventLog {
    pub fn new(max_events: usize, max_bytes: usize) -> Self {
        let epoch = format!("{:08x}", uuid::Uuid::new_v4().as_fields().0);
        Self { epoch, state: Mutex::default(), changed: Notify::new(), max_events, max_bytes }
    }

    /// Parses the id of an event: epoch, stream, number and, for the stream of a call, the id of the request.
    pub fn parse(&self, text: &str) -> Option<LastEvent> {
        let mut parts = text.splitn(4, '-');
        let epoch = parts.next()?;
        let (stream, number) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        if epoch == self.epoch {
            return Some(LastEvent::Known(EventId { stream, number }));
        }
        let request = parts.next().and_then(|request| URL_SAFE_NO_PAD.decode(request).ok());
        let request = request.and_then(|text| Raw::parse(String::from_utf8(text).ok()?).ok());
        Some(LastEvent::Earlier { stream, request: request.as_ref().and_then(Id::from_raw) })
    }

    /// The text of an event's id.
    pub fn text_of(&self, id: EventId) -> String {
        self.text_in(&lock(&self.state), id)
    }

    fn text_in(&self, state: &State, EventId { stream, number }: EventId) -> String {
        let request = state.open.get(&stream).map_or("", String::as_str);
        format!("{}-{stream}-{number}{request}", self.epoch)
    }

    /// Opens a stream for a call and returns the id that precedes its first event.
    pub fn open_stream(&self, request: &Id) -> EventId {
        let request = request.to_raw();
        let is_short = request.get().len() <= MAX_REQUEST_ID_BYTES;
        let request = if is_short { format!("-{}", URL_SAFE_NO_PAD.encode(request.get())) } else { String::new() };
        let mut state = lock(&self.state);
        state.last_stream += 1;
        state.last_number += 1;
        let stream = state.last_stream;
        state.open.insert(stream, request);
        EventId { stream, number: state.last_number }
    }

    pub fn end_stream(&self, stream: u64) {
        lock(&self.state).open.remove(&stream);
        self.changed.notify_waiters();
    }

    /// Stores the event and returns its text. Evicts the oldest events beyond the limits.
    pub fn append(&self, stream: u64, message: &Message) -> Bytes {
        let mut state = lock(&self.state);
        state.last_number += 1;
        let id = EventId { stream, number: state.last_number };
        let text = sse::numbered(&self.text_in(&state, id), message);
        state.bytes += text.len();
        let is_progress = matches!(message, Message::Notification(note) if note.method == "notifications/progress");
        state.events.push_back(Logged { id, text: text.clone(), is_progress });
        while state.events.len() > self.max_events || (state.bytes > self.max_bytes && state.events.len() > 1) {
            state.evict();
        }
        drop(state);
        self.changed.notify_waiters();
        text
    }

    /// Takes over the standalone stream from its previous reader. Starts after `after`, or after the last read event.
    pub fn take_standalone(&self, after: Option<u64>) -> (EventId, u64) {
        let mut state = lock(&self.state);
        state.standalone_reader += 1;
        let number = after.unwrap_or(state.standalone_read);
        let reader = state.standalone_reader;
        drop(state);
        self.changed.notify_waiters();
        (EventId { stream: STANDALONE, number }, reader)
    }

    /// The next event of the stream. `reader` is the number from [`EventLog::take_standalone`].
    pub fn after(&self, at: EventId, reader: u64) -> NextEvent {
        let mut state = lock(&self.state);
        if at.stream == STANDALONE && state.standalone_reader != reader {
            return NextEvent::Ended;
        }
        let next = state.events.iter().find(|event| event.id.stream == at.stream && event.id.number > at.number);
        match next.map(|event| (event.id, event.text.clone())) {
            Some((id, text)) => {
                if id.stream == STANDALONE {
                    state.standalone_read = id.number;
                }
                NextEvent::Event(id, text)
            }
            None if at.stream == STANDALONE || state.open.contains_key(&at.stream) => NextEvent::Pending,
            None => NextEvent::Ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_mcp::Notification;

    fn note(method: &str) -> Message {
        Notification { method: method.into(), params: None }.into()
    }

    #[test]
    fn a_stream_is_replayed_without_events_of_other_streams() {
        let log = EventLog::new(10, 10_000);
        let (one, two) = (log.open_stream(&Id::number(1)), log.open_stream(&Id::text("two")));
        log.append(one.stream, &note("a"));
        log.append(two.stream, &note("b"));
        log.append(one.stream, &note("c"));
        let NextEvent::Event(first, text) = log.after(one, 0) else { panic!("the event is missing") };
        let id = log.text_of(first);
        let start = format!("id: {id}\nevent: message\ndata: ");
        assert!(text.starts_with(start.as_bytes()) && text.ends_with(b"\"a\"}\n\n"));
        assert!(id.ends_with("-1-3-MQ"), "{id}");
        assert_eq!(log.parse(&id), Some(LastEvent::Known(first)));
        let later = EventLog::new(10, 10_000);
        assert_eq!(later.parse(&id), Some(LastEvent::Earlier { stream: 1, request: Some(Id::number(1)) }));
        assert_eq!(log.parse("made up"), None);
        let NextEvent::Event(second, text) = log.after(first, 0) else { panic!("the event is missing") };
        assert!(text.ends_with(b"\"c\"}\n\n"));
        assert_eq!(log.after(second, 0), NextEvent::Pending);
        log.end_stream(one.stream);
        assert_eq!(log.after(second, 0), NextEvent::Ended);
    }

    #[test]
    fn the_log_is_bounded_in_events_and_bytes() {
        let log = EventLog::new(3, 120);
        (0..50).for_each(|_| drop(log.append(STANDALONE, &note(&"x".repeat(30)))));
        let state = lock(&log.state);
        assert!(state.events.len() <= 3 && state.bytes <= 120, "{} events, {} bytes", state.events.len(), state.bytes);
    }

    #[test]
    fn a_burst_of_progress_evicts_progress_that_it_supersedes_and_no_response() {
        let log = EventLog::new(10, 100_000);
        let (one, two) = (log.open_stream(&Id::number(1)), log.open_stream(&Id::text("two")));
        log.append(one.stream, &note("notifications/progress"));
        log.append(one.stream, &note("response of one"));
        (0..99).for_each(|_| drop(log.append(two.stream, &note("notifications/progress"))));
        log.append(two.stream, &note("response of two"));
        let read = |mut at: EventId| {
            let mut seen = 0;
            while let NextEvent::Event(id, _) = log.after(at, 0) {
                (at, seen) = (id, seen + 1);
            }
            (seen, at.number)
        };
        assert_eq!(read(one).0, 2, "nothing of the other stream is lost");
        assert_eq!(read(two), (8, 104), "seven of progress, of which the last is the latest, and the response");
    }

    #[test]
    fn the_standalone_stream_has_one_reader_and_keeps_earlier_events_for_it() {
        let log = EventLog::new(10, 10_000);
        log.append(STANDALONE, &note("early"));
        let (at, reader) = log.take_standalone(None);
        let NextEvent::Event(at, _) = log.after(at, reader) else {
            panic!("an event from before the first reader is missing")
        };
        let (again, newer) = log.take_standalone(None);
        assert_eq!(log.after(at, reader), NextEvent::Ended);
        assert_eq!(log.after(again, newer), NextEvent::Pending);
    }
}
