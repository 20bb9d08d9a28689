//! A journal without its thread, driven step by step on a simulated disk that can stop at any call.

use std::sync::Arc;
use toolbus_journal::{
    Appended, CallIndex, CallKey, Entry, JournalError, JournalOptions, JournalState, Known, Limits, Location,
    LogOptions, Recovery, Wait,
};
use toolbus_wal::sim_disk::SimDisk;

/// Small segments, so that tests rotate often.
pub fn log_options() -> LogOptions {
    LogOptions { segment_bytes: 400, checksum_seed: 5, ..LogOptions::default() }
}

pub struct TestJournal {
    pub state: JournalState,
    pub recovery: Recovery,
}

impl TestJournal {
    pub fn open(disk: &SimDisk, limits: Limits, max_bytes: u64, now: u64) -> Result<Self, JournalError> {
        let options = JournalOptions { log: log_options(), limits, max_bytes, ..JournalOptions::default() };
        Self::open_with(disk, options, now)
    }

    pub fn open_with(disk: &SimDisk, options: JournalOptions, now: u64) -> Result<Self, JournalError> {
        let (state, recovery) = JournalState::open(Arc::new(disk.clone()), options, now)?;
        Ok(Self { state, recovery })
    }

    pub fn index(&self) -> &CallIndex {
        self.state.index()
    }

    /// Rotates and compacts as far as due, then writes a group of entries.
    pub fn write(&mut self, entries: &[Entry], now: u64, sync: bool) -> Result<(), JournalError> {
        self.maintain(now)?;
        let wait = if sync { Wait::Synced } else { Wait::Written };
        for entry in entries {
            let appended = self.state.append(entry.clone(), wait, now)?;
            assert_eq!(appended == Appended::Written, !sync, "there is no rotation");
        }
        if sync { self.sync(now) } else { Ok(()) }
    }

    pub fn sync(&mut self, now: u64) -> Result<(), JournalError> {
        let Some(group) = self.state.begin_sync() else { return Ok(()) };
        let synced = group.sync();
        self.state.complete_sync(group, synced, now).outcome
    }

    /// Runs one step of rotation or compaction. Returns whether there was one.
    pub fn step(&mut self, now: u64) -> Result<bool, JournalError> {
        let step = self.state.begin_maintenance(now);
        let has_run = step.is_some();
        if let Some(step) = step {
            self.state.complete_maintenance(step.run());
        }
        self.state.failure().map_or(Ok(has_run), |failure| Err(JournalError::Write(failure)))
    }

    /// Rotates and compacts until there is no more work. Returns the number of steps.
    pub fn maintain(&mut self, now: u64) -> Result<usize, JournalError> {
        let mut steps = 0;
        while self.step(now)? {
            steps += 1;
            assert!(steps < 1000, "maintenance does not terminate");
        }
        Ok(steps)
    }

    pub fn known(&self, key: &CallKey, content: &[u8; 32]) -> Known {
        self.index().look_up(key, content).expect("the same call")
    }

    pub fn payload(&self, location: &Location) -> Vec<u8> {
        self.state.reader().payload(location).expect("a known location can be read").to_vec()
    }
}

/// Size of all files.
pub fn bytes(disk: &SimDisk) -> usize {
    disk.files().iter().map(|(_, bytes)| bytes).sum()
}
