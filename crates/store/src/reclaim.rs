//! Giving space back. Segments are removed from the oldest on, so an acknowledgement never outlives the record it is
//! about by accident: everything it could refer to is older, and gone.

use crate::index::Index;
use crate::log::{SEGMENTS, Store, io_error};
use crate::{LogStore, StoreError};
use std::sync::Arc;
use toolbus_engine::{Batch, Seq, Settled};

/// What a remembered id takes in the log.
const ID_BYTES: u64 = 48;

/// How much waste is worth copying pending messages for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    Routine,
    DiskLow,
}

impl LogStore {
    pub(crate) fn reclaim_segments(&self, urgency: Urgency) -> Result<u64, StoreError> {
        // What was settled may go only once that is certain to be remembered.
        self.sync()?;
        let mut freed = 0;
        // What is moved ends up behind this segment and is not moved again.
        let end = self.active_segment();
        while let Some(oldest) = self.oldest_to_clean(urgency).filter(|oldest| *oldest < end) {
            if !self.move_out(oldest)? {
                break;
            }
            freed += self.remove_segment(oldest)?;
        }
        Ok(freed)
    }

    /// The oldest segment, if it is worth removing: empty, or most of the log is waste.
    fn oldest_to_clean(&self, urgency: Urgency) -> Option<u32> {
        let index = self.index();
        let (number, segment) = index.segments.first_key_value()?;
        let (bytes, live) = index.totals();
        let needed = live + index.remembered.len() as u64 * ID_BYTES;
        let tolerated = match urgency {
            Urgency::Routine => 2 * self.options.segment_bytes,
            Urgency::DiskLow => 0,
        };
        let wasteful = bytes > 2 * needed + tolerated;
        (segment.live == 0 || wasteful).then_some(*number)
    }

    /// Copies what is still needed of a segment to the end of the log. False when there is no room to do so.
    fn move_out(&self, segment: u32) -> Result<bool, StoreError> {
        loop {
            let wanted = self.still_needed(segment);
            if wanted.is_empty() {
                return Ok(!has_live(&self.index(), segment));
            }
            let batch = self.copy_of(wanted)?;
            // Writing points the index at the copies.
            match self.write(&batch).and_then(|()| self.sync()) {
                Ok(()) => {}
                Err(StoreError::Full) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// The oldest live messages of a segment, as many as are copied in one step. Copies of older ones stand among them
    /// in every mailbox, so all of a mailbox has to be looked at.
    fn still_needed(&self, segment: u32) -> Vec<(Arc<str>, Seq)> {
        let index = self.index();
        if !has_live(&index, segment) {
            return Vec::new();
        }
        let mut live: Vec<_> = index
            .shelves
            .iter()
            .flat_map(|(mailbox, shelf)| shelf.live_from(0).map(move |slot| (mailbox, slot)))
            .filter(|(_, slot)| slot.place.segment == segment)
            .collect();
        live.sort_unstable_by_key(|(_, slot)| slot.seq);
        let mut room = (self.options.segment_bytes / 8).max(1);
        let in_step = live.into_iter().take_while(|(_, slot)| {
            let fits = room > 0;
            room = room.saturating_sub(u64::from(slot.place.length));
            fits
        });
        in_step.map(|(mailbox, slot)| (Arc::clone(mailbox), slot.seq)).collect()
    }

    fn copy_of(&self, wanted: Vec<(Arc<str>, Seq)>) -> Result<Batch, StoreError> {
        let mut batch = Batch::default();
        for (mailbox, seq) in wanted {
            let page = self.read_page(&mailbox, seq, 1, u64::MAX)?;
            batch.puts.extend(page.messages.into_iter().filter(|message| message.seq == seq));
            if page.damaged.contains(&seq) {
                self.index().mark_lost(&mailbox, seq);
            }
        }
        Ok(batch)
    }

    /// Carries remembered ids along and removes the file.
    fn remove_segment(&self, number: u32) -> Result<u64, StoreError> {
        let settled = self.ids_to_carry(number);
        if !settled.is_empty() {
            let batch = Batch { settled, ..Batch::default() };
            match self.write(&batch).and_then(|()| self.sync()) {
                // With a full disk the space matters more than the memory of ids.
                Ok(()) | Err(StoreError::Full) => {}
                Err(error) => return Err(error),
            }
        }
        let removed = self.index().segments.remove(&number);
        SEGMENTS.remove(&*self.disk, number).map_err(io_error("remove", number))?;
        Ok(removed.map_or(0, |segment| segment.bytes))
    }

    /// Takes the ids out of memory whose records go with the segment; writing them again remembers them anew.
    fn ids_to_carry(&self, segment: u32) -> Vec<Settled> {
        let mut index = self.index();
        let mut carried = Vec::new();
        index.remembered.retain(|id| {
            let carry = id.segment <= segment;
            if carry {
                let (fingerprint, content, at) = (id.fingerprint, id.content, id.at);
                carried.push(Settled { fingerprint, content, size: 0, at, stored: None });
            }
            !carry
        });
        carried
    }
}

fn has_live(index: &Index, segment: u32) -> bool {
    index.segments.get(&segment).is_some_and(|segment| segment.live > 0)
}
