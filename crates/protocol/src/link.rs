//! A connection within one process: frames pass between its ends as values, without an encoding. The broker applies the
//! same rules to them as to decoded ones ([`ClientFrame::checked`]).

use crate::{AgentRef, BrokerFrame, ClientFrame, DecodeError, check_name, json};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

/// Maximum bytes that wait in one direction. The frames of one poll may exceed it.
const MAX_BYTES: usize = 256 << 10;
/// What a frame without a body counts.
const SMALL_FRAME: usize = 64;

/// One end of a link. Dropping it closes the link; frames that it has sent can still be received.
pub struct Link<S, R> {
    outgoing: Arc<Lane<S>>,
    incoming: Arc<Lane<R>>,
}

/// The end of a client.
pub type ClientLink = Link<ClientFrame, BrokerFrame>;
/// The end of the broker.
pub type BrokerLink = Link<BrokerFrame, ClientFrame>;

/// The other end was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkClosed;

/// Size of a frame in memory, approximately.
pub trait FrameBytes {
    /// The size; at least that of the body.
    fn frame_bytes(&self) -> usize;
}

struct Lane<T> {
    state: Mutex<LaneState<T>>,
}

struct LaneState<T> {
    frames: VecDeque<T>,
    bytes: usize,
    /// Number of frames that were received.
    received: u64,
    closed: bool,
    sender: Option<Waker>,
    receiver: Option<Waker>,
}

/// Makes a link.
pub fn link() -> (ClientLink, BrokerLink) {
    let (up, down) = (Arc::<Lane<ClientFrame>>::default(), Arc::<Lane<BrokerFrame>>::default());
    let client = Link { outgoing: Arc::clone(&up), incoming: Arc::clone(&down) };
    (client, Link { outgoing: down, incoming: up })
}

/// Passes frames between a broker and a client until one of them is gone, so that tests can cut connections.
#[doc(hidden)]
pub async fn relay(broker: &ClientLink, client: &BrokerLink) {
    let pass = |cx: &mut Context<'_>| loop {
        match (broker.poll_receive(cx), client.poll_receive(cx)) {
            (Poll::Ready(None), _) | (_, Poll::Ready(None)) => return Poll::Ready(()),
            (Poll::Pending, Poll::Pending) => return Poll::Pending,
            (down, up) => {
                if let Poll::Ready(Some(frame)) = down {
                    client.send(frame);
                }
                if let Poll::Ready(Some(frame)) = up {
                    broker.send(frame);
                }
            }
        }
    };
    std::future::poll_fn(pass).await;
}

impl<S: FrameBytes, R: FrameBytes> Link<S, R> {
    /// Queues a frame. Senders wait for [`poll_flush`](Self::poll_flush) before they send more.
    pub fn send(&self, frame: S) {
        let mut lane = self.outgoing.lock();
        if lane.closed {
            return;
        }
        lane.bytes += frame.frame_bytes();
        lane.frames.push_back(frame);
        let receiver = lane.receiver.take();
        drop(lane);
        wake(receiver);
    }

    /// Ready when the other end has received enough for more to be sent.
    pub fn poll_flush(&self, cx: &Context<'_>) -> Poll<Result<(), LinkClosed>> {
        let mut lane = self.outgoing.lock();
        if lane.closed {
            return Poll::Ready(Err(LinkClosed));
        }
        if lane.bytes < MAX_BYTES {
            return Poll::Ready(Ok(()));
        }
        lane.sender = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The next frame of the other end; `None` if the other end was dropped and no frame is left.
    pub fn poll_receive(&self, cx: &Context<'_>) -> Poll<Option<R>> {
        let mut lane = self.incoming.lock();
        let Some(frame) = lane.frames.pop_front() else {
            if lane.closed {
                return Poll::Ready(None);
            }
            lane.receiver = Some(cx.waker().clone());
            return Poll::Pending;
        };
        lane.bytes -= frame.frame_bytes();
        lane.received += 1;
        let sender = if lane.bytes < MAX_BYTES { lane.sender.take() } else { None };
        drop(lane);
        wake(sender);
        Poll::Ready(Some(frame))
    }

    /// Number of frames that the other end has received.
    pub fn received_by_peer(&self) -> u64 {
        self.outgoing.lock().received
    }
}

impl<S, R> Drop for Link<S, R> {
    fn drop(&mut self) {
        self.outgoing.close();
        self.incoming.close();
    }
}

impl<S, R> fmt::Debug for Link<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

impl<T> Lane<T> {
    fn lock(&self) -> MutexGuard<'_, LaneState<T>> {
        self.state.lock().expect("no code panics while it holds this lock")
    }

