//! Disk I/O in single steps, so that any other event can happen in between; crashes and recovery.

use super::forger;
use super::model::Recovered;
use super::scenario::Scenario;
use super::world::World;
use std::sync::Arc;
use toolbus_engine::{Batch, Effect, Effects, Engine, Page, Seq};
use toolbus_store::sim_disk::SimDisk;
use toolbus_store::{LogStore, Store, StoreError};

/// A batch that is being written.
pub struct PendingWrite {
    batch: Batch,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Taken,
    Written,
    Synced,
}

/// A read that the engine requested.
pub struct PendingFetch {
    pub mailbox: Arc<str>,
    pub from: Seq,
    pub max_messages: usize,
    pub max_bytes: u64,
    pub page: Option<Page>,
}

pub fn open(disk: &SimDisk, scenario: &Scenario) -> Result<(Recovered, LogStore), StoreError> {
    let mut recovered = Recovered::replaying_into(Engine::new(scenario.engine.clone()));
    if scenario.restricted {
        forger::set_roles(&mut recovered.engine);
    }
    let (store, recovery) = LogStore::open(Arc::new(disk.clone()), scenario.store.clone(), &mut recovered)?;
    recovered.engine.finish_restore(recovery.next_seq, 1, recovery.damaged);
    recovered.damaged = recovery.damaged;
    Ok((recovered, store))
}

impl World {
    /// One step of the current write.
    pub fn storage_step(&mut self) {
        match self.write.take() {
            None => self.take_batch(),
            Some(write) if write.stage == Stage::Taken => self.write_batch(write),
            Some(write) if write.stage == Stage::Written && write.batch.sync => self.sync_batch(write),
            Some(write) if write.stage == Stage::Written => {
                self.model.batch_written();
                self.report_synced(write.batch);
            }
            Some(write) => self.report_synced(write.batch),
        }
    }

    fn take_batch(&mut self) {
        if let Some(batch) = self.engine.take_batch(self.now) {
            self.note("batch", &[("puts", batch.puts.len() as u64), ("settled", batch.settled.len() as u64)]);
            self.model.batch_taken(self.now, &batch);
            self.write = Some(PendingWrite { batch, stage: Stage::Taken });
        }
    }

    fn write_batch(&mut self, mut write: PendingWrite) {
        match self.store.write(&write.batch) {
            Ok(()) => {
                self.note("written", &[("calls", self.disk.calls())]);
                write.stage = Stage::Written;
                self.write = Some(write);
            }
            Err(StoreError::Full) => self.batch_refused(write.batch),
            Err(_) => self.crash(),
        }
    }

    fn batch_refused(&mut self, batch: Batch) {
        self.note("disk full", &[("number", batch.number)]);
        if !self.disk_is_small {
            self.model.violated("the store reports a full disk, but the disk has no limit");
        }
        self.model.batch_refused(&batch);
        let mut effects = Effects::default();
        self.engine.batch_refused(self.now, batch, self.now + 10, &mut effects);
        self.apply_effects(effects);
    }

    fn sync_batch(&mut self, mut write: PendingWrite) {
        match self.store.sync() {
            Ok(()) => {
                self.note("synced", &[("number", write.batch.number)]);
                self.model.batch_synced();
                write.stage = Stage::Synced;
                self.write = Some(write);
            }
            // It is unknown which data is durable after a failed sync, so no receipt may be sent for it.
            Err(_) => self.crash(),
        }
    }

    fn report_synced(&mut self, batch: Batch) {
        let mut effects = Effects::default();
        self.engine.synced(batch.number, &mut effects);
        self.apply_effects(effects);
    }

