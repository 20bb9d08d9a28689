//! In-memory index: the location of every pending message and the number of live bytes in each segment.

use hashbrown::HashMap;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use toolbus_engine::{AttemptsNote, Fingerprint, Millis, Seq, Settled};
use toolbus_wal::Location;

/// Marks a message whose record is corrupt and whose segment was removed. Reads report it as damaged until it is settled.
/// No segment has the number zero.
const CORRUPT: Location = Location { segment: 0, offset: 0, length: 1 };

#[derive(Debug, Clone, Copy)]
pub struct Slot {
    pub seq: Seq,
    /// A length of zero marks the slot of a settled message.
    pub location: Location,
}

/// The pending messages of one mailbox in sequence order. Messages settled out of order leave holes.
#[derive(Debug, Default)]
pub struct MailboxIndex {
    slots: VecDeque<Slot>,
    holes: usize,
}

impl MailboxIndex {
    /// Inserts a slot in sequence order and returns the location it replaces. Messages arrive in order, except that a
    /// replay reads compacted copies of old messages late; these belong near the front.
    fn insert(&mut self, slot: Slot) -> Option<Location> {
        if self.slots.back().is_none_or(|last| last.seq < slot.seq) {
            self.slots.push_back(slot);
            return None;
        }
        match self.slots.binary_search_by_key(&slot.seq, |slot| slot.seq) {
            Ok(position) => {
                let replaced = std::mem::replace(&mut self.slots[position], slot);
                self.holes -= usize::from(replaced.location.length == 0);
                (replaced.location.length != 0).then_some(replaced.location)
            }
            Err(position) => {
                self.slots.insert(position, slot);
                None
            }
        }
    }

    fn position(&self, seq: Seq) -> Option<usize> {
        self.slots.binary_search_by_key(&seq, |slot| slot.seq).ok()
    }

    fn is_pending(&self, seq: Seq) -> bool {
        self.position(seq).is_some_and(|position| self.slots[position].location.length != 0)
    }

    fn take(&mut self, seq: Seq) -> Option<Location> {
        let position = self.position(seq)?;
        let slot = &mut self.slots[position];
        let location = slot.location;
        if location.length == 0 {
            return None;
        }
        slot.location.length = 0;
        self.holes += 1;
        while self.slots.front().is_some_and(|slot| slot.location.length == 0) {
            self.slots.pop_front();
            self.holes -= 1;
        }
        if self.holes > 64 && self.holes > self.slots.len() / 2 {
            self.slots.retain(|slot| slot.location.length != 0);
            self.holes = 0;
        }
        if self.slots.capacity() > 4096 && self.slots.len() < self.slots.capacity() / 4 {
            self.slots.shrink_to(self.slots.len() * 2);
        }
        Some(location)
    }

    /// Pending slots with a sequence number of at least `from`.
    pub fn live_from(&self, from: Seq) -> impl Iterator<Item = &Slot> {
        let start = self.slots.partition_point(|slot| slot.seq < from);
        self.slots.range(start..).filter(|slot| slot.location.length != 0)
    }
}

/// Smaller histories are not sorted more often during a replay.
const MIN_SORTED_IDS: usize = 1024;

/// The id of a settled message, kept for deduplication. It is rewritten when its segment is removed.
#[derive(Debug, Clone, Copy)]
pub struct RememberedId {
    pub fingerprint: Fingerprint,
    pub content: u64,
    pub at: Millis,
    pub segment: u32,
}

impl RememberedId {
    /// The settlement to write, without the message that it settled.
    pub fn settled(&self) -> Settled {
        let Self { fingerprint, content, at, .. } = *self;
        Settled { fingerprint, content, size: 0, at, stored: None }
    }
}

/// The pending messages of a segment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Live {
    pub messages: u64,
    pub bytes: u64,
}

#[derive(Default)]
pub struct Index {
    pub mailboxes: HashMap<Arc<str>, MailboxIndex>,
    live: BTreeMap<u32, Live>,
    /// Oldest settlement first.
    pub remembered: VecDeque<RememberedId>,
    /// Push attempts of pending messages. A note is written after its message, so it is enough to copy it with the
    /// message.
    attempts: HashMap<Seq, u32>,
}

impl Index {
    /// Adds a message, or replaces its location by that of a newer copy.
    pub fn add(&mut self, mailbox: &Arc<str>, seq: Seq, location: Location) {
        let live = self.live.entry(location.segment).or_default();
        live.messages += 1;
        live.bytes += u64::from(location.length);
        let mailbox_index = match self.mailboxes.get_mut(mailbox) {
            Some(mailbox_index) => mailbox_index,
            None => self.mailboxes.entry(Arc::clone(mailbox)).or_default(),
        };
        if let Some(replaced) = mailbox_index.insert(Slot { seq, location }) {
            self.release(replaced);
        }
    }

    /// Keeps a pending message with a corrupt record in the index, so that reads of its mailbox report it.
    pub fn mark_corrupt(&mut self, mailbox: &Arc<str>, seq: Seq) {
        self.add(mailbox, seq, CORRUPT);
    }

