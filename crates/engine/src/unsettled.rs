//! Messages that are not safe yet: their bodies, who waits for the receipt, and how far they got on the way to disk.
//!
//! Sequence numbers are given out without gaps, so a queue indexed by them is the whole data structure.

use crate::engine::DeadlineEntry;
use crate::{ConnId, Fingerprint, Message, Millis, Seq, Settled};
use bytestring::ByteString;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// Someone who is owed a receipt.
#[derive(Debug, Clone)]
pub struct Waiter {
    pub conn: ConnId,
    /// The number of the deliver on that connection.
    pub number: u64,
    pub id: ByteString,
    /// The message of the receipt. A waiter may hang on another one: the reply that settled it.
    pub about: Fingerprint,
}

pub type Waiters = SmallVec<[Waiter; 1]>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// In the batch that is still being collected: an acknowledgement now means that no record is ever written.
    Open,
    /// Handed to the store.
    Writing,
}

#[derive(Debug)]
pub struct UnsettledMessage {
    pub message: Arc<Message>,
    pub waiters: Waiters,
    pub stage: Stage,
    /// When its record should be on its way to disk.
    due: Millis,
    /// What this message settles. It goes to disk with this one and never before, or a crash would lose both.
    pub settles: Vec<Provisional>,
}

/// A settlement that stands only if the message it came with reaches the disk.
#[derive(Debug)]
pub struct Provisional {
    pub settled: Settled,
    /// Who sent the message, as the ledger knows it.
    pub sender: u64,
    /// To be restored with the message.
    pub deadline: Option<((Millis, Seq), DeadlineEntry)>,
}

#[derive(Debug, Default)]
pub struct Unsettled {
    first: Seq,
    messages: VecDeque<Option<UnsettledMessage>>,
    /// First of the open batch.
    open_from: Seq,
    /// Everything before this place is to be written without further waiting.
    urgent_before: Seq,
    pub bytes: u64,
}

impl Unsettled {
    pub fn starting_at(seq: Seq) -> Self {
        Self { first: seq, open_from: seq, ..Self::default() }
    }

    pub fn push(&mut self, message: Arc<Message>, waiters: Waiters, due: Millis) {
        debug_assert_eq!(message.seq, self.end(), "sequence numbers have no gaps");
        self.bytes += message.size();
        self.messages.push_back(Some(UnsettledMessage {
            message,
            waiters,
            stage: Stage::Open,
            due,
            settles: Vec::new(),
        }));
    }

    pub fn end(&self) -> Seq {
        self.first + self.messages.len() as u64
    }

    fn index(&self, seq: Seq) -> Option<usize> {
        seq.checked_sub(self.first).map(|index| index as usize)
    }

    pub fn get(&self, seq: Seq) -> Option<&UnsettledMessage> {
        self.messages.get(self.index(seq)?)?.as_ref()
    }

    pub fn get_mut(&mut self, seq: Seq) -> Option<&mut UnsettledMessage> {
        let index = self.index(seq)?;
        self.messages.get_mut(index)?.as_mut()
    }

    pub fn remove(&mut self, seq: Seq) -> Option<UnsettledMessage> {
        let index = self.index(seq)?;
        let removed = self.messages.get_mut(index)?.take();
        if let Some(removed) = &removed {
            self.bytes -= removed.message.size();
        }
        while matches!(self.messages.front(), Some(None)) {
            self.messages.pop_front();
            self.first += 1;
        }
        self.open_from = self.open_from.max(self.first);
        removed
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut UnsettledMessage> {
        self.messages.iter_mut().flatten()
    }

    /// Nothing that is open now waits any longer.
    pub fn hurry(&mut self) {
        self.urgent_before = self.end();
    }

    /// When the next open message is due, if there is one.
    pub fn next_due(&self) -> Option<Millis> {
        let from = self.index(self.open_from).unwrap_or_default();
        let next = self.messages.iter().skip(from).flatten().next()?;
        Some(if next.message.seq < self.urgent_before { 0 } else { next.due })
    }

    /// Closes the batch of what is due, in order and without gaps: from now on it is on its way to the store. What
    /// came later may still be acknowledged in time and need no record.
    pub fn close_batch(&mut self, now: Millis) -> ClosedBatch {
        let first = self.open_from;
        let from = self.index(first).unwrap_or_default();
        let mut closed = ClosedBatch { messages: first..self.end(), puts: Vec::new(), settled: Vec::new() };
        for (offset, slot) in self.messages.iter_mut().enumerate().skip(from) {
            let Some(unsettled) = slot else { continue };
            let seq = self.first + offset as u64;
            if seq >= self.urgent_before && unsettled.due > now {
                closed.messages.end = seq;
                break;
            }
            unsettled.stage = Stage::Writing;
            closed.puts.push(Arc::clone(&unsettled.message));
            closed.settled.extend(unsettled.settles.iter().map(|provisional| provisional.settled.clone()));
        }
        self.open_from = closed.messages.end;
        closed
    }
}

/// What [`Unsettled::close_batch`] took.
pub struct ClosedBatch {
    pub messages: std::ops::Range<Seq>,
    pub puts: Vec<Arc<Message>>,
    pub settled: Vec<Settled>,
}
