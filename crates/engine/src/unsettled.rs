//! Accepted messages that are neither durable nor settled: their bodies, the waiters for their receipts, and whether
//! they are handed to the store.
//!
//! Sequence numbers are assigned without gaps, so a queue indexed by them suffices.

use crate::engine::DeadlineEntry;
use crate::ledger::SenderKey;
use crate::{ConnId, Fingerprint, Message, Millis, Seq, Settled};
use bytestring::ByteString;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// A connection that waits for a receipt.
#[derive(Debug, Clone)]
pub struct Waiter {
    pub conn: ConnId,
    /// The number of the deliver on that connection.
    pub number: u64,
    pub id: ByteString,
    /// The message that the receipt is for. The waiter may be attached to another one: the reply that settled it.
    pub fingerprint: Fingerprint,
}

pub type Waiters = SmallVec<[Waiter; 1]>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// In the open batch: an acknowledgement now elides the record.
    Open,
    /// Handed to the store.
    Writing,
}

#[derive(Debug)]
pub struct UnsettledMessage {
    pub message: Arc<Message>,
    pub waiters: Waiters,
    pub stage: Stage,
    /// When its record should be handed to the store.
    due: Millis,
    /// Settlements by this message. Written in its batch and never before: otherwise a crash could lose both messages.
    pub settles: Vec<Provisional>,
}

/// A settlement that is final only once the message that settles is durable.
#[derive(Debug)]
pub struct Provisional {
    pub settled: Settled,
    /// Sender of the settled message, as hashed in the ledger.
    pub sender: SenderKey,
    /// Deadline entry to restore if the settlement is reverted.
    pub deadline: Option<((Millis, Seq), DeadlineEntry)>,
}

#[derive(Debug, Default)]
pub struct Unsettled {
    first: Seq,
    messages: VecDeque<Option<UnsettledMessage>>,
    /// First message of the open batch.
    open_from: Seq,
    /// Messages before this one are due immediately.
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

    /// Makes all messages of the open batch due immediately.
    pub fn hurry(&mut self) {
        self.urgent_before = self.end();
    }

    /// Returns when the next message of the open batch is due.
    pub fn next_due(&self) -> Option<Millis> {
        let from = self.index(self.open_from).unwrap_or_default();
        let next = self.messages.iter().skip(from).flatten().next()?;
        Some(if next.message.seq < self.urgent_before { 0 } else { next.due })
    }

    /// Closes the open batch: a gapless prefix of it that ends before the first message that is not due. The others
    /// stay open, and may still be acknowledged and elided.
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

/// Result of [`Unsettled::close_batch`].
pub struct ClosedBatch {
    pub messages: std::ops::Range<Seq>,
    pub puts: Vec<Arc<Message>>,
    pub settled: Vec<Settled>,
}
