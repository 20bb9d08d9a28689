//! The memory of ids: which message each id stands for, while it is pending and for a while after.

use crate::{Millis, Seq};
use hashbrown::HashMap;
use smallvec::SmallVec;
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
    /// While pending.
    pub size: u32,
    /// Hash of the sender. Of what was settled before the last restart it is not known.
    pub sender: Option<u64>,
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

type Table<T> = HashMap<Fingerprint, T, BuildHasherDefault<TakeFirstWord>>;

/// Settled ids live in two generations. When the younger one is full or old enough, it becomes the older one and the
/// older one is forgotten whole: forgetting ids one by one would mean a wait for memory with every message.
#[derive(Default)]
pub struct Ledger {
    pending: Table<PendingId>,
    younger: Table<SettledId>,
    older: Table<SettledId>,
    younger_since: Millis,
}

/// What the books hold of a message besides its body.
#[derive(Debug, Clone, Copy)]
pub struct PendingId {
    pub seq: Seq,
    pub content: u64,
    pub sender: u64,
    pub size: u32,
}

#[derive(Debug, Clone, Copy)]
struct SettledId {
    /// The message that it is as safe as.
    seq: Seq,
    content: u64,
    sender: Option<u64>,
}

impl Ledger {
    pub fn get(&self, fingerprint: &Fingerprint) -> Option<Known> {
        if let Some(PendingId { seq, content, sender, size }) = self.pending.get(fingerprint).copied() {
            return Some(Known { seq, content, size, sender: Some(sender), pending: true });
        }
        let SettledId { seq, content, sender } =
            self.younger.get(fingerprint).or_else(|| self.older.get(fingerprint)).copied()?;
        Some(Known { seq, content, size: 0, sender, pending: false })
    }

    pub fn pending(&self, fingerprint: &Fingerprint, seq: Seq) -> bool {
        self.pending.get(fingerprint).is_some_and(|known| known.seq == seq)
    }

    pub fn insert_pending(&mut self, fingerprint: Fingerprint, id: PendingId) {
        self.pending.insert(fingerprint, id);
    }

    pub fn forget(&mut self, fingerprint: &Fingerprint) {
        self.pending.remove(fingerprint);
    }

    /// Marks an id as settled. It stays known for at least so many further ids, or that long.
    pub fn settle(&mut self, fingerprint: Fingerprint, content: u64, now: Millis, limits: (usize, Millis)) {
        let (seq, sender) =
            self.pending.remove(&fingerprint).map_or((0, None), |known| (known.seq, Some(known.sender)));
        let (max_ids, max_age) = limits;
        let full = self.younger.len() >= max_ids.max(1);
        let old = !self.younger.is_empty() && now.saturating_sub(self.younger_since) > max_age;
        if full || old {
            std::mem::swap(&mut self.younger, &mut self.older);
            self.younger.clear();
        }
        if self.younger.is_empty() {
            self.younger_since = now;
        }
        self.younger.insert(fingerprint, SettledId { seq, content, sender });
    }

    /// Makes a settled id pending again.
    pub fn revive(&mut self, fingerprint: Fingerprint, id: PendingId) {
        self.forget_settled(&fingerprint);
        self.insert_pending(fingerprint, id);
    }

    /// Forgets an id before its time; only for what a full disk undid.
    pub fn forget_settled(&mut self, fingerprint: &Fingerprint) {
        self.younger.remove(fingerprint);
        self.older.remove(fingerprint);
    }

    /// A settled id is as safe as the message that settled it: `seq` names that one from now on.
    pub fn depend_on(&mut self, fingerprint: &Fingerprint, seq: Seq) {
        if let Some(known) = self.younger.get_mut(fingerprint).or_else(|| self.older.get_mut(fingerprint)) {
            known.seq = seq;
        }
    }

    /// Looks through everything; only for messages whose record can't be read.
    pub fn find_pending(&self, seq: Seq) -> Option<Fingerprint> {
        self.pending.iter().find(|(_, known)| known.seq == seq).map(|(fingerprint, _)| *fingerprint)
    }
}
