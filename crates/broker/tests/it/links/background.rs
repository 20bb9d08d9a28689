//! A runtime on a thread of its own, for tests that wait without one.

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

pub struct Background {
    handle: Handle,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (handle, stop) = (runtime.handle().clone(), CancellationToken::new());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || runtime.block_on(stopped.cancelled()));
        Self { handle, stop, thread: Some(thread) }
    }

    /// Runs a future to its end.
    pub fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        let (done, outcome) = mpsc::sync_channel(1);
        self.handle.spawn(async move { done.send(future.await).ok() });
        outcome.recv_timeout(Duration::from_secs(60)).expect("the future ends in time")
    }
}

impl Drop for Background {
    /// Drops all tasks.
    fn drop(&mut self) {
        self.stop.cancel();
        self.thread.take().map(JoinHandle::join);
    }
}
