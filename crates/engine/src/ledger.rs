//! The ledger of message ids for deduplication: all pending ids, and settled ids for a limited time.

use crate::{Millis, Seq};
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// 128-bit hash of a mailbox and a message id, keyed with the store's seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fingerprint(pub [u64; 2]);

impl Hash for Fingerprint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0]);
    }
}

/// Hashes a mailbox and a message id.
pub fn fingerprint(seed: u64, mailbox: &str, id: &str) -> Fingerprint {
    let mut text: SmallVec<[u8; 128]> = SmallVec::with_capacity(mailbox.len() + id.len() + 1);
    text.extend_from_slice(mailbox.as_bytes());
    // Names contain no zero byte, so the concatenation is unambiguous.
    text.push(0);
    text.extend_from_slice(id.as_bytes());
    let hash = xxhash_rust::xxh3::xxh3_128_with_seed(&text, seed);
    Fingerprint([(hash >> 64) as u64, hash as u64])
}

/// A ledger entry, pending or settled.
#[derive(Debug, Clone, Copy)]
pub struct KnownId {
    pub seq: Seq,
    pub content: u64,
    /// Zero once settled.
    pub size: u32,
    /// Hash of the sender; `None` for ids that were settled before the last restart.
    pub sender: Option<u64>,
    pub pending: bool,
    /// Withdrawn by its sender before it was ever pushed.
    pub withdrawn: bool,
}

/// Uses the first word of a fingerprint as its hash: fingerprints are already uniformly distributed.
#[derive(Default)]
pub struct FirstWordHasher(u64);

impl Hasher for FirstWordHasher {
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

type Table<T> = HashMap<Fingerprint, T, BuildHasherDefault<FirstWordHasher>>;

/// Fewer restored ids than this are not sorted before the end of a replay.
const MIN_SORTED_IDS: usize = 1024;

/// Settled ids are kept in two generations. When the younger one is full or old enough, it replaces the older one,
/// which is dropped as a whole: evicting ids one by one would cost a cache miss per message.
#[derive(Default)]
pub struct Ledger {
    pending: Table<PendingId>,
    younger: Generation,
    older: Generation,
    /// Ids that were settled after this time are remembered without exception.
    complete_after: Millis,
    /// Settled ids of a replay that has not ended.
    restored: Vec<(Millis, Fingerprint, u64)>,
}

/// Ids that are forgotten together.
#[derive(Default)]
struct Generation {
    ids: Table<SettledId>,
    since: Millis,
    /// Time of the latest settlement.
    newest: Millis,
}

/// Who sent a message, by hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SenderKey {
    /// Hash of the sender's mailbox.
    pub mailbox: u64,
    /// Hash of the agent, to whose share the message counts.
    pub agent: u64,
}

/// Whose share a pending message uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Payer {
    #[default]
    Sender,
    /// The message is a reply that settled the recipient's own request: the recipient has caused it.
    Recipient,
}

/// The ledger entry of a pending message.
#[derive(Debug, Clone, Copy)]
pub struct PendingId {
    pub seq: Seq,
    pub content: u64,
    pub sender: SenderKey,
    pub size: u32,
    pub payer: Payer,
}

#[derive(Debug, Clone, Copy)]
struct SettledId {
    /// The message whose durability this settlement depends on.
    seq: Seq,
    content: u64,
    /// Hash of the sender, and whether it withdrew the message before that was ever pushed.
    sender: Option<(u64, bool)>,
}

impl Ledger {
    pub fn get(&self, fingerprint: &Fingerprint) -> Option<KnownId> {
        if let Some(PendingId { seq, content, sender, size, .. }) = self.pending.get(fingerprint).copied() {
            return Some(KnownId { seq, content, size, sender: Some(sender.mailbox), pending: true, withdrawn: false });
        }
        let SettledId { seq, content, sender } =
            self.younger.ids.get(fingerprint).or_else(|| self.older.ids.get(fingerprint)).copied()?;
        let (sender, withdrawn) = (sender.map(|(sender, _)| sender), sender.is_some_and(|(_, withdrawn)| withdrawn));
        Some(KnownId { seq, content, size: 0, sender, pending: false, withdrawn })
    }

    pub fn pending(&self, fingerprint: &Fingerprint, seq: Seq) -> bool {
        self.pending.get(fingerprint).is_some_and(|known| known.seq == seq)
    }

    /// The sender of a pending message.
    pub fn sender(&self, fingerprint: &Fingerprint) -> SenderKey {
        self.pending.get(fingerprint).map(|known| known.sender).unwrap_or_default()
    }

    /// Whose share a pending message uses.
    pub fn payer(&self, fingerprint: &Fingerprint) -> Payer {
        self.pending.get(fingerprint).map(|known| known.payer).unwrap_or_default()
    }

    pub fn insert_pending(&mut self, fingerprint: Fingerprint, id: PendingId) {
        self.pending.insert(fingerprint, id);
    }