    fn close(&self) {
        let mut lane = self.lock();
        lane.closed = true;
        let (sender, receiver) = (lane.sender.take(), lane.receiver.take());
        drop(lane);
        wake(sender);
        wake(receiver);
    }
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        let (frames, sender, receiver) = (VecDeque::new(), None, None);
        Self { state: Mutex::new(LaneState { frames, bytes: 0, received: 0, closed: false, sender, receiver }) }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl FrameBytes for ClientFrame {
    fn frame_bytes(&self) -> usize {
        SMALL_FRAME
            + match self {
                Self::Deliver(deliver) => deliver.envelope.sealed().len() + deliver.to.len(),
                Self::Event(event) | Self::EventBatch(event) => event.body.as_bytes().len(),
                Self::Announce(announce) => {
                    announce.manifests.iter().map(|manifest| manifest.manifest.as_bytes().len()).sum()
                }
                _ => 0,
            }
    }
}

impl FrameBytes for BrokerFrame {
    fn frame_bytes(&self) -> usize {
        SMALL_FRAME
            + match self {
                Self::Message(push) => push.envelope.sealed().len(),
                Self::Event(event) => event.body.as_bytes().len(),
                Self::EventBatch { batch, .. } => batch.as_bytes().len(),
                _ => 0,
            }
    }
}

impl ClientFrame {
    /// Applies the checks of decoding to a frame that was not encoded. Rare frames take their JSON form, so that there is
    /// one set of checks.
    pub fn checked(self) -> Result<Self, DecodeError> {
        let check = |name: &str| check_name(name).map_err(DecodeError::BadName);
        match &self {
            Self::Subscribe | Self::AckTags { .. } => Ok(self),
            Self::Deliver(deliver) => {
                check(&deliver.to)?;
                deliver.envelope.check()?;
                Ok(self)
            }
            Self::Event(event) => {
                check(&event.peer)?;
                check(&event.correlation_id)?;
                Ok(self)
            }
            rare => json::read_client(json::write_client(rare, &AgentRef::new("")).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn large_event() -> BrokerFrame {
        let body = crate::Body::parse(format!("\"{}\"", "x".repeat(MAX_BYTES / 2))).expect("JSON");
        BrokerFrame::Event(crate::Event { peer: "p".into(), correlation_id: "c".into(), body })
    }

    #[test]
    fn a_sender_waits_while_the_link_is_full_and_is_woken_when_there_is_room() {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let cx = Context::from_waker(&waker);
        let (client, broker) = link();
        assert_eq!(client.poll_receive(&cx), Poll::Pending);
        broker.send(large_event());
        assert_eq!((wakes.0.load(Ordering::Relaxed), broker.poll_flush(&cx)), (1, Poll::Ready(Ok(()))));
        broker.send(large_event());
        assert_eq!(broker.poll_flush(&cx), Poll::Pending);
        assert_eq!((client.poll_receive(&cx), broker.received_by_peer()), (Poll::Ready(Some(large_event())), 1));
        assert_eq!((wakes.0.load(Ordering::Relaxed), broker.poll_flush(&cx)), (2, Poll::Ready(Ok(()))));
    }

    #[test]
    fn frames_that_were_sent_before_the_end_are_still_received() {
        let cx = Context::from_waker(Waker::noop());
        let (client, broker) = link();
        broker.send(BrokerFrame::HostsChanged);
        drop(broker);
        assert_eq!(client.poll_receive(&cx), Poll::Ready(Some(BrokerFrame::HostsChanged)));
        assert_eq!(client.poll_receive(&cx), Poll::Ready(None));
        assert_eq!(client.poll_flush(&cx), Poll::Ready(Err(LinkClosed)));
        client.send(ClientFrame::Subscribe);
    }
}
