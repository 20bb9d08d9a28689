//! Maintenance of the log: rotation to a new segment, and compaction, which removes the oldest segment after copying the
//! entries that are still needed to the end of the log. After a crash at any point an entry exists at its old location,
//! at its new one, or at both.

use crate::call_index::CallIndex;
use crate::entry::Entry;
use crate::log::{JournalLog, Location, Reader, entries_of};
use crate::options::JournalOptions;
use crate::planted::PlantedBug;
use crate::state::{JournalState, Waiting};
use std::io;
use std::vec;
use toolbus_wal::{Contents, CreatedSegment, NextSegment, SegmentFile, Unsynced};

/// A slow operation of rotation or compaction. It runs without access to the journal.
pub struct Maintenance(Operation);

/// The result of a [`Maintenance`].
pub struct Maintained(io::Result<Outcome>);

enum Operation {
    CreateSegment(NextSegment),
    SyncSealed(Unsynced),
    Read(Contents),
    Gather(Part),
    SyncCopies(Unsynced),
    Remove(SegmentFile),
}

enum Outcome {
    Created(CreatedSegment),
    SealedSynced,
    Read(Vec<(Location, Entry)>),
    Gathered(Part),
    CopiesSynced(Unsynced),
    Removed,
}

impl Maintenance {
    /// Runs the operation. Blocks.
    pub fn run(self) -> Maintained {
        Maintained(match self.0 {
            Operation::CreateSegment(next) => next.create().map(Outcome::Created),
            Operation::SyncSealed(sealed) => sealed.sync().map(|()| Outcome::SealedSynced),
            Operation::Read(contents) => entries_of(&contents).map(Outcome::Read),
            Operation::Gather(part) => part.read_answers().map(Outcome::Gathered),
            Operation::SyncCopies(copies) => copies.sync().map(|()| Outcome::CopiesSynced(copies)),
            Operation::Remove(file) => file.remove().map(|()| Outcome::Removed),
        })
    }
}

impl JournalState {
    /// Begins the next step of rotation or compaction. `None` if nothing is due, while another slow operation runs, or
    /// if a sync has to come first.
    pub fn begin_maintenance(&mut self, now: u64) -> Option<Maintenance> {
        self.forget(now);
        let Self { index, log, compactor, options, commit, .. } = self;
        let operation = commit.begin_operation(|waiting: &[Waiting]| {
            if let Some(sealed) = log.records.unsynced_sealed() {
                return Ok(Some(Operation::SyncSealed(sealed)));
            }
            if let Some(next) = log.records.next_segment() {
                return Ok(Some(Operation::CreateSegment(next)));
            }
            // Compaction would drop entries that are not in the index yet. Those of the active segment stay there.
            let oldest = waiting.iter().filter_map(|waiting| waiting.location.segment()).min();
            let is_applied = oldest.is_none_or(|oldest| oldest == log.records.active_segment());
            if !is_applied && !options.log.has_planted(PlantedBug::UnappliedCompacted) {
                return Ok(None);
            }
            compactor.next_operation(log, index, now)
        });
        self.report_failure();
        operation.map(Maintenance)
    }

    /// Applies the result of a step.
    pub fn complete_maintenance(&mut self, done: Maintained) {
        let Self { index, log, compactor, commit, .. } = self;
        commit.complete_operation(done.0, |outcome| apply(outcome, log, compactor, index));
        self.report_failure();
    }
}

fn apply(outcome: Outcome, log: &mut JournalLog, compactor: &mut Compactor, index: &mut CallIndex) -> io::Result<()> {
    match outcome {
        Outcome::Created(created) => log.records.seal(created)?,
        Outcome::SealedSynced => log.records.sealed(),
        Outcome::CopiesSynced(copies) => {
            log.records.synced(&copies);
            compactor.are_copies_durable = true;
        }
        Outcome::Read(entries) => compactor.begin_copy(entries),
        Outcome::Removed => compactor.removed(log),
        Outcome::Gathered(part) => compactor.copy_part(part, log, index)?,
    }
    Ok(())
}

/// Bytes that are copied per step, to bound the time for which the journal is locked.
const STEP_BYTES: usize = 256 << 10;

/// Compacts the journal in steps.
pub struct Compactor {
    /// Age in milliseconds of its newest entry past which a segment is compacted.
    compact_after_ms: u64,
    max_bytes: u64,
    /// Size of the log past which it is compacted. Raised when compaction gained little, to retry only after growth.
    compact_above: u64,
    current: Option<SegmentMove>,
    /// All needed entries of the current segment are durable at their new locations.
    are_copies_durable: bool,
}

/// The segment that is being compacted.
struct SegmentMove {
    number: u32,
    /// Empty until the segment is read.
    rest: vec::IntoIter<(Location, Entry)>,
    /// The segment is compacted because the log exceeds its size limit.
    over_limit: bool,
    bytes: u64,
    copied: u64,
}

