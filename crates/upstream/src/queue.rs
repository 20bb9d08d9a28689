//! The bounded queue of a call's events that its caller has not read yet. Old progress notifications are dropped in
//! favour of newer ones, which supersede them; nothing else is ever dropped, and the last progress never is.

use crate::call::CallEvent;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use toolbus_mcp::Outcome;

pub(crate) const MAX_EVENTS: usize = 256;
pub(crate) const MAX_BYTES: usize = 32 << 20;
pub(crate) const PROGRESS: &str = "notifications/progress";

#[derive(Default)]
pub(crate) struct CallQueue {
    state: Mutex<State>,
    event_added: Notify,
    event_taken: Notify,
}

#[derive(Default)]
struct State {
    events: VecDeque<CallEvent>,
    bytes: usize,
    ended: bool,
}

impl CallQueue {
    /// Appends the event, or returns it if the queue is full. On success, returns how many progress notifications were
    /// dropped.
    pub fn offer(&self, event: CallEvent) -> Result<usize, CallEvent> {
        let mut state = self.lock();
        if state.ended {
            return Ok(0);
        }
        let size = size_of(&event);
        let mut dropped = 0;
        while !state.has_room(size) {
            if state.drop_superseded_progress(is_progress(&event)) {
                dropped += 1;
            } else if is_progress(&event) {
                // Beside a full queue there is room for one, the latest.
                break;
            } else {
                return Err(event);
            }
        }
        state.bytes += size;
        state.events.push_back(event);
        drop(state);
        self.event_added.notify_one();
        Ok(dropped)
    }

    /// Appends the final event, which always has room.
    pub fn end(&self, event: CallEvent) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.ended, true) {
            state.events.push_back(event);
            drop(state);
            self.event_added.notify_one();
        }
    }

    /// The caller is gone: discards all present and future events.
    pub fn abandon(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.events.clear();
        drop(state);
        self.event_taken.notify_one();
    }

    pub async fn next(&self) -> CallEvent {
        loop {
            {
                let mut state = self.lock();
                if let Some(event) = state.events.pop_front() {
                    state.bytes = state.bytes.saturating_sub(size_of(&event));
                    drop(state);
                    self.event_taken.notify_one();
                    return event;
                }
            }
            self.event_added.notified().await;
        }
    }

    /// Returns when the caller has read an event. There is only one producer per call, so no wake-up is lost.
    pub async fn event_taken(&self) {
        self.event_taken.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_room(&self, size: usize) -> bool {
        // One event is always accepted, whatever its size.
        self.events.is_empty() || (self.events.len() < MAX_EVENTS && self.bytes + size <= MAX_BYTES)
    }

    /// Drops the oldest progress. The latest one is superseded only by an event that is progress too.
    fn drop_superseded_progress(&mut self, by_progress: bool) -> bool {
        let mut progress = (0..self.events.len()).filter(|at| is_progress(&self.events[*at]));
        let oldest = progress.next().filter(|_| by_progress || progress.next().is_some());
        let oldest = oldest.and_then(|at| self.events.remove(at));
        if let Some(event) = &oldest {
            self.bytes = self.bytes.saturating_sub(size_of(event));
        }
        oldest.is_some()
    }
}

fn is_progress(event: &CallEvent) -> bool {
    matches!(event, CallEvent::Notification { method, .. } if method == PROGRESS)
}

fn size_of(event: &CallEvent) -> usize {
    match event {
        CallEvent::Notification { method, params } | CallEvent::Request { method, params, .. } => {
            method.len() + params.as_ref().map_or(0, |params| params.get().len())
        }
        CallEvent::Done(Ok(Outcome::Result(raw) | Outcome::Error(raw))) => raw.get().len(),
        CallEvent::Done(Err(_)) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(method: &str, number: usize) -> CallEvent {
        CallEvent::Notification { method: method.into(), params: Some(toolbus_mcp::raw(&number)) }
    }

    fn number(event: &CallEvent) -> String {
        match event {
            CallEvent::Notification { params: Some(params), .. } => params.get().to_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn old_progress_is_dropped_for_new_and_logs_are_kept() {
        let queue = CallQueue::default();
        assert!(queue.offer(note("notifications/message", 7)).is_ok());
        let dropped: usize =
            (0..1_000).map(|n| queue.offer(note(PROGRESS, n)).expect("progress is always accepted")).sum();
        assert_eq!(dropped, 1_000 - (MAX_EVENTS - 1));
        assert_eq!(number(&queue.next().await), "7");
        assert_eq!(number(&queue.next().await), dropped.to_string());
    }

    #[tokio::test]
    async fn a_full_queue_returns_the_event_and_still_accepts_the_end() {
        let queue = CallQueue::default();
        for n in 0..MAX_EVENTS {
            assert!(queue.offer(note("notifications/message", n)).is_ok());
        }
        assert!(queue.offer(note("notifications/message", 0)).is_err());
        assert_eq!([1, 2, 3].map(|n| queue.offer(note(PROGRESS, n)).ok()), [Some(0), Some(1), Some(1)]);
        assert!(queue.offer(note("notifications/message", 0)).is_err());
        queue.end(CallEvent::Done(Ok(Outcome::Result(toolbus_mcp::empty_object()))));
        for n in 0..MAX_EVENTS {
            assert_eq!(number(&queue.next().await), n.to_string());
        }
        assert_eq!(number(&queue.next().await), "3", "the last progress");
        assert!(matches!(queue.next().await, CallEvent::Done(_)));
    }
}
