//! Outgoing frames of one connection. The engine's windows bound the messages in it. Cancels and live events are lossy
//! and are dropped at a limit, the latest state of a follow replaces the one before; too many other frames close the
//! connection.

use crate::auditing::Auditor;
use crate::handshake::CloseReason;
use crate::name_owners::HeldBack;
use crate::wire::deep_copy;
use bytes::Bytes;
use bytestring::ByteString;
use futures_util::task::AtomicWaker;
use hashbrown::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use toolbus_engine::{Message, Outbox, Outgoing, Refusal};
use toolbus_protocol::{BrokerFrame, ErrorCode};

/// Maximum number of queued cancels and live events.
const MAX_SIGNALS: usize = 8192;
/// Maximum bytes of queued cancels and live events. A larger one is queued only if it is the only one.
const MAX_SIGNAL_BYTES: usize = 4 << 20;
/// Maximum number of queued responses and notices for a peer that does not read. A peer's own requests can't reach it.
const MAX_NOTICES: usize = 64 << 10;

#[derive(Default)]
pub struct ConnectionOutbox {
    queue: Mutex<Queue>,
    waker: AtomicWaker,
    /// The connection's task is running and will check the queue before it sleeps.
    awake: AtomicBool,
    /// The socket is blocked, so frames queued now stay in memory for a while.
    blocked: AtomicBool,
    /// Another connection has subscribed to the mailbox.
    displaced: AtomicBool,
    auditor: Option<Auditor>,
}

#[derive(Default)]
struct Queue {
    frames: Vec<Outgoing>,
    /// Frames that do not come from the engine.
    broker_frames: Vec<BrokerFrame>,
    signals: usize,
    signal_bytes: usize,
    notices: usize,
    /// Index of the queued state of each follow, so that a later state replaces it.
    followed: HashMap<ByteString, usize>,
}

impl ConnectionOutbox {
    pub fn new(auditor: Option<Auditor>) -> Self {
        Self { auditor, ..Self::default() }
    }

    pub fn audit_closed(&self, reason: Option<&CloseReason>) {
        self.auditor.iter().for_each(|auditor| auditor.closed(reason));
    }

    /// Writes an audit record of a name that the peer announced and that belongs to another host.
    pub fn audit_held_back(&self, held: &HeldBack) {
        self.auditor.iter().for_each(|auditor| auditor.held_back(held));
    }

    /// Writes an audit record of a refusal that was not decided by the engine.
    pub fn audit_refused(&self, code: ErrorCode) {
        self.auditor.iter().for_each(|auditor| auditor.refused(code, ""));
    }

    /// The task is about to take the queue and needs no wakeup.
    pub fn begin_poll(&self, waker: &Waker) {
        self.waker.register(waker);
        self.awake.store(true, Ordering::Release);
    }

    /// The task is about to sleep. Returns false if frames were queued since `take`. `awake` is cleared before the
    /// check: a frame that is queued after it wakes the task, so no wakeup is lost.
    pub fn end_poll(&self) -> bool {
        self.awake.store(false, Ordering::Release);
        let queue = self.queue.lock().expect("no code panics while holding the queue lock");
        queue.frames.is_empty() && queue.broker_frames.is_empty()
    }

    /// Appends all queued frames to the lists.
    pub fn take(&self, out: &mut Vec<Outgoing>, broker_frames: &mut Vec<BrokerFrame>) {
        let mut queue = self.queue.lock().expect("no code panics while holding the queue lock");
        out.append(&mut queue.frames);
        broker_frames.append(&mut queue.broker_frames);
        (queue.signals, queue.signal_bytes, queue.notices) = (0, 0, 0);
        queue.followed.clear();
    }

    /// Queues a frame that does not come from the engine. `HostsChanged` is queued at most once.
    pub fn send(&self, frame: BrokerFrame) {
        {
            let mut queue = self.queue.lock().expect("no code panics while holding the queue lock");
            if frame == BrokerFrame::HostsChanged && queue.broker_frames.contains(&frame) {
                return;
            }
            queue.broker_frames.push(frame);
            queue.notices += 1;
        }
        self.wake();
    }

    fn wake(&self) {
        if !self.awake.load(Ordering::Acquire) {
            self.waker.wake();
        }
    }

    pub fn set_blocked(&self, blocked: bool) {
        self.blocked.store(blocked, Ordering::Relaxed);
    }

    pub fn is_displaced(&self) -> bool {
        self.displaced.load(Ordering::Relaxed)
    }

    /// Whether more responses and notices are queued than the peer could have requested.
    pub fn overflows(&self) -> bool {
        self.queue.lock().expect("no code panics while holding the queue lock").notices > MAX_NOTICES
    }
}

