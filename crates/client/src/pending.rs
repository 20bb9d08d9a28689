//! Requests that wait for their reply, and the events of calls that want them.

use crate::outstanding::Settles;
use crate::session::Session;
use crate::{BrokerError, BrokerResult};
use bytes::Bytes;
use bytestring::ByteString;
use std::collections::VecDeque;
use std::task::Waker;
use tokio::sync::oneshot;
use toolbus_protocol::{Body, ErrorCode, InboxMessage, MsgId};

/// Maximum number of queued events of one call. Beyond it the oldest live events are dropped; stored ones are kept,
/// since the broker's window bounds them.
pub const MAX_CALL_EVENTS: usize = 1024;
/// The same limit in bytes. A larger event is accepted if the queue is empty.
pub const MAX_CALL_EVENT_BYTES: usize = 4 << 20;
/// Ids of stored events that a call remembers for deduplication: an acknowledgement can be lost with its connection,
/// and the event is then delivered again.
const MAX_SEEN_EVENTS: usize = 1024;

pub struct PendingRequest {
    /// Only a reply from this peer is accepted.
    pub to: ByteString,
    pub reply: oneshot::Sender<CallEnd>,
    /// Present if the caller wants events; allocates nothing before the first one.
    pub events: Option<CallEvents>,
}

impl PendingRequest {
    /// Sends the outcome to the caller, together with the events that it has not taken.
    pub fn end(self, outcome: BrokerResult<InboxMessage>) {
        let events = self.events.unwrap_or_default();
        self.reply.send(CallEnd { outcome: Some(outcome), events }).ok();
    }
}

impl Session {
    /// Registers a request that is about to be sent. Only a reply from `to` ends it.
    pub fn open_request(
        &mut self,
        to: ByteString,
        id: &ByteString,
        wants_events: bool,
    ) -> BrokerResult<oneshot::Receiver<CallEnd>> {
        if let Some(end) = self.end_reason() {
            return Err(end);
        }
        if self.requests.contains_key(id) {
            let reason = "a request with this id is already in flight".to_owned();
            let id = Some(MsgId::from(id.clone()));
            return Err(BrokerError::Rejected { code: Some(ErrorCode::IdConflict), reason, id });
        }
        let (reply, outcome) = oneshot::channel();
        let events = wants_events.then(CallEvents::default);
        self.requests.insert(id.clone(), PendingRequest { to, reply, events });
        Ok(outcome)
    }

    /// Stops waiting for the reply of a request, which goes on.
    pub fn detach_request(&mut self, id: &ByteString) {
        let forgotten = self.requests.remove(id);
        self.acknowledge_events(forgotten.and_then(|request| request.events));
    }

    /// Stops waiting for the reply of a request that was sent, and cancels it.
    pub fn abandon_request(&mut self, to: ByteString, id: ByteString) {
        self.detach_request(&id);
        self.cancel(to, id);
    }
}

/// The outcome of a call and the events that arrived before it.
pub struct CallEnd {
    /// `None` after the caller has taken it.
    pub outcome: Option<BrokerResult<InboxMessage>>,
    pub events: CallEvents,
}

/// An event, queued in wire order. A stored one is acknowledged when the caller takes it.
pub struct CallEvent {
    pub body: Body,
    pub stored: Option<Settles>,
}

#[derive(Default)]
pub struct CallEvents {
    queue: VecDeque<CallEvent>,
    live: usize,
    bytes: usize,
    seen: VecDeque<ByteString>,
    waker: Option<Waker>,
    pub dropped: u64,
}

impl CallEvents {
    pub fn push_live(&mut self, body: Body) {
        self.make_room(body.as_bytes().len());
        if self.is_full(body.as_bytes().len()) {
            self.dropped += 1;
            return;
        }
        // A queued event must not keep the whole receive buffer alive.
        let body = match self.queue.is_empty() {
            true => body,
            false => Body::from_trusted(Bytes::copy_from_slice(body.as_bytes())),
        };
        self.live += 1;
        self.add(CallEvent { body, stored: None });
    }

