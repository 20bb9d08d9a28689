//! A journal without its sync thread, driven step by step on a simulated disk that can stop at any call.

use std::io;
use std::sync::Arc;
use toolbus_journal::{
    CallIndex, CallKey, CompactionContext, Compactor, CompactorOptions, Entry, JournalLog, Known, Limits, Location,
    LogOptions, Recovery,
};
use toolbus_wal::sim_disk::SimDisk;

/// Small segments, so that tests rotate often.
pub fn log_options() -> LogOptions {
    LogOptions { segment_bytes: 400, checksum_seed: 5, ..LogOptions::default() }
}

pub struct TestJournal {
    pub index: CallIndex,
    pub log: JournalLog,
    pub recovery: Recovery,
    compactor: Compactor,
}

impl TestJournal {
    pub fn open(disk: &SimDisk, limits: Limits, max_bytes: u64, now: u64) -> io::Result<Self> {
        let compactor = Compactor::new(CompactorOptions { keep_ms: limits.keep_ms, max_bytes });
        let mut index = CallIndex::new(limits, now);
        let (log, recovery) =
            JournalLog::open(Arc::new(disk.clone()), log_options(), |entry, location| index.restore(&entry, location))?;
        Ok(Self { index, log, recovery, compactor })
    }

    /// Writes a group of entries.
    pub fn write(&mut self, entries: &[Entry], now: u64, sync: bool) -> io::Result<()> {
        entries.iter().for_each(|entry| self.index.announce(entry));
        let locations = self.log.append(entries, now)?;
        if sync {
            self.log.sync()?;
        }
        entries.iter().zip(locations).for_each(|(entry, location)| self.index.enter(entry, location));
        Ok(())
    }

    /// Compacts until there is no more work. Returns the number of steps.
    pub fn compact(&mut self, now: u64) -> io::Result<usize> {
        self.index.forget(now);
        let (mut steps, unapplied_from) = (0, u32::MAX);
        while self.compactor.step(now, |operation| {
            operation(&mut CompactionContext { log: &mut self.log, index: &mut self.index, unapplied_from })
        })? {
            steps += 1;
            assert!(steps < 1000, "compaction does not terminate");
        }
        Ok(steps)
    }

    pub fn known(&self, key: &CallKey, content: &[u8; 32]) -> Known {
        self.index.look_up(key, content).expect("the same call")
    }

    pub fn payload(&self, location: &Location) -> Vec<u8> {
        self.log.reader().payload(location).expect("a known location can be read").to_vec()
    }
}
