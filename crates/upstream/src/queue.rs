//! What a call's server has said and its caller has not yet taken. Bounded: reports of progress make room for newer
//! ones, since each replaces the one before it; nothing else is ever dropped.

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
    filled: Notify,
    emptied: Notify,
}

#[derive(Default)]
struct State {
    events: VecDeque<CallEvent>,
    bytes: usize,
    ended: bool,
}

impl CallQueue {
    /// Takes the event, or gives it back if there is no room. The number is how many reports of progress went for it.
    pub fn offer(&self, event: CallEvent) -> Result<usize, CallEvent> {
        let mut state = self.lock();
        if state.ended {
            return Ok(0);
        }
        let size = size_of(&event);
        let mut dropped = 0;
        while !state.has_room(size) {
            if state.drop_oldest_progress() {
                dropped += 1;
            } else if is_progress(&event) {
                return Ok(dropped + 1);
            } else {
                return Err(event);
            }
        }
        state.bytes += size;
        state.events.push_back(event);
        drop(state);
        self.filled.notify_one();
        Ok(dropped)
    }

    /// The end always has room, and nothing comes after it.
    pub fn end(&self, event: CallEvent) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.ended, true) {
            state.events.push_back(event);
            drop(state);
            self.filled.notify_one();
        }
    }

    /// The caller is gone: what is there and what still comes is for nobody.
    pub fn abandon(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.events.clear();
        drop(state);
        self.emptied.notify_one();
    }

    pub async fn next(&self) -> CallEvent {
        loop {
            {
                let mut state = self.lock();
                if let Some(event) = state.events.pop_front() {
                    state.bytes = state.bytes.saturating_sub(size_of(&event));
                    drop(state);
                    self.emptied.notify_one();
                    return event;
                }
            }
            self.filled.notified().await;
        }
    }

    /// Returns when the caller has taken something. There is one deliverer per call, so no wake-up goes astray.
    pub async fn emptied(&self) {
        self.emptied.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_room(&self, size: usize) -> bool {
        // One event is always taken, however large.
        self.events.is_empty() || (self.events.len() < MAX_EVENTS && self.bytes + size <= MAX_BYTES)
    }

    fn drop_oldest_progress(&mut self) -> bool {
        let oldest = self.events.iter().position(is_progress).and_then(|at| self.events.remove(at));
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
    async fn old_progress_makes_room_for_new_and_logs_are_kept() {
        let queue = CallQueue::default();
        assert!(queue.offer(note("notifications/message", 7)).is_ok());
        let dropped: usize = (0..1_000).map(|n| queue.offer(note(PROGRESS, n)).expect("progress never waits")).sum();
        assert_eq!(dropped, 1_000 - (MAX_EVENTS - 1));
        assert_eq!(number(&queue.next().await), "7");
        assert_eq!(number(&queue.next().await), dropped.to_string());
    }

    #[tokio::test]
    async fn a_queue_full_of_other_things_gives_back_what_it_cannot_take_and_still_ends() {
        let queue = CallQueue::default();
        for n in 0..MAX_EVENTS {
            assert!(queue.offer(note("notifications/message", n)).is_ok());
        }
        assert!(queue.offer(note("notifications/message", 0)).is_err());
        assert_eq!(queue.offer(note(PROGRESS, 0)).ok(), Some(1));
        queue.end(CallEvent::Done(Ok(Outcome::Result(toolbus_mcp::empty_object()))));
        for _ in 0..MAX_EVENTS {
            assert!(matches!(queue.next().await, CallEvent::Notification { .. }));
        }
        assert!(matches!(queue.next().await, CallEvent::Done(_)));
    }
}
