//! Replays a log from its beginning, and tells torn writes from corruption.
//!
//! Every record contains how much of its segment was durable when it was encoded. Unreadable bytes before that were once
//! durable: they are corruption, which is reported. Unreadable bytes after it, in the last segment that was written to,
//! are a torn write, which is removed. Both are copied to `damaged-*` files.

use crate::frame::{Frame, PROOF};
use crate::log::{LogOptions, Segment};
use crate::scan::{Piece, scan};
use crate::{Disk, DiskFile, PlantedBug, is_full, set_aside};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

/// The result of replaying a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Number of intact records.
    pub records: u64,
    /// Bytes of torn writes at the end, which were removed. They were never reported as durable.
    pub torn_bytes: u64,
    /// Number of other unreadable ranges.
    pub damaged: u64,
    /// Their total bytes.
    pub damaged_bytes: u64,
    /// Number of missing segment files.
    pub missing_segments: u32,
}

impl Recovery {
    /// Whether durable records were lost.
    pub fn is_damaged(&self) -> bool {
        self.damaged > 0 || self.missing_segments > 0
    }
}

pub(crate) fn replay(
    disk: &dyn Disk,
    options: &LogOptions,
    before_repair: &mut dyn FnMut() -> io::Result<()>,
    each: &mut dyn FnMut(Frame),
) -> io::Result<(BTreeMap<u32, Segment>, Recovery)> {
    let numbers = options.segments.list(disk)?;
    let (mut segments, mut recovery) = (BTreeMap::new(), Recovery::default());
    // A process that was killed may have left a segment whose name is not durable.
    if !numbers.is_empty() && !options.has_planted(PlantedBug::OpenedWithoutSync) {
        disk.sync_folder()?;
    }
    let last = last_written(disk, options, &numbers)?;
    for number in &numbers {
        let read =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", options.segments.name(*number)));
        let file = disk.open(&options.segments.name(*number)).map_err(read)?;
        let opened = Opened { disk, options, file: &*file, number: *number };
        if last == Some(*number) {
            recovery.torn_bytes = opened.repair(before_repair).map_err(read)?;
            // Records of a killed process may be in the page cache only; decisions rest on them from now on.
            if !options.has_planted(PlantedBug::OpenedWithoutSync) {
                file.sync().map_err(read)?;
            }
        }
        let damaged_before = recovery.damaged_bytes;
        let bytes = opened.replay(&mut recovery, each).map_err(read)?;
        let unreadable = recovery.damaged_bytes - damaged_before;
        segments.insert(*number, Segment { file, bytes, unreadable });
    }
    if let (Some(first), Some(last)) = (numbers.first(), numbers.last()) {
        recovery.missing_segments = (last - first + 1).saturating_sub(numbers.len() as u32);
    }
    Ok((segments, recovery))
}

/// The last segment that is not empty. A crash may tear its end: the next segment is created before this one is synced,
/// and written to only afterwards.
fn last_written(disk: &dyn Disk, options: &LogOptions, numbers: &[u32]) -> io::Result<Option<u32>> {
    for number in numbers.iter().rev() {
        if disk.open(&options.segments.name(*number))?.size()? > 0 {
            return Ok(Some(*number));
        }
    }
    Ok(None)
}

struct Opened<'a> {
    disk: &'a dyn Disk,
    options: &'a LogOptions,
    file: &'a dyn DiskFile,
    number: u32,
}

impl Opened<'_> {
    fn scan(&self, from: u64, each: &mut dyn FnMut(Piece) -> io::Result<()>) -> io::Result<u64> {
        scan(self.options.key, self.number, self.file, from, each)
    }

    /// Passes all intact records on and reports the rest as damage. Returns the length of the segment.
    fn replay(&self, recovery: &mut Recovery, each: &mut dyn FnMut(Frame)) -> io::Result<u64> {
        self.scan(0, &mut |piece| {
            match piece {
                Piece::Record(frame) if frame.kind == PROOF => {}
                Piece::Record(frame) => {
                    recovery.records += 1;
                    each(frame);
                }
                Piece::Unreadable(range) => {
                    recovery.damaged += 1;
                    recovery.damaged_bytes += range.end - range.start;
                    let name = self.options.segments.name(self.number);
                    tracing::error!(name, ?range, "the log is corrupt; the bytes are copied to a damaged-* file");
                    self.copy_aside(range)?;
                }
            }
            Ok(())
        })
    }

    /// Removes torn writes: everything from the first unreadable byte on that was never known to be durable. Intact
    /// records behind it are written again if the log keeps them. Returns the number of torn bytes.
    fn repair(&self, before_repair: &mut dyn FnMut() -> io::Result<()>) -> io::Result<u64> {
        let (mut durable, mut unreadable) = (0, Vec::new());
        let length = self.scan(0, &mut |piece| {
            match piece {
                Piece::Record(frame) => durable = durable.max(frame.synced),
                Piece::Unreadable(range) => unreadable.push(range),
            }
            Ok(())
        })?;
        if self.options.has_planted(PlantedBug::CorruptionTakenForTornWrite) {
            durable = 0;
        }
        let Some(first) = unreadable.iter().position(|range| range.end > durable) else { return Ok(0) };
        let torn_from = durable.max(unreadable[first].start);
        let torn = unreadable[first..].iter().map(|range| range.end - range.start.max(torn_from)).sum();
        let again = if self.options.keep_after_torn { self.encoded_again(torn_from, durable)? } else { Vec::new() };
        let name = self.options.segments.name(self.number);
        tracing::warn!(name, bytes = torn, rewritten = again.len(), "removed a torn write at the end of the log");
        self.copy_aside(torn_from..length)?;
        // A torn write can't be told from corruption of the last records, and the next process can't see it any more.
        before_repair()?;
        self.file.truncate(torn_from)?;
        if !again.is_empty() {
            self.file.append(&again)?;
        } else if torn_from == 0 || unreadable[0].start < torn_from {
            self.append_proof(torn_from, durable)?;
        }
        self.file.sync()?;
        Ok(torn)
    }

    /// The removed records may have been the only proof that corruption before them is not a torn write, too: by their
    /// `synced`, or because only the last segment that is not empty can be torn. The next process needs this proof.
    fn append_proof(&self, offset: u64, durable: u64) -> io::Result<()> {
        let mut proof = Vec::new();
        self.options.key.encode(self.number, offset, durable, &mut proof, |_| PROOF);
        match self.file.append(&proof) {
            // A full disk must not prevent the log from opening.
            Err(error) if is_full(&error) => self.file.truncate(offset),
            appended => appended,
        }
    }

    /// The intact records from an offset on, encoded for their new place without the gaps between them.
    fn encoded_again(&self, from: u64, synced: u64) -> io::Result<Vec<u8>> {
        let mut again = Vec::new();
        self.scan(from, &mut |piece| {
            if let Piece::Record(frame) = piece {
                let offset = from + again.len() as u64;
                self.options.key.encode(self.number, offset, synced, &mut again, |out| {
                    out.extend_from_slice(&frame.payload);
                    frame.kind
                });
            }
            Ok(())
        })?;
        Ok(again)
    }

    /// The copy is for manual inspection only, so its size is limited.
    fn copy_aside(&self, range: Range<u64>) -> io::Result<()> {
        let mut bytes = vec![0; (range.end - range.start).min(16 << 20) as usize];
        self.file.read_at(range.start, &mut bytes)?;
        set_aside(self.disk, self.number, range.start, &bytes);
        Ok(())
    }
}
