//! What waits to be written to one connection. The engine's windows bound the messages in it; live events, which are
//! lossy, are dropped when the peer is behind.

use futures_util::task::AtomicWaker;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use toolbus_engine::{Outbox, Outgoing};

/// Past this many waiting frames, live events are dropped.
const MAX_BEHIND_FOR_EVENTS: usize = 1024;

#[derive(Default)]
pub struct ConnectionOutbox {
    queue: Mutex<Vec<Outgoing>>,
    waker: AtomicWaker,
    /// The connection's task is running and will look into the queue before it rests.
    awake: AtomicBool,
}

impl ConnectionOutbox {
    /// The task is about to look: no need to wake it.
    pub fn begin_turn(&self, waker: &Waker) {
        self.waker.register(waker);
        self.awake.store(true, Ordering::Release);
    }

    /// The task is about to rest. False if something arrived that it has not seen.
    pub fn end_turn(&self) -> bool {
        self.awake.store(false, Ordering::Release);
        self.queue.lock().expect("no code panics while it holds the queue").is_empty()
    }

    /// Moves what waits to the end of `out`.
    pub fn take(&self, out: &mut Vec<Outgoing>) {
        out.append(&mut self.queue.lock().expect("no code panics while it holds the queue"));
    }
}

impl Outbox for ConnectionOutbox {
    fn deliver(&self, outgoing: &mut Vec<Outgoing>) {
        {
            let mut queue = self.queue.lock().expect("no code panics while it holds the queue");
            if queue.len() > MAX_BEHIND_FOR_EVENTS {
                outgoing.retain(|frame| !matches!(frame, Outgoing::Event { .. }));
            }
            queue.append(outgoing);
        }
        if !self.awake.load(Ordering::Acquire) {
            self.waker.wake();
        }
    }
}
