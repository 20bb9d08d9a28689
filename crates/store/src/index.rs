//! Where every pending message is, and how much of each segment is still needed.

use crate::DiskFile;
use hashbrown::HashMap;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use toolbus_engine::{Fingerprint, Millis, Seq};

/// The place of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub segment: u32,
    pub offset: u32,
    /// Zero marks a slot whose message is gone.
    pub length: u32,
}

impl Place {
    /// Where a message is whose record turned out to be damaged and whose segment is gone. It is read as damaged until
    /// it is settled. Segments are numbered from one.
    const LOST: Self = Self { segment: 0, offset: 0, length: 1 };
}

#[derive(Debug, Clone, Copy)]
pub struct Slot {
    pub seq: Seq,
    pub place: Place,
}

/// The pending messages of one mailbox, in order, with holes where messages were settled out of order.
#[derive(Debug, Default)]
pub struct Shelf {
    slots: VecDeque<Slot>,
    holes: usize,
}

impl Shelf {
    /// Puts a slot in its place and returns the one it replaces. Messages come in order, except for copies of old ones
    /// during a replay, which belong near the front.
    fn insert(&mut self, slot: Slot) -> Option<Place> {
        if self.slots.back().is_none_or(|last| last.seq < slot.seq) {
            self.slots.push_back(slot);
            return None;
        }
        match self.slots.binary_search_by_key(&slot.seq, |slot| slot.seq) {
            Ok(position) => {
                let replaced = std::mem::replace(&mut self.slots[position], slot);
                self.holes -= usize::from(replaced.place.length == 0);
                (replaced.place.length != 0).then_some(replaced.place)
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

    fn take(&mut self, seq: Seq) -> Option<Place> {
        let position = self.position(seq)?;
        let slot = &mut self.slots[position];
        let place = slot.place;
        if place.length == 0 {
            return None;
        }
        slot.place.length = 0;
        self.holes += 1;
        while self.slots.front().is_some_and(|slot| slot.place.length == 0) {
            self.slots.pop_front();
            self.holes -= 1;
        }
        if self.holes > 64 && self.holes > self.slots.len() / 2 {
            self.slots.retain(|slot| slot.place.length != 0);
            self.holes = 0;
        }
        if self.slots.capacity() > 4096 && self.slots.len() < self.slots.capacity() / 4 {
            self.slots.shrink_to(self.slots.len() * 2);
        }
        Some(place)
    }

    /// Live slots from `from` on.
    pub fn live_from(&self, from: Seq) -> impl Iterator<Item = &Slot> {
        let start = self.slots.partition_point(|slot| slot.seq < from);
        self.slots.range(start..).filter(|slot| slot.place.length != 0)
    }
}

/// A remembered id and when it was settled; these are carried along when their segment goes.
#[derive(Debug, Clone, Copy)]
pub struct RememberedId {
    pub fingerprint: Fingerprint,
    pub content: u64,
    pub at: Millis,
    pub segment: u32,
}

pub struct Segment {
    pub file: Arc<dyn DiskFile>,
    pub bytes: u64,
    pub live: u64,
    pub live_bytes: u64,
}

#[derive(Default)]
pub struct Index {
    pub shelves: HashMap<Arc<str>, Shelf>,
    pub segments: BTreeMap<u32, Segment>,
    /// Oldest first.
    pub remembered: VecDeque<RememberedId>,
}

impl Index {
    /// Enters a message, or points it at its newer copy.
    pub fn add(&mut self, mailbox: &Arc<str>, seq: Seq, place: Place) {
        if let Some(segment) = self.segments.get_mut(&place.segment) {
            segment.live += 1;
            segment.live_bytes += u64::from(place.length);
        }
        let shelf = match self.shelves.get_mut(mailbox) {
            Some(shelf) => shelf,
            None => self.shelves.entry(Arc::clone(mailbox)).or_default(),
        };
        if let Some(replaced) = shelf.insert(Slot { seq, place }) {
            self.release(replaced);
        }
    }

    /// Keeps a pending message on the shelf whose record can't be read, so that whoever reads the mailbox learns of it.
    pub fn mark_lost(&mut self, mailbox: &Arc<str>, seq: Seq) {
        self.add(mailbox, seq, Place::LOST);
    }

    pub fn remove(&mut self, mailbox: &str, seq: Seq) {
        let Some(shelf) = self.shelves.get_mut(mailbox) else { return };
        if let Some(place) = shelf.take(seq) {
            self.release(place);
        }
        if self.shelves.get(mailbox).is_some_and(|shelf| shelf.slots.is_empty()) {
            self.shelves.remove(mailbox);
        }
    }

    fn release(&mut self, place: Place) {
        if let Some(segment) = self.segments.get_mut(&place.segment) {
            segment.live -= 1;
            segment.live_bytes -= u64::from(place.length);
        }
    }

    pub fn remember(&mut self, id: RememberedId, max_ids: usize, max_age: Millis) {
        self.remembered.push_back(id);
        while let Some(oldest) = self.remembered.front() {
            if self.remembered.len() <= max_ids && id.at.saturating_sub(oldest.at) <= max_age {
                break;
            }
            self.remembered.pop_front();
        }
    }

    pub fn totals(&self) -> (u64, u64) {
        self.segments.values().fold((0, 0), |(bytes, live), segment| (bytes + segment.bytes, live + segment.live_bytes))
    }
}
