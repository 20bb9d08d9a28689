//! The frames that wait to be written to a link.

use super::LinkOptions;
use super::frames::LinkEnd;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use toolbus_cluster::Transport;

/// What a queued frame takes in memory beside its bytes.
const FRAME_OVERHEAD: usize = 64;

/// Frames in order, bounded by bytes. The engine queues them under its lock, so it can't wait for room: a link whose queue
/// exceeds the bound is closed.
pub struct FrameQueue {
    state: Mutex<State>,
    /// Bytes that are queued or being written.
    bytes: AtomicUsize,
    queued: Notify,
    room: Notify,
    has_ended: CancellationToken,
    limits: Limits,
}

struct Limits {
    frame: usize,
    congested: usize,
    total: usize,
}

#[derive(Default)]
struct State {
    frames: VecDeque<Bytes>,
    /// Bytes that are being written.
    writing: usize,
    end: Option<LinkEnd>,
}

impl FrameQueue {
    pub fn new(options: &LinkOptions) -> Self {
        let limits = Limits {
            frame: options.max_frame_bytes,
            congested: options.congested_bytes,
            total: options.max_queued_bytes,
        };
        let (state, bytes) = (Mutex::default(), AtomicUsize::new(0));
        let (queued, room, has_ended) = (Notify::new(), Notify::new(), CancellationToken::new());
        Self { state, bytes, queued, room, has_ended, limits }
    }

    /// Waits for frames and appends some to the list, more than `enough` bytes only if the first is larger. The frames that
    /// were taken last are written by then. Cancellation-safe.
    pub async fn next(&self, enough: usize, frames: &mut Vec<Bytes>) {
        loop {
            self.take(enough, frames);
            if !frames.is_empty() {
                return;
            }
            self.queued.notified().await;
        }
    }

    fn take(&self, enough: usize, frames: &mut Vec<Bytes>) {
        let mut state = self.state();
        let written = std::mem::take(&mut state.writing);
        if written > 0 {
            self.bytes.fetch_sub(written, Ordering::Relaxed);
            self.room.notify_one();
        }
        while let Some(frame) = state.frames.front() {
            let size = frame.len() + FRAME_OVERHEAD;
            if !frames.is_empty() && state.writing + size > enough {
                break;
            }
            state.writing += size;
            frames.extend(state.frames.pop_front());
        }
    }

    /// Waits until the link has to end. A separate future, because the writer may be blocked for good by then.
    pub async fn ended(&self) -> LinkEnd {
        self.has_ended.cancelled().await;
        self.state().end.unwrap_or(LinkEnd::Closed)
    }

    /// Waits until the link is not congested.
    pub async fn room(&self) {
        while self.congested() {
            self.room.notified().await;
        }
    }

    /// Drops all frames, and those that are still sent.
    pub fn close(&self) {
        self.end(LinkEnd::Closed);
    }

    fn end(&self, end: LinkEnd) {
        let mut state = self.state();
        state.end.get_or_insert(end);
        (state.frames, state.writing) = (VecDeque::new(), 0);
        self.bytes.store(0, Ordering::Relaxed);
        drop(state);
        self.has_ended.cancel();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transport for FrameQueue {
    fn send(&self, frame: Bytes) {
        let (length, size) = (frame.len(), frame.len() + FRAME_OVERHEAD);
        let bytes = {
            let mut state = self.state();
            if state.end.is_some() {
                return;
            }
            state.frames.push_back(frame);
            self.bytes.fetch_add(size, Ordering::Relaxed) + size
        };
        if length > self.limits.frame {
            self.end(LinkEnd::TooLarge(length));
        } else if bytes > self.limits.total {
            self.end(LinkEnd::Overfull);
        } else {
            self.queued.notify_one();
        }
    }

    fn congested(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.limits.congested
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const ENOUGH: usize = 4096;

    fn queue() -> FrameQueue {
        FrameQueue::new(&LinkOptions {
            max_frame_bytes: 2000,
            congested_bytes: 1000,
            max_queued_bytes: 4000,
            ..LinkOptions::new("test", [0; 32])
        })
    }

    fn frame(size: usize) -> Bytes {
        vec![0; size - FRAME_OVERHEAD].into()
    }

    /// The sizes of the next frames, `None` if it waits.
    fn next(queue: &FrameQueue, enough: usize) -> Option<Vec<usize>> {
        let mut frames = Vec::new();
        queue.next(enough, &mut frames).now_or_never()?;
        Some(frames.iter().map(|frame| frame.len() + FRAME_OVERHEAD).collect())
    }

    #[test]
    fn a_batch_ends_before_the_frame_that_exceeds_it() {
        let queue = queue();
        [300, 300, 300, 900].into_iter().for_each(|size| queue.send(frame(size)));
        assert_eq!(next(&queue, 700), Some(vec![300, 300]));
        assert_eq!(next(&queue, 700), Some(vec![300]));
        assert_eq!(next(&queue, 700), Some(vec![900]), "alone, although it is larger");
        assert_eq!(next(&queue, 700), None);
    }

    #[test]
    fn frames_count_until_they_are_written() {
        let queue = queue();
        queue.send(frame(1000));
        assert!(!queue.congested());
        queue.send(frame(100));
        assert!(queue.congested());
        assert_eq!(next(&queue, ENOUGH), Some(vec![1000, 100]));
        assert!(queue.congested() && queue.room().now_or_never().is_none(), "they are being written");
        assert_eq!(next(&queue, ENOUGH), None);
        assert!(!queue.congested() && queue.room().now_or_never().is_some());
    }

    #[test]
    fn an_overfull_queue_ends_the_link_and_keeps_nothing() {
        let queue = queue();
        (0..4).for_each(|_| queue.send(frame(1000)));
        assert!(queue.congested() && queue.ended().now_or_never().is_none());
        queue.send(frame(100));
        assert_eq!(queue.ended().now_or_never(), Some(LinkEnd::Overfull));
        queue.send(frame(100));
        assert!(queue.state().frames.is_empty() && !queue.congested());
    }

    #[test]
    fn an_oversized_frame_ends_the_link() {
        let queue = queue();
        queue.send(vec![0; 2001].into());
        assert_eq!(queue.ended().now_or_never(), Some(LinkEnd::TooLarge(2001)));
    }
}