impl Outbox for ConnectionOutbox {
    fn deliver(&self, outgoing: &mut Vec<Outgoing>) {
        let blocked = self.blocked.load(Ordering::Relaxed);
        {
            let mut queue = self.queue.lock().expect("no code panics while holding the queue lock");
            for mut frame in outgoing.drain(..) {
                if queue.replaces_followed(&mut frame) || !queue.admits(&frame) {
                    continue;
                }
                if let Outgoing::Refused { refusal: Refusal::Displaced { .. }, .. } = &frame {
                    self.displaced.store(true, Ordering::Relaxed);
                }
                self.auditor.iter().for_each(|auditor| auditor.record_refusal(&frame));
                if blocked {
                    unshare(&mut frame);
                }
                queue.frames.push(frame);
            }
        }
        self.wake();
    }
}

impl Queue {
    /// Replaces the queued state of the same follow, if there is one.
    fn replaces_followed(&mut self, frame: &mut Outgoing) -> bool {
        let Outgoing::Followed { request_id, .. } = &*frame else { return false };
        if let Some(index) = self.followed.get(request_id) {
            std::mem::swap(&mut self.frames[*index], frame);
            return true;
        }
        self.followed.insert(request_id.clone(), self.frames.len());
        false
    }

    fn admits(&mut self, frame: &Outgoing) -> bool {
        let bytes = match frame {
            Outgoing::Event { correlation_id, body, .. } => correlation_id.len() + body.len(),
            Outgoing::Cancel { correlation_id, from } => {
                correlation_id.len() + from.as_ref().map_or(0, |from| from.len())
            }
            // Bounded by the window, and by the peer's own delivers.
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

/// Copies the frame's bytes. They are slices of the buffer that the sender's message was read into and would keep it
/// alive for as long as the recipient does not read.
fn unshare(frame: &mut Outgoing) {
    match frame {
        Outgoing::Message { message, .. } => {
            *message = Arc::new(Message {
                mailbox: Arc::clone(&message.mailbox),
                from: Arc::clone(&message.from),
                id: deep_copy(&message.id),
                correlation_id: message.correlation_id.as_ref().map(deep_copy),
                sealed: Bytes::copy_from_slice(&message.sealed),
                ..**message
            });
        }
        Outgoing::Event { correlation_id, body, .. } => {
            *correlation_id = deep_copy(correlation_id);
            *body = Bytes::copy_from_slice(body);
        }
        Outgoing::Cancel { correlation_id, .. } => *correlation_id = deep_copy(correlation_id),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::task::noop_waker;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use toolbus_engine::FollowView;

    fn followed(request_id: &'static str, is_connected: bool) -> Outgoing {
        let view = FollowView { peers: vec![is_connected], uncollected: vec![] };
        Outgoing::Followed { request_id: request_id.into(), view: Box::new(view) }
    }

    fn take(outbox: &ConnectionOutbox) -> Vec<(String, bool)> {
        let mut frames = Vec::new();
        outbox.take(&mut frames, &mut Vec::new());
        let state = |frame: Outgoing| match frame {
            Outgoing::Followed { request_id, view } => Some((request_id.to_string(), view.peers[0])),
            _ => None,
        };
        frames.into_iter().filter_map(state).collect()
    }

    #[test]
    fn a_follow_has_at_most_one_queued_state_and_that_is_the_latest() {
        let outbox = ConnectionOutbox::default();
        for is_connected in [true, false, true, false].repeat(MAX_NOTICES) {
            outbox.deliver(&mut vec![followed("f", is_connected), followed("g", !is_connected)]);
        }
        assert!(!outbox.overflows());
        assert_eq!(take(&outbox), [("f".to_owned(), false), ("g".to_owned(), true)]);
        outbox.deliver(&mut vec![followed("f", true)]);
        assert_eq!(take(&outbox), [("f".to_owned(), true)], "frames that were taken are not replaced");
    }

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    type Send = fn(&ConnectionOutbox);

    /// The two ways to queue a frame.
    const SENDS: [Send; 2] = [
        |outbox| outbox.send(BrokerFrame::HostsChanged),
        |outbox| outbox.deliver(&mut vec![Outgoing::Cancel { correlation_id: "c".into(), from: None }]),
    ];

    #[test]
    fn a_frame_queued_while_the_task_sleeps_wakes_it() {
        for send in SENDS {
            let (outbox, counter) = (ConnectionOutbox::default(), Arc::new(CountingWaker::default()));
            outbox.begin_poll(&Waker::from(Arc::clone(&counter)));
            assert!(outbox.end_poll());
            send(&outbox);
            assert_eq!(counter.0.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn a_frame_queued_during_a_poll_keeps_the_task_awake() {
        for send in SENDS {
            let outbox = ConnectionOutbox::default();
            outbox.begin_poll(&noop_waker());
            send(&outbox);
            assert!(!outbox.end_poll());
            outbox.take(&mut Vec::new(), &mut Vec::new());
            assert!(outbox.end_poll());
        }
    }
}
