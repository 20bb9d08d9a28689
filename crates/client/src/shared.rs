//! State shared by the client handles and the connection's task: the session behind a lock, and wake-ups both ways.

use crate::session::Session;
use futures_util::task::AtomicWaker;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

pub struct Shared {
    session: Mutex<Session>,
    /// Wakes the connection's task.
    task: AtomicWaker,
    /// The task is running and will read the session again before it returns `Pending`, so it needs no wake-up.
    task_awake: AtomicBool,
    /// Notifies callers that wait for messages, cancels, events, a connection or the close.
    pub updates: Notify,
    /// One permit per delivery without a receipt.
    pub slots: Arc<Semaphore>,
}

impl Shared {
    pub fn new(session: Session, max_outstanding: usize) -> Arc<Self> {
        Arc::new(Self {
            session: Mutex::new(session),
            task: AtomicWaker::new(),
            task_awake: AtomicBool::new(false),
            updates: Notify::new(),
            slots: Arc::new(Semaphore::new(max_outstanding)),
        })
    }

    /// Locks the session and tells it the time: it has no clock of its own.
    pub fn lock(&self) -> MutexGuard<'_, Session> {
        let mut session = self.look();
        session.now = Instant::now();
        session
    }

    /// Locks the session for what does not depend on the time.
    pub fn look(&self) -> MutexGuard<'_, Session> {
        self.session.lock().expect("no code panics while it holds the session")
    }

    /// Changes the session and wakes the connection's task if it has to act.
    pub fn change<T>(&self, change: impl FnOnce(&mut Session) -> T) -> T {
        let (result, wake) = {
            let mut session = self.lock();
            let had_pending_acks = session.has_pending_acks();
            let result = change(&mut session);
            // The first pending acknowledgement starts the delay timer; later ones join it.
            (
                result,
                session.has_frames() || session.closed.is_some() || (!had_pending_acks && session.has_pending_acks()),
            )
        };
        if wake && !self.task_awake.load(Ordering::Acquire) {
            self.task.wake();
        }
        result
    }

    /// Wakes the connection's task.
    pub fn wake_task(&self) {
        self.task.wake();
    }

    /// Call at the start of a poll, before the session is read.
    pub fn begin_poll(&self, waker: &Waker) {
        self.task.register(waker);
        self.task_awake.store(true, Ordering::Release);
    }

    /// Call before the last read of the session in a poll: later changes wake the task again.
    pub fn end_poll(&self) {
        self.task_awake.store(false, Ordering::Release);
    }
}
