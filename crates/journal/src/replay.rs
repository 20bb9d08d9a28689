//! Reading the journal from its beginning. What can be read counts, wherever it stands: an entry too many makes a host more
//! careful, an entry too few could make it run a call twice.

use crate::entry::Entry;
use crate::log::{Place, Segment};
use crate::record::{self, ChecksumKey, HEADER_BYTES, MAGIC};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use toolbus_store::Disk;

/// What opening the journal found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovery {
    pub entries: u64,
    /// Bytes at the end that a crash left unfinished; they were cut off.
    pub torn_bytes: u64,
    /// Bytes elsewhere that can't be read. Calls may be missing from the book.
    pub damaged_bytes: u64,
}

const PREFIX: &str = "journal-";
const SUFFIX: &str = ".log";

pub fn segment_name(number: u32) -> String {
    format!("{PREFIX}{number:010}{SUFFIX}")
}

pub fn replay(
    disk: &dyn Disk,
    key: ChecksumKey,
    each: &mut dyn FnMut(Entry, Place),
) -> io::Result<(BTreeMap<u32, Segment>, Recovery)> {
    let number = |name: &String| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok();
    let mut numbers: Vec<u32> = disk.list()?.iter().filter_map(number).collect();
    numbers.sort_unstable();
    let (mut segments, mut recovery) = (BTreeMap::new(), Recovery::default());
    for (index, number) in numbers.iter().enumerate() {
        let is_last = index + 1 == numbers.len();
        let segment = read_segment(disk, key, *number, is_last, each, &mut recovery)?;
        segments.insert(*number, segment);
    }
    Ok((segments, recovery))
}

fn read_segment(
    disk: &dyn Disk,
    key: ChecksumKey,
    number: u32,
    is_last: bool,
    each: &mut dyn FnMut(Entry, Place),
    recovery: &mut Recovery,
) -> io::Result<Segment> {
    let file = disk.open(&segment_name(number))?;
    let mut whole = vec![0; file.size()? as usize];
    file.read_at(0, &mut whole)?;
    let whole = Bytes::from(whole);
    let (mut at, mut newest, mut readable_to) = (0, 0, 0);
    while at < whole.len() {
        let Some((entry, length)) = record::decode(key, &whole.slice(at..)) else {
            at = next_magic(&whole, at + 1);
            continue;
        };
        recovery.damaged_bytes += (at - readable_to) as u64;
        newest = newest.max(entry.at());
        each(entry, Place::Log { segment: number, offset: at as u64, length: length as u32 });
        recovery.entries += 1;
        at += length;
        readable_to = at;
    }
    let unreadable = (whole.len() - readable_to) as u64;
    match (unreadable, is_last) {
        (0, _) => {}
        (_, true) => {
            tracing::warn!(segment = number, bytes = unreadable, "repaired the end of the call journal");
            recovery.torn_bytes += unreadable;
            file.truncate(readable_to as u64)?;
            file.sync()?;
        }
        (_, false) => recovery.damaged_bytes += unreadable,
    }
    if recovery.damaged_bytes > 0 {
        tracing::error!(segment = number, bytes = recovery.damaged_bytes, "the call journal is damaged");
    }
    let bytes = if is_last { readable_to as u64 } else { whole.len() as u64 };
    Ok(Segment { file, bytes, newest })
}

fn next_magic(whole: &Bytes, from: usize) -> usize {
    let magic = MAGIC.to_le_bytes();
    let end = whole.len().saturating_sub(HEADER_BYTES);
    (from..end).find(|at| whole[*at..*at + 2] == magic).unwrap_or(whole.len())
}
