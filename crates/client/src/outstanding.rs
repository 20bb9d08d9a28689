//! Deliveries without a receipt, in the order in which they were sent.

use crate::options::Resend;
use crate::reply_guard::ReplyGuard;
use crate::{BrokerError, BrokerResult};
use bytestring::ByteString;
use hashbrown::HashMap;
use std::collections::VecDeque;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;
use toolbus_protocol::{ClientFrame, Deliver, Envelope};

/// A pushed message that a delivery settles. It is acknowledged by tag on the connection that pushed it, else by id.
#[derive(Debug, Clone)]
pub struct Settles {
    pub id: ByteString,
    /// The epoch of the connection that pushed it, and its tag there.
    pub tag: Option<(u64, u64)>,
}

pub struct OutstandingDelivery {
    /// Reports the end of a reply.
    pub reply: Option<ReplyGuard>,
    pub to: ByteString,
    pub envelope: Envelope,
    pub deadline: Option<Instant>,
    pub settles: Option<Settles>,
    pub resend: Resend,
    /// When it was first sent, and the epoch of that connection. It may have reached its recipient since then.
    pub sent_at: Option<(u64, Instant)>,
    pub receipt: Option<oneshot::Sender<BrokerResult<()>>>,
    pub _slot: Option<OwnedSemaphorePermit>,
}

impl OutstandingDelivery {
    /// The frame to send now.
    pub fn frame(&mut self, epoch: u64, now: Instant) -> ClientFrame {
        let ack = self.settles.as_ref().and_then(|settles| settles.tag);
        let millis_since = |at: Instant| now.saturating_duration_since(at).as_millis() as u64;
        let age_ms = self.sent_at.map(|(_, at)| millis_since(at));
        self.sent_at.get_or_insert((epoch, now));
        ClientFrame::Deliver(Deliver {
            to: self.to.clone(),
            envelope: self.envelope.clone(),
            deadline_ms: self.deadline.map(|at| at.saturating_duration_since(now).as_millis().max(1) as u64),
            ack: ack.filter(|(pushed_on, _)| *pushed_on == epoch).map(|(_, tag)| tag),
            age_ms,
        })
    }

    /// The same message, without those who wait for its receipt.
    pub fn copy(&self) -> Self {
        Self {
            reply: None,
            to: self.to.clone(),
            envelope: self.envelope.clone(),
            deadline: self.deadline,
            settles: self.settles.clone(),
            resend: self.resend,
            sent_at: self.sent_at,
            receipt: None,
            _slot: None,
        }
    }

    pub fn settled_in_frame(&self, epoch: u64) -> bool {
        self.settles.as_ref().is_none_or(|settles| settles.tag.is_some_and(|(pushed_on, _)| pushed_on == epoch))
    }
}

/// Deliveries of a connection are numbered from one without gaps, so a queue indexed by number suffices.
pub struct OutstandingDeliveries {
    deliveries: VecDeque<Option<OutstandingDelivery>>,
    /// Number of the first delivery in the queue.
    first: u64,
    /// Number of the latest delivery with each id.
    by_id: HashMap<ByteString, u64>,
    /// Numbers of deliveries whose id a later one reused: the caller sent a message again before its receipt arrived.
    repeated: Vec<u64>,
}

impl Default for OutstandingDeliveries {
    fn default() -> Self {
        Self { deliveries: VecDeque::new(), first: 1, by_id: HashMap::new(), repeated: Vec::new() }
    }
}

impl OutstandingDeliveries {
    /// Adds a delivery that is about to be sent.
    pub fn add(&mut self, delivery: OutstandingDelivery) {
        let number = self.first + self.deliveries.len() as u64;
        self.repeated.extend(self.by_id.insert(delivery.envelope.id.clone(), number));
        self.deliveries.push_back(Some(delivery));
    }

    /// On a new connection: returns frames that send all unexpired deliveries again, in order and numbered from one.
    pub fn resend(&mut self, epoch: u64, now: Instant) -> Vec<ClientFrame> {
        let waiting = std::mem::take(self).deliveries.into_iter().flatten();
        for delivery in waiting {
            if delivery.deadline.is_some_and(|at| at <= now) {
                fail_delivery(delivery, BrokerError::Timeout(std::time::Duration::ZERO));
            } else {
                self.add(delivery);
            }
        }
        self.deliveries.iter_mut().flatten().map(|delivery| delivery.frame(epoch, now)).collect()
    }

    /// Completes deliveries by number. Requests that still need an acknowledgement of their own are added to `to_ack`.
    pub fn receipts(&mut self, first: u64, last: u64, epoch: u64, to_ack: &mut Vec<Settles>) {
        let end = self.first + self.deliveries.len() as u64;
        for number in first.max(self.first)..=last.min(end) {
            if let Some(delivery) = self.remove(number) {
                complete(delivery, epoch, to_ack);
            }
        }
    }

