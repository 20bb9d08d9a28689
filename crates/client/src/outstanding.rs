//! Messages that have no receipt yet, in the order in which they were sent.

use crate::error::{BrokerError, BrokerResult};
use bytestring::ByteString;
use hashbrown::HashMap;
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;
use toolbus_protocol::{ClientFrame, Deliver, Envelope};

/// A pushed message that a delivery settles: how to name it depends on whether its connection still stands.
#[derive(Debug, Clone)]
pub struct Settles {
    pub id: ByteString,
    /// The connection on which it was pushed, and its tag there.
    pub tag: Option<(u64, u64)>,
}

pub struct OutstandingDelivery {
    pub to: ByteString,
    pub envelope: Envelope,
    pub deadline: Option<Instant>,
    pub settles: Option<Settles>,
    pub receipt: Option<oneshot::Sender<BrokerResult<()>>>,
    pub _slot: Option<OwnedSemaphorePermit>,
}

impl OutstandingDelivery {
    pub fn frame(&self, epoch: u64) -> ClientFrame {
        let ack = self.settles.as_ref().and_then(|settles| settles.tag);
        ClientFrame::Deliver(Deliver {
            to: self.to.clone(),
            envelope: self.envelope.clone(),
            deadline_ms: self.deadline.map(|at| at.saturating_duration_since(Instant::now()).as_millis().max(1) as u64),
            ack: ack.filter(|(pushed_on, _)| *pushed_on == epoch).map(|(_, tag)| tag),
        })
    }

    fn settled_in_frame(&self, epoch: u64) -> bool {
        self.settles.as_ref().is_none_or(|settles| settles.tag.is_some_and(|(pushed_on, _)| pushed_on == epoch))
    }
}

#[derive(Default)]
pub struct OutstandingDeliveries {
    by_order: BTreeMap<u64, OutstandingDelivery>,
    by_id: HashMap<ByteString, u64>,
    next_order: u64,
    /// Which delivery each number of this connection is; numbers start at one.
    numbers: VecDeque<u64>,
    first_number: u64,
}

impl OutstandingDeliveries {
    /// Adds a delivery that is about to be sent.
    pub fn add(&mut self, delivery: OutstandingDelivery) {
        let order = self.next_order;
        self.next_order += 1;
        self.by_id.insert(delivery.envelope.id.clone(), order);
        self.by_order.insert(order, delivery);
        self.numbers.push_back(order);
    }

    /// A new connection: everything is sent again, in order, and counted from one. Without a connection nothing has a
    /// number.
    pub fn resend(&mut self, epoch: u64) -> Vec<ClientFrame> {
        self.first_number = 1;
        self.numbers = self.by_order.keys().copied().collect();
        let now = Instant::now();
        let expired = self.by_order.iter().filter(|(_, delivery)| delivery.deadline.is_some_and(|at| at <= now));
        let expired: Vec<ByteString> = expired.map(|(_, delivery)| delivery.envelope.id.clone()).collect();
        for id in expired {
            self.fail(&id, BrokerError::Timeout(std::time::Duration::ZERO));
        }
        self.numbers.retain(|order| self.by_order.contains_key(order));
        self.by_order.values().map(|delivery| delivery.frame(epoch)).collect()
    }

    /// Receipts by number. Returns what still has to be acknowledged in a frame of its own.
    pub fn receipts(&mut self, first: u64, last: u64, epoch: u64, to_ack: &mut Vec<Settles>) {
        for number in first..=last.min(self.first_number + self.numbers.len() as u64) {
            let order = number.checked_sub(self.first_number).and_then(|index| self.numbers.get(index as usize));
            if let Some(delivery) = order.copied().and_then(|order| self.remove(order)) {
                complete(delivery, epoch, to_ack);
            }
        }
        // Numbers at the front whose deliveries are done are never asked for again.
        while self.numbers.front().is_some_and(|order| !self.by_order.contains_key(order)) {
            self.numbers.pop_front();
            self.first_number += 1;
        }
    }

    pub fn receipt_by_id(&mut self, id: &ByteString, epoch: u64, to_ack: &mut Vec<Settles>) {
        if let Some(delivery) = self.by_id.get(id).copied().and_then(|order| self.remove(order)) {
            complete(delivery, epoch, to_ack);
        }
    }

    pub fn fail(&mut self, id: &ByteString, error: BrokerError) {
        if let Some(delivery) = self.by_id.get(id).copied().and_then(|order| self.remove(order))
            && let Some(receipt) = delivery.receipt
        {
            receipt.send(Err(error)).ok();
        }
    }

    pub fn fail_all(&mut self, error: &BrokerError) {
        for (_, delivery) in std::mem::take(&mut self.by_order) {
            if let Some(receipt) = delivery.receipt {
                receipt.send(Err(error.clone())).ok();
            }
        }
        self.by_id.clear();
        self.numbers.clear();
    }

    fn remove(&mut self, order: u64) -> Option<OutstandingDelivery> {
        let delivery = self.by_order.remove(&order)?;
        self.by_id.remove(&delivery.envelope.id);
        Some(delivery)
    }
}

/// A request is acknowledged only once its reply is safe: in the same frame, or now.
fn complete(delivery: OutstandingDelivery, epoch: u64, to_ack: &mut Vec<Settles>) {
    if !delivery.settled_in_frame(epoch) {
        to_ack.extend(delivery.settles);
    }
    if let Some(receipt) = delivery.receipt {
        receipt.send(Ok(())).ok();
    }
}
