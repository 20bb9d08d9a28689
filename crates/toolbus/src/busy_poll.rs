//! Polls for events for a moment before the thread of `up` sleeps. Waking a sleeping thread takes tens of microseconds,
//! mostly until the processor has left its idle state, and a call waits for several wake-ups; its next event usually
//! arrives sooner than that.
//!
//! Only `up` polls: broker, host and worker as processes of their own would poll while the next of them needs the processor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::sync::Notify;

/// How long the thread polls after its last work.
const WINDOW: Duration = Duration::from_micros(60);
/// Polling once takes less than this: a longer time between two polls means that there was work.
const MAX_POLL: Duration = Duration::from_micros(5);

/// Wakes a task whenever the thread is about to sleep: the runtime then polls for events without waiting.
pub struct BusyPoll {
    wake: Arc<Notify>,
}

impl BusyPoll {
    /// Not on a machine with a single processor, where polling would delay the process that the event has to come from.
    pub fn install(builder: &mut Builder) -> Option<Self> {
        if std::thread::available_parallelism().map_or(1, usize::from) == 1 {
            return None;
        }
        let wake = Arc::new(Notify::new());
        let (of_hook, start) = (Arc::clone(&wake), Instant::now());
        let (last_poll, poll_until) = (AtomicU64::new(0), AtomicU64::new(0));
        builder.on_thread_park(move || {
            let now = start.elapsed().as_nanos() as u64;
            if now - last_poll.swap(now, Ordering::Relaxed) > MAX_POLL.as_nanos() as u64 {
                poll_until.store(now + WINDOW.as_nanos() as u64, Ordering::Relaxed);
            }
            if now < poll_until.load(Ordering::Relaxed) {
                of_hook.notify_one();
            }
        });
        Some(Self { wake })
    }

    /// Runs until it is dropped.
    pub async fn run(self) {
        loop {
            self.wake.notified().await;
        }
    }
}