    pub fn receipt_by_id(&mut self, id: &ByteString, epoch: u64, to_ack: &mut Vec<Settles>) {
        if let Some(delivery) = self.take(id) {
            complete(delivery, epoch, to_ack);
        }
    }

    /// The broker did not accept the delivery on this connection.
    pub fn was_not_accepted(&mut self, id: &ByteString, epoch: u64) {
        let index = self.by_id.get(id).and_then(|number| number.checked_sub(self.first));
        let delivery = index.and_then(|index| self.deliveries.get_mut(index as usize)?.as_mut());
        if let Some(delivery) = delivery.filter(|delivery| delivery.sent_at.is_some_and(|(first, _)| first == epoch)) {
            delivery.sent_at = None;
        }
    }

    /// Whether a delivery with that id waits for its receipt.
    pub fn contains(&self, id: &ByteString) -> bool {
        self.by_id.contains_key(id)
    }

    /// The ids of all deliveries without a receipt.
    pub fn ids(&self) -> impl Iterator<Item = &ByteString> {
        self.by_id.keys()
    }

    /// Returns the receiver of the receipt of the delivery with that id. `None` if no such delivery waits for one.
    pub fn await_receipt(&mut self, id: &ByteString) -> Option<oneshot::Receiver<BrokerResult<()>>> {
        let index = self.by_id.get(id)?.checked_sub(self.first)? as usize;
        let delivery = self.deliveries.get_mut(index)?.as_mut()?;
        let (sender, receipt) = oneshot::channel();
        delivery.receipt = Some(sender);
        Some(receipt)
    }

    /// Removes and returns the earliest delivery with that id: the broker answers those of one id in their order.
    pub fn take(&mut self, id: &ByteString) -> Option<OutstandingDelivery> {
        let is_same = |number: &&u64| self.get(**number).is_some_and(|delivery| delivery.envelope.id == *id);
        let earliest = self.repeated.iter().filter(is_same).min().or_else(|| self.by_id.get(id)).copied();
        earliest.and_then(|number| self.remove(number))
    }

    /// Removes and returns the latest delivery with that id.
    pub fn take_latest(&mut self, id: &ByteString) -> Option<OutstandingDelivery> {
        self.by_id.get(id).copied().and_then(|number| self.remove(number))
    }

