//! Writes what a log lacks of its plan, and compares the two.

use crate::digest;
use crate::error::MoveError;
use crate::plan::LogPlan;
use crate::survey::{Contents, Log, Pages, Verdict};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use toolbus_engine::{AttemptsNote, Batch, Message};
use toolbus_store::Store;

/// A batch is written once it has so many bytes, and synced with others. Small in tests, so that a copy has many steps.
const BATCH_BYTES: usize = if cfg!(test) { 4 << 10 } else { 512 << 10 };
const SYNC_BYTES: usize = if cfg!(test) { 8 << 10 } else { 4 << 20 };
const IDS_IN_BATCH: usize = if cfg!(test) { 5 } else { 10_000 };

/// Writes all that is missing, durably. Returns the number of messages that were written.
pub fn copy(sources: &[Log], plan: &LogPlan<'_>, target: &Log) -> Result<u64, MoveError> {
    let present: HashMap<_, _> =
        target.store.pending().into_iter().map(|(mailbox, seq, attempts)| ((mailbox, seq), attempts)).collect();
    let mut pages: Vec<Pages<'_>> = sources.iter().map(|log| Pages::new(&log.store)).collect();
    let mut writing = Writing { target, plan, batch: Batch::default(), bytes: 0, unsynced: 0 };
    let mut copied = 0;
    for (item, seq) in &plan.messages {
        if present.get(&(Arc::clone(&item.mailbox), *seq)) == Some(&item.attempts) {
            continue;
        }
        let message = pages[item.log].message(&item.mailbox, item.seq)?.ok_or(MoveError::Changed)?;
        let attempts =
            item.attempts.map(|attempts| AttemptsNote { mailbox: Arc::clone(&item.mailbox), seq: *seq, attempts });
        writing.message(renumbered(&message, *seq), attempts)?;
        copied += 1;
    }
    let known: HashSet<_> = target.store.remembered().iter().map(|id| (id.at, id.fingerprint)).collect();
    let missing: Vec<_> = plan.ids.iter().filter(|id| !known.contains(&(id.at, id.fingerprint))).cloned().collect();
    for ids in missing.chunks(IDS_IN_BATCH) {
        writing.batch.settled.extend_from_slice(ids);
        writing.write()?;
    }
    // The next sequence number, also if there is nothing else.
    writing.write()?;
    target.store.sync()?;
    target.place.write(&plan.state).map_err(MoveError::WriteState)?;
    Ok(copied)
}

struct Writing<'a> {
    target: &'a Log,
    plan: &'a LogPlan<'a>,
    batch: Batch,
    bytes: usize,
    unsynced: usize,
}

impl Writing<'_> {
    fn message(&mut self, message: Message, attempts: Option<AttemptsNote>) -> Result<(), MoveError> {
        self.bytes += message.sealed.len();
        self.batch.puts.push(Arc::new(message));
        self.batch.attempts.extend(attempts);
        if self.bytes >= BATCH_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), MoveError> {
        let batch = Batch { next_seq: self.plan.next_seq, ..std::mem::take(&mut self.batch) };
        self.target.store.write(&batch)?;
        self.unsynced += std::mem::take(&mut self.bytes);
        if self.unsynced >= SYNC_BYTES {
            self.target.store.sync()?;
            self.unsynced = 0;
        }
        Ok(())
    }
}

/// The message with another sequence number.
pub fn renumbered(message: &Message, seq: u64) -> Message {
    Message {
        seq,
        mailbox: Arc::clone(&message.mailbox),
        from: Arc::clone(&message.from),
        id: message.id.clone(),
        correlation_id: message.correlation_id.clone(),
        sealed: message.sealed.clone(),
        fingerprint: message.fingerprint,
        content: message.content,
        accepted_at: message.accepted_at,
        expires_at: message.expires_at,
    }
}

/// What the target has of its plan.
pub struct Found {
    pub messages: u64,
    pub bytes: u64,
    /// The lanes and hashes of the messages, in order.
    pub hashes: Vec<(u128, u128)>,
}

/// Reads a log of the target again and fails if it differs from its plan in anything.
pub fn verify(plan: &LogPlan<'_>, target: Log) -> Result<Found, MoveError> {
    target.check_intact()?;
    let (recovery, state) = (target.recovery.clone(), target.state.clone());
    let contents = Contents::of(&[target], |_, _, _| Verdict::Keep(0))?;
    let unequal = |what| Err(MoveError::Unequal { what });
    let expected = plan.messages.iter().map(|(item, seq)| (&*item.mailbox, *seq, item.lane, item.hash));
    if !contents.messages.iter().map(|item| (&*item.mailbox, item.seq, item.lane, item.hash)).eq(expected) {
        return unequal("messages");
    }
    if contents.ids.iter().map(Vec::len).sum::<usize>() != plan.ids.len()
        || digest::of_ids(&contents.ids.concat()) != digest::of_ids(&plan.ids)
    {
        return unequal("ids of settled messages");
    }
    if state != plan.state {
        return unequal("claims of journals and generations of agents");
    }
    if recovery.next_seq != plan.next_seq {
        return unequal("next sequence number");
    }
    let hashes = contents.messages.iter().map(|item| (item.lane, item.hash)).collect();
    Ok(Found { messages: contents.messages.len() as u64, bytes: contents.bytes, hashes })
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