    pub fn forget(&mut self, fingerprint: &Fingerprint) {
        self.pending.remove(fingerprint);
    }

    /// Marks an id as settled. `limits` are the number of further ids and the time after which it may be forgotten.
    pub fn settle(&mut self, fingerprint: Fingerprint, content: u64, now: Millis, limits: (usize, Millis)) {
        let (seq, sender) = self
            .pending
            .remove(&fingerprint)
            .map_or((0, None), |known| (known.seq, Some((known.sender.mailbox, false))));
        let (max_ids, max_age) = limits;
        let full = self.younger.ids.len() >= max_ids.max(1);
        let old = !self.younger.ids.is_empty() && now.saturating_sub(self.younger.since) > max_age;
        if full || old {
            self.complete_after = self.complete_after.max(self.older.newest);
            std::mem::swap(&mut self.younger, &mut self.older);
            self.younger.ids.clear();
        }
        if self.younger.ids.is_empty() {
            (self.younger.since, self.younger.newest) = (now, now);
        }
        self.younger.newest = self.younger.newest.max(now);
        self.younger.ids.insert(fingerprint, SettledId { seq, content, sender });
    }

    /// Remembers a settled id that the store replays. The order of replay is not that of settlement, because the store
    /// rewrites old ids, so [`Ledger::end_restore`] must follow.
    pub fn restore_settled(&mut self, fingerprint: Fingerprint, content: u64, at: Millis, max_ids: usize) {
        self.restored.push((at, fingerprint, content));
        // A long log has many more ids than are remembered.
        if self.restored.len() > 4 * max_ids.max(MIN_SORTED_IDS) {
            self.keep_newest_restored(2 * max_ids.max(MIN_SORTED_IDS));
        }
    }

    /// Ends a replay. The store has forgotten ids by the same limits: it keeps the newest `limits.0` ids that are not
    /// older than `limits.1`.
    pub fn end_restore(&mut self, limits: (usize, Millis)) {
        let (max_ids, max_age) = limits;
        self.keep_newest_restored(max_ids);
        let restored = std::mem::take(&mut self.restored);
        if let (Some((oldest, ..)), Some((newest, ..))) = (restored.first(), restored.last()) {
            let too_many = if restored.len() >= max_ids { *oldest } else { 0 };
            self.complete_after = self.complete_after.max(too_many).max(newest.saturating_sub(max_age));
        }
        for (at, fingerprint, content) in restored {
            // The id may be pending with a newer message that reused it after it was forgotten.
            if !self.pending.contains_key(&fingerprint) {
                self.settle(fingerprint, content, at, limits);
            }
        }
    }

    /// Sorts the restored ids by time and drops the oldest.
    fn keep_newest_restored(&mut self, count: usize) {
        self.restored.sort_unstable();
        self.restored.dedup();
        let excess = self.restored.len().saturating_sub(count);
        self.restored.drain(..excess);
    }

    /// The time after which no settled id is forgotten: an id that is not in the ledger was not settled since then.
    pub fn complete_after(&self) -> Millis {
        self.complete_after
    }

    /// Makes a settled id pending again.
    pub fn revive(&mut self, fingerprint: Fingerprint, id: PendingId) {
        self.forget_settled(&fingerprint);
        self.insert_pending(fingerprint, id);
    }

    /// Forgets a settled id early; only for settlements that a full disk reverted.
    pub fn forget_settled(&mut self, fingerprint: &Fingerprint) {
        self.younger.ids.remove(fingerprint);
        self.older.ids.remove(fingerprint);
    }

    /// Records that a settled message was withdrawn before it was ever pushed.
    pub fn mark_withdrawn(&mut self, fingerprint: &Fingerprint) {
        if let Some((_, withdrawn)) = self.settled_mut(fingerprint).and_then(|known| known.sender.as_mut()) {
            *withdrawn = true;
        }
    }

    fn settled_mut(&mut self, fingerprint: &Fingerprint) -> Option<&mut SettledId> {
        self.younger.ids.get_mut(fingerprint).or_else(|| self.older.ids.get_mut(fingerprint))
    }

    /// Records that a settlement is durable only with the message `seq` that settled it.
    pub fn depend_on(&mut self, fingerprint: &Fingerprint, seq: Seq) {
        if let Some(known) = self.settled_mut(fingerprint) {
            known.seq = seq;
        }
    }

    /// All pending ids, in no order.
    pub fn pending_ids(&self) -> impl Iterator<Item = (&Fingerprint, &PendingId)> {
        self.pending.iter()
    }

    /// Scans all pending ids; only for messages whose record is corrupt.
    pub fn find_pending(&self, seq: Seq) -> Option<Fingerprint> {
        self.pending.iter().find(|(_, known)| known.seq == seq).map(|(fingerprint, _)| *fingerprint)
    }
}
