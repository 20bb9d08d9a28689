//! Carries out the engine's effects: passes frames to outboxes and reads to the reader thread.

use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use toolbus_engine::{ConnId, Effect, Effects, Outbox, Outgoing, Seq};

/// A read requested by the engine. Each mailbox has at most one pending, which bounds the queue.
#[derive(Debug)]
pub struct FetchRequest {
    pub mailbox: Arc<str>,
    pub from: Seq,
    pub max_messages: usize,
    pub max_bytes: u64,
}

#[derive(Default)]
pub struct FetchQueue {
    state: Mutex<FetchState>,
    arrived: Condvar,
}

#[derive(Default)]
struct FetchState {
    requests: VecDeque<FetchRequest>,
    closed: bool,
}

impl FetchQueue {
    fn push(&self, request: FetchRequest) {
        self.state.lock().expect("no code panics while holding the queue lock").requests.push_back(request);
        self.arrived.notify_one();
    }

    /// Blocks until the next request; `None` when the broker stops.
    pub fn next(&self) -> Option<FetchRequest> {
        let state = self.state.lock().expect("no code panics while holding the queue lock");
        let mut state = self
            .arrived
            .wait_while(state, |state| state.requests.is_empty() && !state.closed)
            .expect("no code panics while holding the queue lock");
        if state.closed { None } else { state.requests.pop_front() }
    }

    pub fn close(&self) {
        self.state.lock().expect("no code panics while holding the queue lock").closed = true;
        self.arrived.notify_all();
    }
}

#[derive(Default)]
pub struct Dispatcher {
    outboxes: HashMap<ConnId, Arc<dyn Outbox>>,
    /// Consecutive frames for one connection, collected so that its task is woken once.
    frames: Vec<Outgoing>,
}

impl Dispatcher {
    pub fn attach(&mut self, conn: ConnId, outbox: Arc<dyn Outbox>) {
        self.outboxes.insert(conn, outbox);
    }

    pub fn detach(&mut self, conn: ConnId) {
        self.outboxes.remove(&conn);
    }

    pub fn dispatch(&mut self, effects: &mut Effects, fetches: &FetchQueue) {
        let mut current = None;
        for effect in effects.0.drain(..) {
            match effect {
                Effect::Send { conn, outgoing } => {
                    if current != Some(conn) {
                        flush(&self.outboxes, current, &mut self.frames);
                        current = Some(conn);
                    }
                    self.frames.push(outgoing);
                }
                Effect::Fetch { mailbox, from, max_messages, max_bytes } => {
                    fetches.push(FetchRequest { mailbox, from, max_messages, max_bytes });
                }
            }
        }
        flush(&self.outboxes, current, &mut self.frames);
    }
}

fn flush(outboxes: &HashMap<ConnId, Arc<dyn Outbox>>, conn: Option<ConnId>, frames: &mut Vec<Outgoing>) {
    if let Some(outbox) = conn.and_then(|conn| outboxes.get(&conn)) {
        outbox.deliver(frames);
    }
    frames.clear();
}
