//! A receipt means safe: on stable storage, or consumed, or settled by a reply that is itself safe.

use super::{MessageNo, Model};
use crate::simulation::sent::How;
use toolbus_engine::Millis;

impl Model {
    pub fn receipted(&mut self, now: Millis, no: MessageNo) {
        if self.has_one_life(no) && !self.is_safe(now, no) {
            self.violated(format!("{} was receipted before it was safe", self.describe(no)));
        }
        self.sent[no].receipted = true;
    }

    fn is_safe(&self, now: Millis, no: MessageNo) -> bool {
        let sent_message = &self.sent[no];
        let is_dead = sent_message.dead_copy.is_some_and(|copy| self.sent[copy].pending() && self.is_safe(now, copy));
        sent_message.record_durable
            || is_dead
            || sent_message.settlement_durable
            || sent_message.expired(now)
            || match sent_message.settled {
                Some(How::Acked | How::Expired | How::Cancelled | How::BeforeRestart) => true,
                Some(How::Answered(by) | How::Dead(by)) => self.is_safe(now, by),
                None => false,
            }
    }

    /// With a short memory an answer may be about an earlier life of the message; and who died once may die again.
    pub fn has_one_life(&self, no: MessageNo) -> bool {
        let sent_message = &self.sent[no];
        sent_message.lives <= 1 || (self.long_memory && sent_message.origin.is_none())
    }

    /// The broker said that the acknowledgement will survive.
    pub fn ack_confirmed(&mut self, no: MessageNo) {
        if self.has_one_life(no) && !self.sent[no].settlement_durable {
            self.violated(format!("the acknowledgement of {} was confirmed before it was safe", self.describe(no)));
        }
        self.sent[no].confirmed = true;
    }
}
