//! The two threads that may block on the disk: one writes and syncs batches, one reads messages back.

use crate::core::Shared;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use toolbus_engine::Batch;
use toolbus_store::StoreError;

/// How often the free space is looked at while there is work.
const SPACE_CHECK: Duration = Duration::from_millis(200);
/// How long acknowledgements wait for room on a full disk before they are tried again.
const RETRY_WHEN_FULL_MS: u64 = 500;
/// The longest sleep of the writing thread; also how soon it notices that space came back.
const IDLE: Duration = Duration::from_secs(1);

pub fn spawn(shared: &Arc<Shared>) -> io::Result<Vec<JoinHandle<()>>> {
    let (mut writer, reader) = (Writer::new(Arc::clone(shared)), Arc::clone(shared));
    // Before the first message, so that none is taken that there is no room for.
    writer.check_space();
    Ok(vec![
        Builder::new().name("toolbus-writer".into()).spawn(move || writer.run())?,
        Builder::new().name("toolbus-reader".into()).spawn(move || read_loop(&reader))?,
    ])
}

struct Writer {
    shared: Arc<Shared>,
    space_checked: Option<Instant>,
}

impl Writer {
    fn new(shared: Arc<Shared>) -> Self {
        Self { shared, space_checked: None }
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

    /// Waits until a batch is due.
    fn next_batch(&self) -> Next {
        let shared = &*self.shared;
        let mut guard = shared.lock();
        let state = &mut *guard;
        let now = shared.clock.now();
        state.engine.tick(now, &mut state.effects);
        if state.stopping {
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
        let sleep = wakeup.map_or(IDLE, |at| shared.clock.until(at).min(IDLE));
        state.writer_sleeps_until = Some(wakeup.unwrap_or(u64::MAX));
        let (mut guard, _) = shared.writer_wake.wait_timeout(guard, sleep).expect("the engine does not panic");
        guard.writer_sleeps_until = None;
        Next::Nothing
    }

    fn write(&mut self, batch: Batch) {
        let shared = &*self.shared;
        match shared.store.write(&batch).and_then(|()| shared.store.sync()) {
            Ok(()) => shared.step(|engine, _, effects| engine.synced(batch.number, effects)),
            Err(StoreError::Full) => {
                tracing::warn!("the disk is full: new messages are refused until there is room");
                shared.step(|engine, now, effects| {
                    engine.batch_refused(now, batch, now + RETRY_WHEN_FULL_MS, effects);
                });
            }
            Err(error) => return shared.fail(error),
        }
        match shared.store.reclaim() {
            Ok(0) => {}
            Ok(bytes) => tracing::debug!(bytes, "space given back"),
            Err(error) => return shared.fail(error),
        }
        self.check_space();
    }

    /// Refuses new messages before the disk is really full, so that acknowledgements still have room.
    fn check_space(&mut self) {
        if self.space_checked.is_some_and(|at| at.elapsed() < SPACE_CHECK) {
            return;
        }
        self.space_checked = Some(Instant::now());
        match self.is_disk_low() {
            Ok(low) => self.shared.lock().engine.set_disk_low(low),
            Err(error) if error.is_about_space() => tracing::warn!(%error, "free space is unknown"),
            Err(error) => self.shared.fail(error),
        }
    }

    /// A disk that is low is first given back what settled messages still occupy.
    fn is_disk_low(&self) -> Result<bool, StoreError> {
        let (store, reserve) = (&self.shared.store, self.shared.reserve_bytes);
        if store.free_bytes()? >= reserve {
            return Ok(false);
        }
        let freed = store.reclaim_urgently()?;
        if freed > 0 {
            tracing::info!(bytes = freed, "the disk is low: space of settled messages given back");
        }
        Ok(store.free_bytes()? < reserve)
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