    /// Removes and returns all such deliveries, in order.
    pub fn take_all(&mut self, is_taken: impl Fn(&OutstandingDelivery) -> bool) -> Vec<OutstandingDelivery> {
        let numbered = (self.first..).zip(&self.deliveries);
        let taken = numbered.filter(|(_, delivery)| delivery.as_ref().is_some_and(&is_taken)).map(|(number, _)| number);
        let taken: Vec<u64> = taken.collect();
        taken.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    pub fn fail_all(&mut self, error: &BrokerError) {
        for delivery in std::mem::take(self).deliveries.into_iter().flatten() {
            fail_delivery(delivery, error.clone());
        }
    }

    fn get(&self, number: u64) -> Option<&OutstandingDelivery> {
        self.deliveries.get(number.checked_sub(self.first)? as usize)?.as_ref()
    }

    fn remove(&mut self, number: u64) -> Option<OutstandingDelivery> {
        let index = number.checked_sub(self.first)? as usize;
        let delivery = self.deliveries.get_mut(index)?.take()?;
        self.forget_id(&delivery.envelope.id, number);
        while matches!(self.deliveries.front(), Some(None)) {
            self.deliveries.pop_front();
            self.first += 1;
        }
        Some(delivery)
    }

    /// Reassigns the id to the previous delivery that used it, if that one is still outstanding.
    fn forget_id(&mut self, id: &ByteString, number: u64) {
        if self.repeated.is_empty() {
            self.by_id.remove(id);
            return;
        }
        if self.by_id.get(id) != Some(&number) {
            self.repeated.retain(|repeated| *repeated != number);
            return;
        }
        let same_id = |number: &u64| self.get(*number).is_some_and(|delivery| delivery.envelope.id == *id);
        match self.repeated.iter().rposition(same_id) {
            Some(position) => {
                let before = self.repeated.remove(position);
                self.by_id.insert(id.clone(), before);
            }
            None => {
                self.by_id.remove(id);
            }
        }
    }
}

pub fn fail_delivery(delivery: OutstandingDelivery, error: BrokerError) {
    if let Some(receipt) = delivery.receipt {
        receipt.send(Err(error)).ok();
    }
}

/// A request is acknowledged only when its reply has a receipt: in the same frame as the reply, or afterwards.
fn complete(mut delivery: OutstandingDelivery, epoch: u64, to_ack: &mut Vec<Settles>) {
    if let Some(reply) = delivery.reply.take() {
        reply.receipted();
    }
    if !delivery.settled_in_frame(epoch) {
        to_ack.extend(delivery.settles);
    }
    if let Some(receipt) = delivery.receipt {
        receipt.send(Ok(())).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_protocol::{AgentRef, Body, InboxMessage};

    /// Adds a delivery of the message and returns the receiver of its receipt.
    fn add(deliveries: &mut OutstandingDeliveries, message: &InboxMessage) -> oneshot::Receiver<BrokerResult<()>> {
        let (sender, receipt) = oneshot::channel();
        deliveries.add(OutstandingDelivery {
            reply: None,
            to: ByteString::from("to"),
            envelope: message.seal(),
            deadline: None,
            settles: None,
            resend: Resend::Immediately,
            sent_at: None,
            receipt: Some(sender),
            _slot: None,
        });
        receipt
    }

    fn message() -> InboxMessage {
        InboxMessage::new(AgentRef::new("me"), "task", Body::null())
    }

    fn connected() -> OutstandingDeliveries {
        let mut deliveries = OutstandingDeliveries::default();
        deliveries.resend(1, Instant::now());
        deliveries
    }

    #[test]
    fn each_repetition_of_a_message_consumes_one_receipt_by_id() {
        let (mut deliveries, message) = (connected(), message());
        let mut receipts = [(); 3].map(|()| add(&mut deliveries, &message));
        let id = message.id.into_inner();
        for done in 1..=3 {
            deliveries.receipt_by_id(&id, 1, &mut Vec::new());
            let received = receipts.iter_mut().filter_map(|receipt| receipt.try_recv().ok()).count();
            assert_eq!(received, 1, "receipt {done}");
        }
        assert!(deliveries.deliveries.is_empty() && deliveries.by_id.is_empty() && deliveries.repeated.is_empty());
    }

    #[test]
    fn a_repetition_can_fail_after_the_first_delivery_got_its_receipt() {
        let (mut deliveries, message) = (connected(), message());
        let mut first = add(&mut deliveries, &message);
        let mut second = add(&mut deliveries, &message);
        deliveries.receipts(1, 1, 1, &mut Vec::new());
        assert!(matches!(first.try_recv(), Ok(Ok(()))));
        fail_delivery(deliveries.take(&message.id.into_inner()).expect("the second delivery"), BrokerError::Closed);
        assert!(matches!(second.try_recv(), Ok(Err(BrokerError::Closed))));
    }

    #[test]
    fn the_first_delivery_can_fail_before_its_repetition_gets_a_receipt() {
        let (mut deliveries, message) = (connected(), message());
        let mut first = add(&mut deliveries, &message);
        let mut second = add(&mut deliveries, &message);
        fail_delivery(deliveries.take(&message.id.into_inner()).expect("the first delivery"), BrokerError::Closed);
        assert!(matches!(first.try_recv(), Ok(Err(BrokerError::Closed))));
        deliveries.receipts(2, 2, 1, &mut Vec::new());
        assert!(matches!(second.try_recv(), Ok(Ok(()))));
        assert!(deliveries.deliveries.is_empty() && deliveries.by_id.is_empty() && deliveries.repeated.is_empty());
    }

    #[test]
    fn a_delivery_has_an_age_when_it_is_sent_again() {
        let (mut deliveries, begin) = (OutstandingDeliveries::default(), Instant::now());
        let age_of = |frames: Vec<ClientFrame>| match &frames[..] {
            [ClientFrame::Deliver(deliver)] => deliver.age_ms,
            other => panic!("{other:?}"),
        };
        let _receipt = add(&mut deliveries, &message());
        assert_eq!(age_of(deliveries.resend(1, begin)), None, "it was added without a connection");
        for (epoch, seconds) in [(2, 3), (3, 7)] {
            let age = age_of(deliveries.resend(epoch, begin + std::time::Duration::from_secs(seconds)));
            assert_eq!(age, Some(seconds * 1_000), "since it was first sent");
        }
    }

    #[test]
    fn receipts_by_id_keep_the_numbering() {
        let mut deliveries = connected();
        for _ in 0..10 {
            let message = message();
            add(&mut deliveries, &message);
            deliveries.receipt_by_id(&message.id.into_inner(), 1, &mut Vec::new());
        }
        assert!(deliveries.deliveries.is_empty());
        let mut receipt = add(&mut deliveries, &message());
        deliveries.receipts(11, 11, 1, &mut Vec::new());
        assert!(matches!(receipt.try_recv(), Ok(Ok(()))), "the next delivery is number 11");
    }
}
