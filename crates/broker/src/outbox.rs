//! Outgoing frames of one connection. The engine's windows bound the messages in it. Cancels and live events are lossy: at
//! a limit, the latest event of a call replaces the one before, and others are dropped. The latest state of a follow
//! replaces the one before; too many other frames close the connection.

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
    /// A partition has another owner: the peer has to connect again.
    moved: AtomicBool,
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
    /// Senders of requests that the peer refused as a host.
    refused_senders: Vec<Arc<str>>,
    /// Index of the queued state of each follow, so that a later state replaces it.
    followed: HashMap<ByteString, usize>,
    /// Index of the last queued event of each call. Built when the limit is reached for the first time.
    last_events: Option<HashMap<ByteString, usize>>,
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
        let has_senders = !queue.refused_senders.is_empty();
        queue.frames.is_empty() && queue.broker_frames.is_empty() && !has_senders && !self.is_moved()
    }

    /// Appends all queued frames to the lists.
    pub fn take(&self, out: &mut Vec<Outgoing>, broker_frames: &mut Vec<BrokerFrame>) {
        let mut queue = self.queue.lock().expect("no code panics while holding the queue lock");
        out.append(&mut queue.frames);
        broker_frames.append(&mut queue.broker_frames);
        (queue.signals, queue.signal_bytes, queue.notices) = (0, 0, 0);
        queue.followed.clear();
        queue.last_events = None;
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

    /// Whether the connection has to end because a partition has another owner.
    pub fn is_moved(&self) -> bool {
        self.moved.load(Ordering::Relaxed)
    }

    /// The senders of requests that the peer refused since the last time.
    pub fn take_refused_senders(&self) -> Vec<Arc<str>> {
        let mut queue = self.queue.lock().expect("no code panics while holding the queue lock");
        std::mem::take(&mut queue.refused_senders)
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
                match frame {
                    Outgoing::Moved => {
                        self.moved.store(true, Ordering::Relaxed);
                        continue;
                    }
                    Outgoing::RefusedSenders { senders } => {
                        queue.refused_senders.extend(senders);
                        continue;
                    }
                    _ => {}
                }
                if queue.replaces_followed(&mut frame) || !queue.admits(&mut frame, blocked) {
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

    fn admits(&mut self, frame: &mut Outgoing, is_blocked: bool) -> bool {
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
            self.replace_last_event(frame, bytes, is_blocked);
            return false;
        }
        if let (Some(last), Outgoing::Event { correlation_id, .. }) = (&mut self.last_events, &*frame) {
            last.insert(deep_copy(correlation_id), self.frames.len());
        }
        self.signals += 1;
        self.signal_bytes += bytes;
        true
    }
}

impl Queue {
    /// Replaces the last queued event of the same call, so that a burst of progress ends with the last one. Its place
    /// before the call's reply stays the same.
    fn replace_last_event(&mut self, frame: &mut Outgoing, bytes: usize, is_blocked: bool) {
        let Outgoing::Event { correlation_id, .. } = &*frame else { return };
        let frames = &self.frames;
        let last = self.last_events.get_or_insert_with(|| {
            let events = frames.iter().enumerate().filter_map(|(index, frame)| match frame {
                Outgoing::Event { correlation_id, .. } => Some((deep_copy(correlation_id), index)),
                _ => None,
            });
            events.collect()
        });
        let Some(queued) = last.get(correlation_id).and_then(|index| self.frames.get_mut(*index)) else { return };
        let Outgoing::Event { correlation_id, body, .. } = &*queued else { return };
        let others = self.signal_bytes.saturating_sub(correlation_id.len() + body.len());
        // A little more than at first, since later events may be a little larger.
        if others + bytes > MAX_SIGNAL_BYTES + MAX_SIGNAL_BYTES / 8 {
            return;
        }
        self.signal_bytes = others + bytes;
        if is_blocked {
            unshare(frame);
        }
        std::mem::swap(queued, frame);
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

    fn event(call: &'static str, body: String) -> Outgoing {
        Outgoing::Event { from: "h".into(), correlation_id: call.into(), body: body.into(), batch: false }
    }

    #[test]
    fn a_burst_of_events_ends_with_the_last_one_of_each_call_within_the_limits() {
        for (size, most) in [(1, MAX_SIGNALS), (10_000, MAX_SIGNAL_BYTES / 10_000)] {
            let outbox = ConnectionOutbox::default();
            let body = |n: usize| format!("{n:0size$}");
            for n in 0..3 * MAX_SIGNALS {
                outbox.deliver(&mut vec![event(if n % 2 == 0 { "even" } else { "odd" }, body(n))]);
            }
            let mut frames = Vec::new();
            outbox.take(&mut frames, &mut Vec::new());
            let bodies = frames.iter().filter_map(|frame| match frame {
                Outgoing::Event { body, .. } => String::from_utf8(body.to_vec()).expect("UTF-8").parse::<usize>().ok(),
                _ => None,
            });
            let bodies: Vec<usize> = bodies.collect();
            assert!(bodies.len() <= most && bodies.len() > most / 2, "{}", bodies.len());
            for last in [3 * MAX_SIGNALS - 2, 3 * MAX_SIGNALS - 1] {
                assert!(bodies.contains(&last), "{last}");
            }
            for parity in [0, 1] {
                assert!(bodies.iter().filter(|n| *n % 2 == parity).is_sorted());
            }
        }
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
