//! The events of one legacy session, kept for a while: a client that lost a stream comes back with the last id it saw and
//! gets the rest of that stream.

use super::sse;
use crate::worker::lock;
use bytes::Bytes;
use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use tokio::sync::Notify;
use toolbus_mcp::Message;

/// The stream of what belongs to no call.
pub const STANDALONE: u64 = 0;

/// Where an event stands: in which stream, and its number in the session. As text it is the event's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventId {
    pub stream: u64,
    pub number: u64,
}

impl EventId {
    pub fn parse(text: &str) -> Option<Self> {
        let (stream, number) = text.split_once('-')?;
        Some(Self { stream: stream.parse().ok()?, number: number.parse().ok()? })
    }
}

impl std::fmt::Display for EventId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.stream, self.number)
    }
}

pub struct EventLog {
    state: Mutex<State>,
    pub changed: Notify,
    max_events: usize,
    max_bytes: usize,
}

#[derive(Default)]
struct State {
    events: VecDeque<(EventId, Bytes)>,
    bytes: usize,
    last_number: u64,
    last_stream: u64,
    open: HashSet<u64>,
    /// How far the standalone stream was given out, and how often it was taken over.
    standalone_taken: u64,
    standalone_reader: u64,
}

/// What a reader of a stream finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    Event(EventId, Bytes),
    NothingYet,
    /// The stream is complete, or someone else reads it now.
    Over,
}

impl EventLog {
    pub fn new(max_events: usize, max_bytes: usize) -> Self {
        Self { state: Mutex::default(), changed: Notify::new(), max_events, max_bytes }
    }

    /// A stream for a call, and the id before its first event.
    pub fn open_stream(&self) -> EventId {
        let mut state = lock(&self.state);
        state.last_stream += 1;
        state.last_number += 1;
        let stream = state.last_stream;
        state.open.insert(stream);
        EventId { stream, number: state.last_number }
    }

    pub fn end_stream(&self, stream: u64) {
        lock(&self.state).open.remove(&stream);
        self.changed.notify_waiters();
    }

    /// Keeps the event, and gives back what is to be written.
    pub fn append(&self, stream: u64, message: &Message) -> Bytes {
        let mut state = lock(&self.state);
        state.last_number += 1;
        let id = EventId { stream, number: state.last_number };
        let text = sse::numbered(&id.to_string(), message);
        state.bytes += text.len();
        state.events.push_back((id, text.clone()));
        while state.events.len() > self.max_events || (state.bytes > self.max_bytes && state.events.len() > 1) {
            if let Some((_, oldest)) = state.events.pop_front() {
                state.bytes -= oldest.len();
            }
        }
        drop(state);
        self.changed.notify_waiters();
        text
    }

    /// Becomes the one reader of the standalone stream; whoever read it before stops. Starts after the given id, or
    /// after what was already given out.
    pub fn take_standalone(&self, after: Option<u64>) -> (EventId, u64) {
        let mut state = lock(&self.state);
        state.standalone_reader += 1;
        let number = after.unwrap_or(state.standalone_taken);
        let reader = state.standalone_reader;
        drop(state);
        self.changed.notify_waiters();
        (EventId { stream: STANDALONE, number }, reader)
    }

    /// The first event of the stream after that one. `reader` is the one that took the standalone stream.
    pub fn after(&self, at: EventId, reader: u64) -> Found {
        let mut state = lock(&self.state);
        if at.stream == STANDALONE && state.standalone_reader != reader {
            return Found::Over;
        }
        let next = state.events.iter().find(|(id, _)| id.stream == at.stream && id.number > at.number);
        match next.map(|(id, text)| (*id, text.clone())) {
            Some((id, text)) => {
                if id.stream == STANDALONE {
                    state.standalone_taken = id.number;
                }
                Found::Event(id, text)
            }
            None if at.stream == STANDALONE || state.open.contains(&at.stream) => Found::NothingYet,
            None => Found::Over,
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
    fn a_stream_is_replayed_alone_and_from_where_it_broke_off() {
        let log = EventLog::new(10, 10_000);
        let (one, two) = (log.open_stream(), log.open_stream());
        log.append(one.stream, &note("a"));
        log.append(two.stream, &note("b"));
        log.append(one.stream, &note("c"));
        let Found::Event(first, text) = log.after(one, 0) else { panic!("nothing kept") };
        assert!(text.starts_with(b"id: 1-3\nevent: message\ndata: ") && text.ends_with(b"\"a\"}\n\n"));
        let Found::Event(second, text) = log.after(first, 0) else { panic!("nothing kept") };
        assert!(text.ends_with(b"\"c\"}\n\n"));
        assert_eq!(log.after(second, 0), Found::NothingYet);
        log.end_stream(one.stream);
        assert_eq!(log.after(second, 0), Found::Over);
    }

    #[test]
    fn what_is_kept_is_bounded_in_number_and_bytes() {
        let log = EventLog::new(3, 120);
        (0..50).for_each(|_| drop(log.append(STANDALONE, &note(&"x".repeat(30)))));
        let state = lock(&log.state);
        assert!(state.events.len() <= 3 && state.bytes <= 120, "{} events, {} bytes", state.events.len(), state.bytes);
    }

    #[test]
    fn the_standalone_stream_has_one_reader_and_waits_for_it() {
        let log = EventLog::new(10, 10_000);
        log.append(STANDALONE, &note("early"));
        let (at, reader) = log.take_standalone(None);
        let Found::Event(at, _) = log.after(at, reader) else { panic!("what came before the reader was lost") };
        let (again, newer) = log.take_standalone(None);
        assert_eq!(log.after(at, reader), Found::Over);
        assert_eq!(log.after(again, newer), Found::NothingYet);
    }
}
