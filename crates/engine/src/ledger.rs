//! The memory of ids: which message each id stands for, while it is pending and for a while after.

use crate::{Millis, Seq};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A mailbox and an id in 128 bits, keyed by the store's seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fingerprint(pub [u64; 2]);

impl Hash for Fingerprint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0]);
    }
}

pub fn fingerprint(seed: u64, mailbox: &str, id: &str) -> Fingerprint {
    let mut text: SmallVec<[u8; 128]> = SmallVec::with_capacity(mailbox.len() + id.len() + 1);
    text.extend_from_slice(mailbox.as_bytes());
    // No name contains a zero byte, so the pair reads in one way only.
    text.push(0);
    text.extend_from_slice(id.as_bytes());
    let hash = xxhash_rust::xxh3::xxh3_128_with_seed(&text, seed);
    Fingerprint([(hash >> 64) as u64, hash as u64])
}

/// What is known of an id.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    pub seq: Seq,
    pub content: u64,
    /// Size while pending.
    pub size: u32,
    pub pending: bool,
}

/// A fingerprint is a good hash already.
#[derive(Default)]
pub struct TakeFirstWord(u64);

impl Hasher for TakeFirstWord {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxhash_rust::xxh3::xxh3_64(bytes);
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

#[derive(Default)]
pub struct Ledger {
    known: HashMap<Fingerprint, Known, BuildHasherDefault<TakeFirstWord>>,
    /// Settled ids, oldest first.
    history: VecDeque<(Millis, Fingerprint)>,
}

impl Ledger {
    pub fn get(&self, fingerprint: &Fingerprint) -> Option<&Known> {
        self.known.get(fingerprint)
    }

    pub fn pending(&self, fingerprint: &Fingerprint, seq: Seq) -> bool {
        self.known.get(fingerprint).is_some_and(|known| known.pending && known.seq == seq)
    }

    pub fn insert_pending(&mut self, fingerprint: Fingerprint, seq: Seq, content: u64, size: u32) {
        self.known.insert(fingerprint, Known { seq, content, size, pending: true });
    }

    pub fn forget(&mut self, fingerprint: &Fingerprint) {
        self.known.remove(fingerprint);
    }

    /// Marks an id as settled; it stays known until the history outgrows its limits.
    pub fn settle(&mut self, fingerprint: Fingerprint, content: u64, now: Millis, limits: (usize, Millis)) {
        match self.known.entry(fingerprint) {
            // Replayed twice, because its segment was being cleaned up when a crash came.
            Entry::Occupied(known) if !known.get().pending => return,
            Entry::Occupied(mut known) => known.get_mut().pending = false,
            Entry::Vacant(free) => {
                free.insert(Known { seq: 0, content, size: 0, pending: false });
            }
        }
        self.history.push_back((now, fingerprint));
        let (max_ids, max_age) = limits;
        while let Some((at, oldest)) = self.history.front().copied() {
            if self.history.len() <= max_ids && now.saturating_sub(at) <= max_age {
                break;
            }
            self.history.pop_front();
            // One look into the table, not two: it is large, and every look is a wait for memory.
            if let Entry::Occupied(known) = self.known.entry(oldest)
                && !known.get().pending
            {
                known.remove();
            }
        }
    }

    /// Makes a settled id pending again.
    pub fn revive(&mut self, fingerprint: Fingerprint, seq: Seq, content: u64, size: u32) {
        self.forget_settled(&fingerprint);
        self.insert_pending(fingerprint, seq, content, size);
    }

    /// Forgets an id before its time. Looks through the history; only for what a full disk undid.
    pub fn forget_settled(&mut self, fingerprint: &Fingerprint) {
        self.history.retain(|(_, settled)| settled != fingerprint);
        self.known.remove(fingerprint);
    }

    /// A settled id is as safe as the message that settled it: `seq` names that one from now on.
    pub fn depend_on(&mut self, fingerprint: &Fingerprint, seq: Seq) {
        if let Some(known) = self.known.get_mut(fingerprint) {
            known.seq = seq;
        }
    }

    /// Looks through everything; only for messages whose record can't be read.
    pub fn find_pending(&self, seq: Seq) -> Option<Fingerprint> {
        self.known.iter().find(|(_, known)| known.pending && known.seq == seq).map(|(fingerprint, _)| *fingerprint)
    }
}
