//! Group commit: one sync makes the records of all waiting writers durable. Without a thread or a clock, so that
//! simulations drive it.
//!
//! Operations that block on the disk are split: `begin_…` returns a handle, the handle runs without access to the log, and
//! `complete_…` applies its result. There is at most one such handle at a time, because the kernel reports a write-back
//! error to one of several concurrent syncs only, so the success of another one would prove nothing. For the same reason
//! no failed operation is repeated: after a failure the state on disk is unknown, and every later group fails.

use crate::log::{Log, Unsynced};
use std::io;
use std::sync::Arc;

/// The writers of a log that wait for a sync, and the state of its slow operations.
pub struct GroupCommit<T> {
    waiting: Vec<T>,
    needs_sync: bool,
    /// A handle of a slow operation is out.
    is_busy: bool,
    failure: Option<Arc<io::Error>>,
}

/// The writers whose records one sync makes durable.
pub struct SyncGroup<T> {
    waiting: Vec<T>,
    written: Unsynced,
}

impl<T> SyncGroup<T> {
    /// Makes the records durable. Blocks.
    pub fn sync(&self) -> io::Result<()> {
        self.written.sync()
    }
}

impl<T> Default for GroupCommit<T> {
    fn default() -> Self {
        Self { waiting: Vec::new(), needs_sync: false, is_busy: false, failure: None }
    }
}

impl<T> GroupCommit<T> {
    /// The log has changed: a record was staged or written, or its end was truncated. `waiter` waits for the next sync.
    pub fn changed(&mut self, waiter: Option<T>) {
        self.needs_sync = true;
        self.waiting.extend(waiter);
    }

    /// Whether the log has changed since the last sync began.
    pub fn needs_sync(&self) -> bool {
        self.needs_sync
    }

    /// The writers that wait for the next sync.
    pub fn waiting(&self) -> &[T] {
        &self.waiting
    }

    /// The error after which no record becomes durable, if any.
    pub fn failure(&self) -> Option<&Arc<io::Error>> {
        self.failure.as_ref()
    }

    /// Records a failure. Returns the first one.
    pub fn fail(&mut self, error: io::Error) -> Arc<io::Error> {
        Arc::clone(self.failure.get_or_insert_with(|| Arc::new(error)))
    }

    /// Whether a rotation has begun and not failed. Every writer waits until it has ended.
    pub fn is_rotating(&self, log: &Log) -> bool {
        log.is_sealing() && self.failure.is_none()
    }

    /// Takes all waiting writers as one group: flushes the log and returns the handle to sync. `None` if there is nothing
    /// to sync, while another slow operation runs, or in the middle of a rotation, which has to end first.
    pub fn begin_sync(&mut self, log: &mut Log) -> Option<SyncGroup<T>> {
        if self.is_busy || self.is_rotating(log) || !self.needs_sync {
            return None;
        }
        self.needs_sync = false;
        self.is_busy = true;
        if self.failure.is_none()
            && let Err(error) = log.flush()
        {
            self.fail(error);
        }
        // Synced also after a failure, to make as many earlier writes durable as possible.
        Some(SyncGroup { waiting: std::mem::take(&mut self.waiting), written: log.unsynced() })
    }

    /// Ends the group with the result of [`SyncGroup::sync`]. Returns its writers, and whether their records are durable.
    /// If not, they never will be.
    pub fn complete_sync(
        &mut self,
        log: &mut Log,
        group: SyncGroup<T>,
        synced: io::Result<()>,
    ) -> (Vec<T>, Result<(), Arc<io::Error>>) {
        self.is_busy = false;
        let SyncGroup { waiting, written } = group;
        // After a failed write during the sync, the state on disk is unknown too.
        let outcome = match (self.failure.clone(), synced) {
            (Some(failure), _) => Err(failure),
            (None, Err(error)) => Err(self.fail(error)),
            (None, Ok(())) => {
                log.synced(&written);
                Ok(())
            }
        };
        (waiting, outcome)
    }

    /// Begins another slow operation, such as a step of a rotation, if `next` returns one; it gets the waiting
    /// writers. `None` while one runs, and after a failure.
    pub fn begin_operation<O>(&mut self, next: impl FnOnce(&[T]) -> io::Result<Option<O>>) -> Option<O> {
        if self.is_busy || self.failure.is_some() {
            return None;
        }
        let operation = next(&self.waiting).unwrap_or_else(|error| {
            self.failure = Some(Arc::new(error));
            None
        });
        self.is_busy = operation.is_some();
        operation
    }

    /// Ends the operation; `apply` applies its result. After a failure elsewhere even its success proves nothing, so it
    /// is not applied.
    pub fn complete_operation<O>(&mut self, done: io::Result<O>, apply: impl FnOnce(O) -> io::Result<()>) {
        self.is_busy = false;
        if self.failure.is_none()
            && let Err(error) = done.and_then(apply)
        {
            self.fail(error);
        }
    }
}