    /// Returns `false` for a duplicate, which only has to be acknowledged again.
    pub fn push_stored(&mut self, body: Body, settles: Settles) -> bool {
        if self.seen.contains(&settles.id) {
            return false;
        }
        if self.seen.len() >= MAX_SEEN_EVENTS {
            self.seen.pop_front();
        }
        self.make_room(body.as_bytes().len());
        self.seen.push_back(settles.id.clone());
        self.add(CallEvent { body, stored: Some(settles) });
        true
    }

    fn is_full(&self, more: usize) -> bool {
        let too_large = self.bytes + more > MAX_CALL_EVENT_BYTES && !self.queue.is_empty();
        self.queue.len() >= MAX_CALL_EVENTS || too_large
    }

    /// Drops the oldest live events until `more` bytes fit.
    fn make_room(&mut self, more: usize) {
        while self.is_full(more) && self.live > 0 {
            let Some(oldest) = self.queue.iter().position(|event| event.stored.is_none()) else { return };
            let dropped = self.queue.remove(oldest);
            self.bytes -= dropped.map_or(0, |event| event.body.as_bytes().len());
            self.live -= 1;
            self.dropped += 1;
        }
    }

    fn add(&mut self, event: CallEvent) {
        self.bytes += event.body.as_bytes().len();
        self.queue.push_back(event);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub fn pop(&mut self) -> Option<CallEvent> {
        let event = self.queue.pop_front()?;
        self.live -= usize::from(event.stored.is_none());
        self.bytes -= event.body.as_bytes().len();
        Some(event)
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn set_waker(&mut self, waker: &Waker) {
        self.waker = Some(waker.clone());
    }

    /// On a lost connection: drops untaken stored events, which the broker delivers again on the next one.
    pub fn forget_stored(&mut self) {
        let (seen, bytes) = (&mut self.seen, &mut self.bytes);
        self.queue.retain(|event| match &event.stored {
            Some(settles) => {
                seen.retain(|id| *id != settles.id);
                *bytes -= event.body.as_bytes().len();
                false
            }
            None => true,
        });
    }

    /// The stored events that still have to be acknowledged when the call is dropped.
    pub fn into_settles(self) -> impl Iterator<Item = Settles> {
        self.queue.into_iter().filter_map(|event| event.stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(number: usize) -> Body {
        Body::of(&number).expect("a number")
    }

    fn settles(id: &str) -> Settles {
        Settles { id: ByteString::from(id), tag: None }
    }

    #[test]
    fn overflow_drops_the_oldest_live_events_and_keeps_stored_ones() {
        let mut events = CallEvents::default();
        assert!(events.push_stored(body(0), settles("kept")));
        for number in 1..=MAX_CALL_EVENTS + 9 {
            events.push_live(body(number));
        }
        assert_eq!(events.dropped, 10);
        let first = events.pop().expect("the stored event");
        assert!(first.stored.is_some() && first.body == body(0));
        assert_eq!(events.pop().expect("the oldest remaining event").body, body(11));
        let left = std::iter::from_fn(|| events.pop()).count();
        assert_eq!(left, MAX_CALL_EVENTS - 2);
    }

    #[test]
    fn queued_events_are_bounded_by_bytes() {
        let mut events = CallEvents::default();
        let large = Body::of(&"x".repeat(1 << 20)).expect("a string");
        (0..100).for_each(|_| events.push_live(large.clone()));
        let left: usize = std::iter::from_fn(|| events.pop()).map(|event| event.body.as_bytes().len()).sum();
        assert!((1 << 20..=MAX_CALL_EVENT_BYTES).contains(&left), "{left} bytes");
        assert_eq!((events.bytes, events.live), (0, 0));
        let huge = Body::of(&"x".repeat(2 * MAX_CALL_EVENT_BYTES)).expect("a string");
        events.push_live(huge);
        assert!(events.pop().is_some(), "an oversized event in an empty queue is kept");
    }

    #[test]
    fn after_a_reconnect_only_untaken_stored_events_are_accepted_again() {
        let mut events = CallEvents::default();
        assert!(events.push_stored(body(1), settles("taken")));
        assert!(events.push_stored(body(2), settles("waiting")));
        events.pop();
        events.forget_stored();
        assert!(!events.push_stored(body(1), settles("taken")));
        assert!(events.push_stored(body(2), settles("waiting")));
        assert_eq!(events.pop().expect("the untaken event").body, body(2));
        assert!(events.pop().is_none());
    }
}
