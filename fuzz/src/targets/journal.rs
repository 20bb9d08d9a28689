//! The call journal: entries survive being written, and a damaged log gives back only entries that were written, in their
//! order, and the same ones when it is opened again.

use crate::input::Input;
use crate::memory::bounded;
use crate::targets::damage::{check_some_of, damage, secret};
use std::sync::Arc;
use toolbus_journal::fuzzing::{decode, encode};
use toolbus_journal::{Entry, JournalLog, LogOptions};
use toolbus_wal::{Disk, MemoryDisk};

/// Entries that are written before the log is damaged.
const MAX_ENTRIES: usize = 8;

pub fn journal(data: &[u8]) {
    let mut input = Input(data);
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
    let options = LogOptions { segment_bytes: 512, checksum_seed: secret(data), ..LogOptions::default() };
    let (mut log, _) = JournalLog::open(Arc::clone(&disk), options.clone(), |_, _| {}).expect("an empty disk");
    let mut written = Vec::new();
    while written.len() < MAX_ENTRIES && !input.is_empty() {
        let choice = input.byte();
        let kind = choice % 8;
        let length = input.below(256).min(input.0.len());
        let (payload, rest) = input.0.split_at(length);
        input.0 = rest;
        let Some(entry) = bounded(payload, 64, || decode(kind, payload)) else { break };
        let (kind, payload) = encode(&entry);
        assert_eq!(decode(kind, &payload).as_ref(), Some(&entry), "an encoded entry is decoded");
        log.append([&entry], 1).expect("written");
        if choice & 8 != 0 {
            log.sync().expect("synced");
        }
        written.push(entry);
    }
    log.sync().expect("synced");
    drop(log);
    let read = |disk: &Arc<dyn Disk>| {
        let mut entries: Vec<Entry> = Vec::new();
        let opened = JournalLog::open(Arc::clone(disk), options.clone(), |entry, _| entries.push(entry));
        let (_, recovery) = opened.expect("a damaged log can be opened");
        (entries, recovery)
    };
    let (entries, recovery) = read(&disk);
    assert_eq!(entries, written, "an undamaged log gives back all entries");
    assert!(!recovery.is_damaged() && recovery.torn_bytes == 0, "{recovery:?}");
    damage(&*disk, &mut input);
    let (entries, _) = read(&disk);
    check_some_of(&written, &entries);
    assert_eq!(read(&disk).0, entries, "a repaired log gives back the same entries");
}
