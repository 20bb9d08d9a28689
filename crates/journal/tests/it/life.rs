//! A journal without its thread, on a disk that can stop at any call: what a process does with it, step by step.

use std::io;
use std::sync::Arc;
use toolbus_journal::{
    Book, CallKey, Entry, JournalLog, Known, Lent, Limits, LogOptions, Place, Recovery, Tidy, TidyOptions,
};
use toolbus_wal::sim_disk::SimDisk;

/// Small segments, so that much happens at the beginning of one.
pub fn log_options() -> LogOptions {
    LogOptions { segment_bytes: 400, checksum_seed: 5, ..LogOptions::default() }
}

pub struct Life {
    pub book: Book,
    pub log: JournalLog,
    pub recovery: Recovery,
    tidy: Tidy,
}

impl Life {
    pub fn begin(disk: &SimDisk, limits: Limits, max_bytes: u64, now: u64) -> io::Result<Self> {
        let tidy = Tidy::new(TidyOptions { keep_ms: limits.keep_ms, max_bytes });
        let mut book = Book::new(limits, now);
        let (log, recovery) =
            JournalLog::open(Arc::new(disk.clone()), log_options(), |entry, place| book.restore(&entry, place))?;
        Ok(Self { book, log, recovery, tidy })
    }

    /// One group of entries.
    pub fn write(&mut self, entries: &[Entry], now: u64, sync: bool) -> io::Result<()> {
        entries.iter().for_each(|entry| self.book.announce(entry));
        let places = self.log.append(entries, now)?;
        if sync {
            self.log.sync()?;
        }
        entries.iter().zip(places).for_each(|(entry, place)| self.book.enter(entry, place));
        Ok(())
    }

    /// Makes it as small as it gets. Returns how many turns that took.
    pub fn tidy(&mut self, now: u64) -> io::Result<usize> {
        self.book.forget(now);
        let (mut turns, unentered_from) = (0, u32::MAX);
        while self
            .tidy
            .turn(now, |look| look(&mut Lent { log: &mut self.log, book: &mut self.book, unentered_from }))?
        {
            turns += 1;
            assert!(turns < 1000, "it goes round in circles");
        }
        Ok(turns)
    }

    pub fn known(&self, key: &CallKey, content: &[u8; 32]) -> Known {
        self.book.look_up(key, content).expect("the same call")
    }

    pub fn carried(&self, place: &Place) -> Vec<u8> {
        self.log.reader().carried(place).expect("what is known can be read").to_vec()
    }
}
