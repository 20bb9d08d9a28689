//! Compaction: removes the oldest segment after copying the entries that are still needed to the end of the log. After
//! a crash at any point an entry exists at its old location, at its new one, or at both.

use crate::call_index::CallIndex;
use crate::entry::Entry;
use crate::log::{Contents, JournalLog, Location};
use std::io;
use std::vec;

/// Bytes that are copied per step, to bound the time for which the journal is locked.
const STEP_BYTES: usize = 256 << 10;

/// Configuration of a [`Compactor`].
#[derive(Debug, Clone)]
pub struct CompactorOptions {
    /// Age in milliseconds of its newest entry past which a segment is compacted.
    pub keep_ms: u64,
    /// Size of the log past which the oldest segment is compacted and the answered calls in it are forgotten.
    pub max_bytes: u64,
}

/// Compacts the journal in steps.
pub struct Compactor {
    options: CompactorOptions,
    /// Size of the log past which it is compacted. Raised when compaction gained little, to retry only after growth.
    compact_above: u64,
    current: Option<SegmentMove>,
}

/// The parts of a journal that compaction works on.
pub struct CompactionContext<'a> {
    /// The log.
    pub log: &'a mut JournalLog,
    /// The index.
    pub index: &'a mut CallIndex,
    /// Entries of this segment and of later ones may not be in the index yet.
    pub unapplied_from: u32,
}

/// An operation that runs with exclusive access to the journal.
pub type ContextFn<'a> = dyn FnMut(&mut CompactionContext<'_>) -> io::Result<()> + 'a;

struct Chosen {
    number: u32,
    contents: Contents,
    over_limit: bool,
    bytes: u64,
}

/// The segment that is being compacted.
struct SegmentMove {
    number: u32,
    rest: vec::IntoIter<(Location, Entry)>,
    /// The segment is compacted because the log exceeds its size limit.
    over_limit: bool,
    bytes: u64,
    copied: u64,
}

impl Compactor {
    /// Creates a compactor.
    pub fn new(options: CompactorOptions) -> Self {
        Self { compact_above: options.max_bytes, options, current: None }
    }

    /// Runs one step and returns whether there was work. `with_context` gives exclusive access to the journal, which
    /// blocks writers, so each access is short. It fails if the journal has failed.
    pub fn step(
        &mut self,
        now: u64,
        mut with_context: impl FnMut(&mut ContextFn<'_>) -> io::Result<()>,
    ) -> io::Result<bool> {
        if self.current.is_none() {
            let mut chosen = None;
            with_context(&mut |context| {
                chosen = self.choose(context, now)?;
                Ok(())
            })?;
            let Some(Chosen { number, contents, over_limit, bytes }) = chosen else { return Ok(false) };
            let rest = contents.read()?.into_iter();
            self.current = Some(SegmentMove { number, rest, over_limit, bytes, copied: 0 });
        }
        let Some(current) = &mut self.current else { return Ok(false) };
        with_context(&mut |context| current.move_some(context, now))?;
        if current.rest.as_slice().is_empty() {
            self.finish(&mut with_context)?;
        }
        Ok(true)
    }

    fn choose(&self, context: &CompactionContext<'_>, now: u64) -> io::Result<Option<Chosen>> {
        let log = &context.log;
        let Some((number, segment)) = log.oldest() else { return Ok(None) };
        let over_limit = log.bytes() > self.compact_above;
        let is_old = segment.newest.saturating_add(self.options.keep_ms) < now;
        // Entries that are not in the index yet would be dropped as unneeded.
        if number >= context.unapplied_from || (!over_limit && !is_old) {
            return Ok(None);
        }
        let bytes = segment.bytes;
        Ok(Some(Chosen { number, contents: log.contents(number)?, over_limit, bytes }))
    }

    fn finish(&mut self, with_context: &mut impl FnMut(&mut ContextFn<'_>) -> io::Result<()>) -> io::Result<()> {
        let Some(gone) = self.current.take() else { return Ok(()) };
        let (mut moved, mut left) = (None, (0, 0));
        with_context(&mut |context| {
            // An entry that replaces one of the removed segment may only be staged yet.
            context.log.flush()?;
            moved = context.log.unsynced().map(|unsynced| (unsynced, context.log.file_of(gone.number)));
            Ok(())
        })?;
        let Some((moved, file)) = moved else { return Ok(()) };
        moved.sync()?;
        with_context(&mut |context| {
            // Fails if another sync failed meanwhile: the success of this one proves nothing then.
            context.log.synced(&moved);
            Ok(())
        })?;
        file.remove()?;
        with_context(&mut |context| {
            context.log.removed(gone.number);
            left = (context.log.bytes(), context.log.segment_bytes());
            Ok(())
        })?;
        tracing::debug!(
            segment = gone.number,
            bytes = gone.bytes,
            copied = gone.copied,
            "compacted a segment of the call journal"
        );
        if gone.over_limit {
            let gained_little = gone.copied > gone.bytes / 2;
            let more = if gained_little { left.0 + left.1 } else { 0 };
            self.compact_above = self.options.max_bytes.max(more);
        }
        Ok(())
    }
}

impl SegmentMove {
    /// Copies some of the needed entries to the end of the log.
    fn move_some(&mut self, context: &mut CompactionContext<'_>, now: u64) -> io::Result<()> {
        let CompactionContext { log, index, .. } = context;
        let needed = self.some_needed(index);
        if needed.is_empty() {
            return Ok(());
        }
        let before = log.bytes();
        let locations = log.append_here(&needed, now)?;
        self.copied += log.bytes() - before;
        needed.iter().zip(locations).for_each(|(entry, location)| index.restore(entry, location));
        Ok(())
    }

    fn some_needed(&mut self, index: &mut CallIndex) -> Vec<Entry> {
        let (mut needed, mut weight) = (Vec::new(), 0);
        while weight < STEP_BYTES {
            let Some((location, entry)) = self.rest.next() else { break };
            // Skipped entries cost time too.
            weight += 64;
            let given_up = self.over_limit && index.give_up(&entry, &location);
            if !given_up && index.needs(&entry, &location) {
                weight += entry.weight();
                needed.push(entry);
            }
        }
        needed
    }
}
