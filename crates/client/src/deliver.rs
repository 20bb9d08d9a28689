//! Sending messages: what a session does when its client delivers, replies or subscribes.

use crate::BrokerResult;
use crate::client::ReceiptSender;
use crate::options::Resend;
use crate::outstanding::OutstandingDelivery;
use crate::planted::PlantedBug;
use crate::session::Session;
use bytestring::ByteString;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use toolbus_protocol::{ClientFrame, Envelope, InboxMessage, JournalClaim, MsgId};

/// A message to send.
pub struct NewDelivery<'a> {
    pub to: &'a str,
    pub message: &'a InboxMessage,
    /// The sealed message. Sealed by the caller, who does not hold the session's lock for it.
    pub envelope: Envelope,
    /// Time until the message expires. That of a reply follows from its request.
    pub limit: Option<Duration>,
    /// The received message that it answers and acknowledges.
    pub answers: Option<(&'a MsgId, Resend)>,
    pub receipt: Option<ReceiptSender>,
    pub slot: Option<OwnedSemaphorePermit>,
}

impl Session {
    pub fn start_delivery(&mut self, new: NewDelivery<'_>) -> BrokerResult<()> {
        if let Some(closed) = &self.closed {
            return Err(closed.clone());
        }
        self.terms.check(new.message)?;
        let to = ByteString::from(new.to);
        let limit = match new.answers {
            Some((request, _)) => self.reply_deadline(request),
            None => new.limit,
        };
        let resend = new.answers.map_or(Resend::Immediately, |(_, resend)| resend);
        let settles = new.answers.map(|(request, _)| self.settle_with_reply(request));
        let reply = settles.as_ref().and_then(|settles| self.guard_reply(&to, &settles.id));
        self.deliver(OutstandingDelivery {
            reply,
            to,
            envelope: new.envelope,
            deadline: limit.map(|limit| self.now + limit),
            settles,
            resend,
            sent_at: None,
            receipt: new.receipt,
            _slot: new.slot,
        });
        Ok(())
    }

    pub fn deliver(&mut self, delivery: OutstandingDelivery) {
        let Some(mut delivery) = self.keep_if_untagged(delivery) else { return };
        if self.is_connected() {
            let mut frame = delivery.frame(self.epoch, self.now);
            if self.is_planted(PlantedBug::NeverAcknowledged)
                && let ClientFrame::Deliver(deliver) = &mut frame
            {
                deliver.ack = None;
            }
            self.push_frame(frame);
        }
        self.outstanding.add(delivery);
    }

    /// Names the journal behind the mailbox, now and before every later subscription.
    pub fn claim_mailbox(&mut self, claim: JournalClaim) {
        self.claim.claim = Some(claim);
        if self.terms.version >= 2 {
            self.claim.frame().into_iter().for_each(|frame| self.send(frame));
        }
    }

    /// Correlates requests with replies: replies without a pending request are acknowledged and dropped.
    pub fn multiplex(&mut self) {
        self.multiplexed = true;
        if !self.wants_subscription {
            self.wants_subscription = true;
            self.send(ClientFrame::Subscribe);
        }
    }

    pub fn subscribe(&mut self) {
        self.wants_subscription = true;
        self.displaced = None;
        self.send(ClientFrame::Subscribe);
    }
}
