//! Reclaims the space of settled messages. Segments are removed oldest first. A settlement is written after its
//! message, so removing it can't bring the message back: the message's segment is older and already removed.

use crate::index::{Index, RememberedId};
use crate::log::{Store, io_error};
use crate::{LogStore, StoreError};
use std::sync::Arc;
use toolbus_engine::{AttemptsNote, Batch, Seq, Settled};

/// Size of a settled id in the log.
const ID_BYTES: u64 = 48;

/// How much waste justifies copying pending messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    Routine,
    DiskLow,
}

impl LogStore {
    pub(crate) fn reclaim_segments(&self, urgency: Urgency) -> Result<u64, StoreError> {
        // A settled message may be removed only after its settlement is durable.
        self.sync()?;
        let mut freed = 0;
        // Copies go to this segment or later ones and are not moved again.
        let end = self.with_log(|log| log.active_segment());
        while let Some(oldest) = self.oldest_to_clean(urgency).filter(|oldest| *oldest < end) {
            if !self.move_out(oldest)? {
                break;
            }
            freed += self.remove_segment(oldest)?;
        }
        Ok(freed)
    }

    /// The oldest segment, if it has no pending messages or most of the log is waste.
    fn oldest_to_clean(&self, urgency: Urgency) -> Option<u32> {
        let (number, bytes) = self.with_log(|log| Some((log.oldest()?.0, log.bytes())))?;
        let index = self.index();
        let needed = index.live_bytes() + index.remembered.len() as u64 * ID_BYTES;
        let tolerated = match urgency {
            Urgency::Routine => 2 * self.options.segment_bytes,
            Urgency::DiskLow => 0,
        };
        let wasteful = bytes > 2 * needed + tolerated;
        (!has_live(&index, number) || wasteful).then_some(number)
    }

    /// Copies the pending messages of a segment to the end of the log. Returns false if the disk is full.
    fn move_out(&self, segment: u32) -> Result<bool, StoreError> {
        loop {
            let wanted = self.next_to_copy(segment);
            if wanted.is_empty() {
                return Ok(!has_live(&self.index(), segment));
            }
            let batch = self.copy_of(wanted)?;
            // `write` updates the index to the copies.
            match self.write(&batch).and_then(|()| self.sync()) {
                Ok(()) => {}
                Err(StoreError::Full) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// The oldest pending messages of a segment, as many as are copied in one step. Earlier compactions interleave
    /// segments within a mailbox, so all slots of every mailbox are scanned.
    fn next_to_copy(&self, segment: u32) -> Vec<(Arc<str>, Seq)> {
        let index = self.index();
        if !has_live(&index, segment) {
            return Vec::new();
        }
        let mut live: Vec<_> = index
            .mailboxes
            .iter()
            .flat_map(|(mailbox, mailbox_index)| mailbox_index.live_from(0).map(move |slot| (mailbox, slot)))
            .filter(|(_, slot)| slot.location.segment == segment)
            .collect();
        live.sort_unstable_by_key(|(_, slot)| slot.seq);
        let mut room = (self.options.segment_bytes / 8).max(1);
        let in_step = live.into_iter().take_while(|(_, slot)| {
            let fits = room > 0;
            room = room.saturating_sub(u64::from(slot.location.length));
            fits
        });
        in_step.map(|(mailbox, slot)| (Arc::clone(mailbox), slot.seq)).collect()
    }

    fn copy_of(&self, wanted: Vec<(Arc<str>, Seq)>) -> Result<Batch, StoreError> {
        let mut batch = Batch::default();
        for (mailbox, seq) in wanted {
            let page = self.read_page(&mailbox, seq, 1, u64::MAX)?;
            batch.puts.extend(page.messages.into_iter().filter(|message| message.seq == seq));
            let attempts = self.index().attempts_of(seq);
            batch.attempts.extend(attempts.map(|attempts| AttemptsNote {
                mailbox: Arc::clone(&mailbox),
                seq,
                attempts,
            }));
            if page.damaged.contains(&seq) {
                self.index().mark_corrupt(&mailbox, seq);
            }
        }
        Ok(batch)
    }

    /// Rewrites the settled ids of the segment and removes its file.
    fn remove_segment(&self, number: u32) -> Result<u64, StoreError> {
        let settled = self.ids_to_rewrite(number);
        if !settled.is_empty() {
            let batch = Batch { settled, ..Batch::default() };
            match self.append(&batch).and_then(|appended| self.sync().map(|()| appended.segment)) {
                Ok(segment) => self.index().move_ids(number, segment),
                // On a full disk, freeing space takes precedence over deduplication.
                Err(StoreError::Full) => self.index().forget_ids(number),
                Err(error) => return Err(error),
            }
        }
        let file = self.with_log(|log| log.file_of(number));
        file.remove().map_err(io_error("remove", number))?;
        Ok(self.with_log(|log| log.removed(number)))
    }

    fn ids_to_rewrite(&self, segment: u32) -> Vec<Settled> {
        self.index().ids_up_to(segment).map(RememberedId::settled).collect()
    }
}

fn has_live(index: &Index, segment: u32) -> bool {
    index.live(segment).messages > 0
}
