//! What waits to be written to one connection. The engine's windows bound the messages in it; cancels and live events,
//! which are lossy, are dropped when too many of them wait, and what else piles up ends the connection.

use crate::auditing::Auditor;
use crate::handshake::Goodbye;
use crate::wire::copy;
use bytes::Bytes;
use futures_util::task::AtomicWaker;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use toolbus_engine::{Message, Outbox, Outgoing, Refusal};
use toolbus_protocol::{BrokerFrame, ErrorCode};

/// Cancels and live events that may wait, by count and by bytes. One that is larger goes alone.
const MAX_SIGNALS: usize = 8192;
const MAX_SIGNAL_BYTES: usize = 4 << 20;
/// Answers and notices that may wait for a peer that takes none. More than its own questions can ever make.
const MAX_NOTICES: usize = 64 << 10;

#[derive(Default)]
pub struct ConnectionOutbox {
    queue: Mutex<Queue>,
    waker: AtomicWaker,
    /// The connection's task is running and will look into the queue before it rests.
    awake: AtomicBool,
    /// The peer does not take what it was sent before, so what arrives now will stay for a while.
    behind: AtomicBool,
    /// Another connection has the mailbox now.
    displaced: AtomicBool,
    auditor: Option<Auditor>,
}

#[derive(Default)]
struct Queue {
    frames: Vec<Outgoing>,
    /// Frames that are not the engine's business.
    others: Vec<BrokerFrame>,
    signals: usize,
    signal_bytes: usize,
    notices: usize,
}

impl ConnectionOutbox {
    pub fn new(auditor: Option<Auditor>) -> Self {
        Self { auditor, ..Self::default() }
    }

    pub fn tell_closed(&self, goodbye: Option<&Goodbye>) {
        self.auditor.iter().for_each(|auditor| auditor.closed(goodbye));
    }

    /// Writes down that the peer may not do something which the engine knows nothing of.
    pub fn note_refused(&self, code: ErrorCode) {
        self.auditor.iter().for_each(|auditor| auditor.refused(code, ""));
    }

    /// The task is about to look: no need to wake it.
    pub fn begin_turn(&self, waker: &Waker) {
        self.waker.register(waker);
        self.awake.store(true, Ordering::Release);
    }

    /// The task is about to rest. False if something arrived that it has not seen.
    pub fn end_turn(&self) -> bool {
        self.awake.store(false, Ordering::Release);
        let queue = self.queue.lock().expect("no code panics while it holds the queue");
        queue.frames.is_empty() && queue.others.is_empty()
    }

    /// Moves what waits to the ends of the lists.
    pub fn take(&self, out: &mut Vec<Outgoing>, others: &mut Vec<BrokerFrame>) {
        let mut queue = self.queue.lock().expect("no code panics while it holds the queue");
        out.append(&mut queue.frames);
        others.append(&mut queue.others);
        (queue.signals, queue.signal_bytes, queue.notices) = (0, 0, 0);
    }

    /// Queues a frame that does not come from the engine. News that hosts have changed is told once.
    pub fn send(&self, frame: BrokerFrame) {
        {
            let mut queue = self.queue.lock().expect("no code panics while it holds the queue");
            if frame == BrokerFrame::HostsChanged && queue.others.contains(&frame) {
                return;
            }
            queue.others.push(frame);
            queue.notices += 1;
        }
        self.wake();
    }

    fn wake(&self) {
        if !self.awake.load(Ordering::Acquire) {
            self.waker.wake();
        }
    }

    pub fn set_behind(&self, behind: bool) {
        self.behind.store(behind, Ordering::Relaxed);
    }

    pub fn is_displaced(&self) -> bool {
        self.displaced.load(Ordering::Relaxed)
    }

    /// Whether more waits for a peer that takes nothing than it could have asked for.
    pub fn overflows(&self) -> bool {
        self.queue.lock().expect("no code panics while it holds the queue").notices > MAX_NOTICES
    }
}

impl Outbox for ConnectionOutbox {
    fn deliver(&self, outgoing: &mut Vec<Outgoing>) {
        let behind = self.behind.load(Ordering::Relaxed);
        {
            let mut queue = self.queue.lock().expect("no code panics while it holds the queue");
            for mut frame in outgoing.drain(..) {
                if !queue.admits(&frame) {
                    continue;
                }
                if let Outgoing::Refused { refusal: Refusal::Displaced { .. }, .. } = &frame {
                    self.displaced.store(true, Ordering::Relaxed);
                }
                self.auditor.iter().for_each(|auditor| auditor.look_at(&frame));
                if behind {
                    detach(&mut frame);
                }
                queue.frames.push(frame);
            }
        }
        self.wake();
    }
}

impl Queue {
    fn admits(&mut self, frame: &Outgoing) -> bool {
        let bytes = match frame {
            Outgoing::Event { correlation_id, body, .. } => correlation_id.len() + body.len(),
            Outgoing::Cancel { correlation_id } => correlation_id.len(),
            // Bounded by the window, and by what the peer itself has sent.
            Outgoing::Message { .. } | Outgoing::Receipt { .. } => return true,
            _ => {
                self.notices += 1;
                return true;
            }
        };
        let room = self.signals < MAX_SIGNALS && self.signal_bytes + bytes <= MAX_SIGNAL_BYTES;
        if !room && self.signals > 0 {
            return false;
        }
        self.signals += 1;
        self.signal_bytes += bytes;
        true
    }
}

/// Bytes are slices of what their sender sent in one go, and keep all of it. That is fine for a moment, but not for as
/// long as a peer pleases.
fn detach(frame: &mut Outgoing) {
    match frame {
        Outgoing::Message { message, .. } => {
            *message = Arc::new(Message {
                mailbox: Arc::clone(&message.mailbox),
                from: Arc::clone(&message.from),
                id: copy(&message.id),
                correlation_id: message.correlation_id.as_ref().map(copy),
                sealed: Bytes::copy_from_slice(&message.sealed),
                ..**message
            });
        }
        Outgoing::Event { correlation_id, body, .. } => {
            *correlation_id = copy(correlation_id);
            *body = Bytes::copy_from_slice(body);
        }
        Outgoing::Cancel { correlation_id } => *correlation_id = copy(correlation_id),
        _ => {}
    }
}