    /// Reads the page of a pending fetch; `answer_fetch` delivers it later.
    pub fn read_page(&mut self, index: usize) {
        let fetch = &self.fetches[index];
        match self.store.read(&fetch.mailbox, fetch.from, fetch.max_messages, fetch.max_bytes) {
            Ok(page) => {
                let facts = [("messages", page.messages.len() as u64), ("damaged", page.damaged.len() as u64)];
                if !page.damaged.is_empty() {
                    self.model.violated("a record is corrupt although no corruption was injected");
                }
                self.fetches[index].page = Some(page);
                self.note("page", &facts);
            }
            Err(_) => self.crash(),
        }
    }

    /// Passes a page to the engine, whose state may have changed since it was read.
    pub fn answer_fetch(&mut self, index: usize) {
        let fetch = self.fetches.remove(index);
        let Some(page) = fetch.page else { return };
        let mut effects = Effects::default();
        self.engine.fetched(self.now, &fetch.mailbox, page, &mut effects);
        let asks_again = effects.0.iter().any(|effect| {
            matches!(effect, Effect::Fetch { mailbox, from, .. } if *mailbox == fetch.mailbox && *from == fetch.from)
        });
        self.idle_fetches = if asks_again && effects.0.len() == 1 { self.idle_fetches + 1 } else { 0 };
        if self.idle_fetches > 3 * self.clients.len() {
            self.model.violated(format!("'{}' is read repeatedly without progress", fetch.mailbox));
        }
        self.apply_effects(effects);
    }

    pub fn reclaim(&mut self) {
        // On a full disk, remembered ids may be dropped to free space.
        self.model.disk.ids_dropped |= self.disk_is_small;
        match self.store.reclaim() {
            Ok(freed) => self.note("reclaim", &[("freed", freed), ("calls", self.disk.calls())]),
            Err(_) => self.crash(),
        }
    }

    /// The periodic check of free space, which the broker does outside of the engine.
    pub fn check_space(&mut self) {
        let free = self.store.free_bytes().expect("a simulated disk reports its free space");
        self.engine.set_disk_low(free < 500);
    }

    /// The machine crashes and restarts. Links break; clients keep their state.
    pub fn crash(&mut self) {
        self.crashes += 1;
        self.write = None;
        self.fetches.clear();
        for (conn, link) in std::mem::take(&mut self.links) {
            self.clients[link.client].link_gone(conn);
        }
        self.disk.crash(&mut self.rng);
        self.note("crash", &[("files", self.disk.files().len() as u64)]);
        self.now = self.now.saturating_sub(std::mem::take(&mut self.clock_falls_back));
        self.disk.stop_after(self.stop_recovery_after.take());
        self.recover();
    }

    fn recover(&mut self) {
        loop {
            match open(&self.disk, &self.scenario) {
                Ok((recovered, store)) => {
                    self.disk.stop_after(None);
                    if recovered.damaged > 0 {
                        self.model.violated("a torn write was reported as corruption");
                    }
                    self.model.recovered(&recovered);
                    self.engine = recovered.engine;
                    self.store = store;
                    return self.compare();
                }
                Err(StoreError::Io { .. }) => {
                    self.disk.crash(&mut self.rng);
                    self.note("crash again", &[("files", self.disk.files().len() as u64)]);
                }
                Err(error) => return self.model.violated(format!("the log can't be opened after a crash: {error}")),
            }
        }
    }

    /// Writes everything and then compares the engine's counters with the durable records.
    pub fn quiesce(&mut self) {
        if self.disk_is_small {
            return;
        }
        self.tick();
        for _ in 0..20 {
            self.engine.hurry(self.now);
            if self.write.is_none() && !self.engine.anything_to_write() {
                return self.compare();
            }
            let crashes = self.crashes;
            self.storage_step();
            if self.crashes != crashes {
                return;
            }
        }
        self.model.violated("writing does not come to an end");
    }

    pub fn compare(&mut self) {
        if self.engine.unsettled_bytes() != 0 {
            self.model.violated("everything is durable, but the engine counts unsettled bytes");
        }
        self.model.compare(&self.engine.status(self.now));
    }
}
