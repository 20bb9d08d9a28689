//! A receipt is allowed if the message is durable, consumed, or settled by a reply for which the same holds.

use super::{MessageNo, Model};
use crate::simulation::messages::Settlement;
use toolbus_engine::Millis;

impl Model {
    pub fn receipted(&mut self, now: Millis, no: MessageNo) {
        if self.has_one_incarnation(no) && !self.may_be_receipted(now, no) {
            self.violated(format!("{} was receipted before it was durable", self.describe(no)));
        }
        self.messages[no].receipted = true;
    }

    fn may_be_receipted(&self, now: Millis, no: MessageNo) -> bool {
        let sent = &self.messages[no];
        let is_dead =
            sent.dead_copy.is_some_and(|copy| self.messages[copy].pending() && self.may_be_receipted(now, copy));
        sent.record_durable
            || is_dead
            || sent.settlement_durable
            || sent.expired(now)
            || match sent.settled {
                Some(Settlement::Acked | Settlement::Expired | Settlement::Cancelled | Settlement::BeforeRestart) => {
                    true
                }
                Some(Settlement::Answered(by) | Settlement::DeadLettered(by)) => self.may_be_receipted(now, by),
                None => false,
            }
    }

    /// If ids are evicted, an answer may concern an earlier incarnation. A dead letter can have several as well.
    pub fn has_one_incarnation(&self, no: MessageNo) -> bool {
        let sent = &self.messages[no];
        sent.incarnations <= 1 || (self.keeps_all_ids && sent.origin.is_none())
    }

    /// The broker confirmed that the acknowledgement is durable.
    pub fn ack_confirmed(&mut self, no: MessageNo) {
        if self.has_one_incarnation(no) && !self.messages[no].settlement_durable {
            self.violated(format!("the acknowledgement of {} was confirmed before it was durable", self.describe(no)));
        }
        self.messages[no].confirmed = true;
    }
}
