//! What the handles and the connection's task share: the session behind a lock, and the bells between them.

use crate::session::Session;
use futures_util::task::AtomicWaker;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use tokio::sync::{Notify, Semaphore};

pub struct Shared {
    session: Mutex<Session>,
    /// Rings the connection's task.
    task: AtomicWaker,
    /// The task is running and will look at the session before it rests.
    task_awake: AtomicBool,
    /// Rings whoever waits for messages, cancels, events, or the end.
    pub arrivals: Notify,
    pub slots: Arc<Semaphore>,
}

impl Shared {
    pub fn new(session: Session, max_outstanding: usize) -> Arc<Self> {
        Arc::new(Self {
            session: Mutex::new(session),
            task: AtomicWaker::new(),
            task_awake: AtomicBool::new(false),
            arrivals: Notify::new(),
            slots: Arc::new(Semaphore::new(max_outstanding)),
        })
    }

    pub fn lock(&self) -> MutexGuard<'_, Session> {
        self.session.lock().expect("no code panics while it holds the session")
    }

    /// Changes the session and makes sure that its task sees it.
    pub fn change<T>(&self, change: impl FnOnce(&mut Session) -> T) -> T {
        let (result, ring) = {
            let mut session = self.lock();
            let had_riders = session.has_riders();
            let result = change(&mut session);
            // The first rider starts the clock; the others ride along.
            (result, session.has_frames() || session.closed.is_some() || (!had_riders && session.has_riders()))
        };
        if ring && !self.task_awake.load(Ordering::Acquire) {
            self.task.wake();
        }
        result
    }

    /// Wakes the connection's task.
    pub fn ring(&self) {
        self.task.wake();
    }

    pub fn begin_turn(&self, waker: &Waker) {
        self.task.register(waker);
        self.task_awake.store(true, Ordering::Release);
    }

    /// Call it before the last look at the session: what changes afterwards rings again.
    pub fn end_turn(&self) {
        self.task_awake.store(false, Ordering::Release);
    }
}