impl Compactor {
    pub fn new(options: &JournalOptions) -> Self {
        Self {
            compact_after_ms: options.compact_after_ms.unwrap_or(options.limits.keep_ms),
            max_bytes: options.max_bytes,
            compact_above: options.max_bytes,
            current: None,
            are_copies_durable: false,
        }
    }

    fn next_operation(
        &mut self,
        log: &mut JournalLog,
        index: &mut CallIndex,
        now: u64,
    ) -> io::Result<Option<Operation>> {
        let Some(current) = &mut self.current else {
            self.current = self.choose(log, now);
            let chosen = self.current.as_ref().map(|chosen| log.records.contents(chosen.number)).transpose()?;
            return Ok(chosen.map(Operation::Read));
        };
        if self.are_copies_durable {
            return Ok(Some(Operation::Remove(log.records.file_of(current.number))));
        }
        if !current.rest.as_slice().is_empty() {
            return Ok(Some(Operation::Gather(current.next_part(log, index, now))));
        }
        // An entry that replaces one of the removed segment may only be staged yet.
        log.records.flush()?;
        Ok(Some(Operation::SyncCopies(log.records.unsynced())))
    }

    fn choose(&self, log: &JournalLog, now: u64) -> Option<SegmentMove> {
        let (number, bytes, newest) = log.oldest()?;
        let over_limit = log.records.bytes() > self.compact_above;
        let is_old = newest.saturating_add(self.compact_after_ms) < now;
        let chosen = SegmentMove { number, rest: Vec::new().into_iter(), over_limit, bytes, copied: 0 };
        (over_limit || is_old).then_some(chosen)
    }

    fn begin_copy(&mut self, entries: Vec<(Location, Entry)>) {
        if let Some(current) = &mut self.current {
            current.rest = entries.into_iter();
        }
    }

    /// Copies the entries of a part that are still needed to the end of the log.
    fn copy_part(&mut self, part: Part, log: &mut JournalLog, index: &mut CallIndex) -> io::Result<()> {
        let is_needed = |(location, entry): &(Location, Entry)| index.needs(entry, location);
        let needed: Vec<Entry> = part.entries.into_iter().filter(is_needed).map(|(_, entry)| entry).collect();
        if needed.is_empty() {
            return Ok(());
        }
        let before = log.records.bytes();
        let locations = log.append_here(&needed, part.now)?;
        self.current.iter_mut().for_each(|current| current.copied += log.records.bytes() - before);
        needed.iter().zip(locations).for_each(|(entry, location)| index.restore(entry, location));
        Ok(())
    }

    fn removed(&mut self, log: &mut JournalLog) {
        self.are_copies_durable = false;
        let Some(SegmentMove { number, over_limit, bytes, copied, .. }) = self.current.take() else { return };
        log.removed(number);
        tracing::debug!(segment = number, bytes, copied, "compacted a segment of the call journal");
        if over_limit {
            let gained_little = copied > bytes / 2;
            let more = if gained_little { log.records.bytes() + log.records.segment_bytes() } else { 0 };
            self.compact_above = self.max_bytes.max(more);
        }
    }
}

/// Entries that are copied together.
struct Part {
    entries: Vec<(Location, Entry)>,
    /// Answers to be copied as well: the position in `entries` before which each belongs, and its location.
    answers: Vec<(usize, Location)>,
    reader: Reader,
    now: u64,
}

impl Part {
    /// Reads the answers, which are in other segments.
    fn read_answers(mut self) -> io::Result<Self> {
        for (at, location) in std::mem::take(&mut self.answers).into_iter().rev() {
            let answer = self.reader.read(&location)?;
            self.entries.insert(at, (location, answer));
        }
        Ok(self)
    }
}

impl SegmentMove {
    /// Selects the next needed entries. An entry of an answered call takes the answer along: segments are removed oldest
    /// first, so an answer that stayed behind would vanish before the entry, which would then look like an open call.
    fn next_part(&mut self, log: &JournalLog, index: &mut CallIndex, now: u64) -> Part {
        let mut part = Part { entries: Vec::new(), answers: Vec::new(), reader: log.reader(), now };
        let (mut weight, here) = (0, [Some(self.number), Some(log.records.active_segment()), None]);
        while weight < STEP_BYTES {
            let Some((location, entry)) = self.rest.next() else { break };
            // Skipped entries cost time too.
            weight += 64;
            let given_up = self.over_limit && index.give_up(&entry, &location);
            if given_up || !index.needs(&entry, &location) {
                continue;
            }
            // An answer in this segment is copied to the same one as the entry, or to a later one.
            let stays_behind = |answer: &Location| !here.contains(&answer.segment());
            let answer = index.answer_to(&entry).filter(stays_behind);
            weight += entry.weight();
            part.entries.push((location, entry));
            if let Some(answer) = answer {
                weight += answer.length();
                part.answers.push((part.entries.len(), answer));
            }
        }
        part
    }
}