    pub fn note_attempts(&mut self, note: &AttemptsNote) {
        if self.mailboxes.get(&note.mailbox).is_some_and(|mailbox_index| mailbox_index.is_pending(note.seq)) {
            self.attempts.insert(note.seq, note.attempts);
        }
    }

    pub fn attempts_of(&self, seq: Seq) -> Option<u32> {
        self.attempts.get(&seq).copied()
    }

    pub fn remove(&mut self, mailbox: &str, seq: Seq) {
        self.attempts.remove(&seq);
        let Some(mailbox_index) = self.mailboxes.get_mut(mailbox) else { return };
        if let Some(location) = mailbox_index.take(seq) {
            self.release(location);
        }
        if self.mailboxes.get(mailbox).is_some_and(|mailbox_index| mailbox_index.slots.is_empty()) {
            self.mailboxes.remove(mailbox);
        }
    }

    fn release(&mut self, location: Location) {
        if let Entry::Occupied(mut entry) = self.live.entry(location.segment) {
            let live = entry.get_mut();
            live.messages -= 1;
            live.bytes -= u64::from(location.length);
            if live.messages == 0 {
                entry.remove();
            }
        }
    }

    pub fn remember(&mut self, id: RememberedId, max_ids: usize, max_age: Millis) {
        self.remembered.push_back(id);
        self.forget_oldest(max_ids, max_age);
    }

    /// Like [`Index::remember`] for a replay, which reads rewritten ids late. [`Index::sort_ids`] must follow.
    pub fn remember_replayed(&mut self, id: RememberedId, max_ids: usize, max_age: Millis) {
        self.remembered.push_back(id);
        // Sorts now and then, so that a long log does not use much memory.
        if self.remembered.len() > 2 * max_ids.max(MIN_SORTED_IDS) {
            self.sort_ids(max_ids, max_age);
        }
    }

    /// Restores the order of settlement. If a crash left both copies of a rewritten id, one of them is kept.
    pub fn sort_ids(&mut self, max_ids: usize, max_age: Millis) {
        let mut ids = Vec::from(std::mem::take(&mut self.remembered));
        ids.sort_unstable_by_key(|id| (id.at, id.fingerprint));
        ids.dedup_by_key(|id| (id.at, id.fingerprint));
        self.remembered = ids.into();
        self.forget_oldest(max_ids, max_age);
    }

    fn forget_oldest(&mut self, max_ids: usize, max_age: Millis) {
        let newest = self.remembered.back().map_or(0, |id| id.at);
        while let Some(oldest) = self.remembered.front() {
            if self.remembered.len() <= max_ids && newest.saturating_sub(oldest.at) <= max_age {
                break;
            }
            self.remembered.pop_front();
        }
    }

    /// The ids whose record is in that segment or in an older one.
    pub fn ids_up_to(&self, segment: u32) -> impl Iterator<Item = &RememberedId> {
        self.remembered.iter().filter(move |id| id.segment <= segment)
    }

    /// The ids up to that segment were rewritten to another one. They keep their place in the order.
    pub fn move_ids(&mut self, up_to: u32, to: u32) {
        self.remembered.iter_mut().filter(|id| id.segment <= up_to).for_each(|id| id.segment = to);
    }

    pub fn forget_ids(&mut self, up_to: u32) {
        self.remembered.retain(|id| id.segment > up_to);
    }

    /// The pending messages: mailbox, sequence number and attempts, by mailbox and in order.
    pub fn pending(&self) -> Vec<(Arc<str>, Seq, Option<u32>)> {
        let mut mailboxes: Vec<_> = self.mailboxes.iter().collect();
        mailboxes.sort_unstable_by_key(|(name, _)| Arc::clone(name));
        let of_mailbox = |(name, index): (&Arc<str>, &MailboxIndex)| {
            let pending = |slot: &Slot| (Arc::clone(name), slot.seq, self.attempts_of(slot.seq));
            index.live_from(0).map(pending).collect::<Vec<_>>()
        };
        mailboxes.into_iter().flat_map(of_mailbox).collect()
    }

    /// The pending messages of a segment.
    pub fn live(&self, segment: u32) -> Live {
        self.live.get(&segment).copied().unwrap_or_default()
    }

    /// Bytes of all pending messages.
    pub fn live_bytes(&self) -> u64 {
        self.live.values().map(|live| live.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_kept_only_while_their_message_is_pending() {
        let (mut index, bob) = (Index::default(), Arc::from("bob"));
        let note = |seq| AttemptsNote { mailbox: Arc::clone(&bob), seq, attempts: 3 };
        index.add(&bob, 1, Location { segment: 1, offset: 0, length: 10 });
        [1, 2].into_iter().for_each(|seq| index.note_attempts(&note(seq)));
        assert_eq!((index.attempts_of(1), index.attempts_of(2)), (Some(3), None));
        index.remove(&bob, 1);
        index.note_attempts(&note(1));
        assert!(index.attempts.is_empty());
    }
}
