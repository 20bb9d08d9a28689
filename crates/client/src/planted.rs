//! Defects that tests inject to prove that the simulation detects them.

use crate::outstanding::OutstandingDelivery;
use crate::session::Session;
use bytestring::ByteString;
use std::time::Duration;
use toolbus_protocol::{ClientFrame, Envelope};

/// A defect that breaks a guarantee. Has no effect without the feature `planted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted"), allow(dead_code))]
pub enum PlantedBug {
    /// A reply that is sent again carries the tag that its request had on an earlier connection.
    StaleTag,
    /// Replies do not acknowledge their requests.
    NeverAcknowledged,
    /// A request is acknowledged once more when its reply has a receipt.
    AcknowledgedTwice,
    /// A request is acknowledged when its reply is sent again, before the reply has a receipt.
    AcknowledgedEarly,
    /// Deliveries whose deadline has passed are sent again.
    ExpiredResent,
    /// Deliveries are sent again under new ids.
    NewIdOnResend,
    /// A reply that must not be sent without its request is sent again at once.
    ReplyWithoutRequest,
    /// A lost connection ends requests whose receipt is missing without sending them again.
    NothingResent,
}

impl Session {
    pub(crate) fn is_planted(&self, bug: PlantedBug) -> bool {
        cfg!(feature = "planted") && self.planted == Some(bug)
    }

    /// On a new connection, before deliveries are sent again.
    pub(crate) fn spoil_resend(&mut self) {
        let Some(bug) = self.planted.filter(|_| cfg!(feature = "planted")) else { return };
        let (epoch, now) = (self.epoch, self.now);
        let all = |_: &OutstandingDelivery| true;
        for mut delivery in self.outstanding.take_all(all) {
            match bug {
                PlantedBug::StaleTag => {
                    let tag = delivery.settles.as_mut().and_then(|settles| settles.tag.as_mut());
                    tag.into_iter().for_each(|tag| tag.0 = epoch);
                }
                PlantedBug::AcknowledgedEarly => {
                    let settles = delivery.settles.take();
                    let ack = settles.map(|settles| ClientFrame::Ack { id: settles.id });
                    ack.into_iter().for_each(|ack| self.push_frame(ack));
                }
                PlantedBug::ExpiredResent => {
                    delivery.deadline = delivery.deadline.map(|at| at.max(now + Duration::from_secs(1)));
                }
                PlantedBug::NewIdOnResend => {
                    let Envelope { id, correlation_id, .. } = delivery.envelope.clone();
                    let sealed = delivery.envelope.sealed().clone();
                    let id = ByteString::from(format!("{id}-again"));
                    delivery.envelope = Envelope::from_parts(id, correlation_id, sealed);
                }
                PlantedBug::NothingResent if delivery.settles.is_none() => continue,
                _ => {}
            }
            self.outstanding.add(delivery);
        }
    }
}
