//! The two threads that may block on disk I/O: one writes and fsyncs batches, one reads messages back.

use crate::core::{Shared, abort_after_panic};
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use toolbus_engine::Batch;
use toolbus_store::StoreError;

/// Minimum interval between two checks of the free disk space.
const SPACE_CHECK: Duration = Duration::from_millis(200);
/// Delay before acknowledgements are written again after the disk was full.
const RETRY_WHEN_FULL_MS: u64 = 500;
/// Maximum sleep of the writer thread; also bounds how late it notices that space was freed.
const MAX_SLEEP: Duration = Duration::from_secs(1);

pub fn spawn(shared: &Arc<Shared>) -> io::Result<Vec<JoinHandle<()>>> {
    let (mut writer, reader) = (Writer::new(Arc::clone(shared)), Arc::clone(shared));
    // Checked before the first message is accepted: there may be no space for it.
    writer.check_space();
    Ok(vec![
        Builder::new().name("toolbus-writer".into()).spawn(move || writer.run())?,
        Builder::new().name("toolbus-reader".into()).spawn(move || read_loop(&reader))?,
    ])
}

struct Writer {
    shared: Arc<Shared>,
    space_checked: Option<Instant>,
    /// The last batch found no room.
    is_full: bool,
}

impl Writer {
    fn new(shared: Arc<Shared>) -> Self {
        Self { shared, space_checked: None, is_full: false }
    }

    fn run(mut self) {
        while !self.shared.has_failed() {
            match self.next_batch() {
                Next::Batch(batch) => self.write(batch),
                Next::Nothing => self.check_space(),
                Next::Stop => return,
            }
        }
    }

    /// Returns the batch that is due, or sleeps until one may be.
    fn next_batch(&self) -> Next {
        let shared = &*self.shared;
        let mut guard = shared.lock();
        let state = &mut *guard;
        let now = shared.clock.now();
        state.engine.tick(now, &mut state.effects);
        if state.stopping {
            // Retrying at once would only spin: acknowledgements without a record are repeated after the restart.
            if self.is_full {
                return Next::Stop;
            }
            state.engine.hurry(now);
        }
        let batch = state.engine.take_batch(now);
        state.dispatcher.dispatch(&mut state.effects, &shared.fetches);
        if let Some(batch) = batch {
            return Next::Batch(batch);
        }
        if state.stopping {
            return Next::Stop;
        }
        let wakeup = state.engine.next_wakeup();
        let sleep = wakeup.map_or(MAX_SLEEP, |at| shared.clock.until(at).min(MAX_SLEEP));
        state.writer_sleeps_until = Some(wakeup.unwrap_or(u64::MAX));
        let (mut guard, _) = shared.writer_wake.wait_timeout(guard, sleep).unwrap_or_else(|_| abort_after_panic());
        guard.writer_sleeps_until = None;
        Next::Nothing
    }

    fn write(&mut self, batch: Batch) {
        let shared = &*self.shared;
        let written = if batch.is_empty() { Ok(()) } else { shared.store.write(&batch) };
        match written.and_then(|()| if batch.sync { shared.store.sync() } else { Ok(()) }) {
            // Its space is reclaimed once it is durable.
            Ok(()) if !batch.sync => return shared.step(|engine, _, effects| engine.synced(batch.number, effects)),
            Ok(()) => {
                self.is_full = false;
                shared.step(|engine, _, effects| engine.synced(batch.number, effects));
            }
            Err(StoreError::Full) => {
                self.is_full = true;
                tracing::warn!("the disk is full; refusing new messages");
                shared.step(|engine, now, effects| {
                    engine.batch_refused(now, batch, now + RETRY_WHEN_FULL_MS, effects);
                });
            }
            Err(error) => return shared.fail(error),
        }
        match shared.store.reclaim() {
            Ok(0) => {}
            Ok(bytes) => tracing::debug!(bytes, "reclaimed disk space"),
            Err(error) => return shared.fail(error),
        }
        self.check_space();
    }

    /// Refuses new messages before the disk is completely full, so that acknowledgements can still be written.
    fn check_space(&mut self) {
        if self.space_checked.is_some_and(|at| at.elapsed() < SPACE_CHECK) {
            return;
        }
        self.space_checked = Some(Instant::now());
        match self.is_disk_low() {
            Ok((low, tight)) => {
                let mut state = self.shared.lock();
                state.engine.set_disk_low(low);
                state.engine.set_disk_tight(tight);
            }
            Err(error) if error.is_about_space() => tracing::warn!(%error, "can't determine the free disk space"),
            Err(error) => self.shared.fail(error),
        }
    }

    /// Whether all new messages are refused, and whether those of other senders than hosts and operators are. A disk
    /// that is tight is first given back what settled messages still occupy.
    fn is_disk_low(&self) -> Result<(bool, bool), StoreError> {
        let (store, reserve) = (&self.shared.store, self.shared.reserve_bytes);
        let tight = reserve.saturating_mul(2);
        if store.free_bytes()? >= tight {
            return Ok((false, false));
        }
        let freed = store.reclaim_urgently()?;
        if freed > 0 {
            tracing::info!(bytes = freed, "the disk is low: space of settled messages given back");
        }
        let free = store.free_bytes()?;
        Ok((free < reserve, free < tight))
    }
}

enum Next {
    Batch(Batch),
    Nothing,
    Stop,
}

fn read_loop(shared: &Shared) {
    while let Some(request) = shared.fetches.next() {
        match shared.store.read(&request.mailbox, request.from, request.max_messages, request.max_bytes) {
            Ok(page) => shared.step(|engine, now, effects| engine.fetched(now, &request.mailbox, page, effects)),
            Err(error) => return shared.fail(error),
        }
    }
}
