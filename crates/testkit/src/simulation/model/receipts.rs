//! A receipt means safe: on stable storage, or consumed, or settled by a reply that is itself safe.

use super::{LetterNo, Model};
use crate::simulation::letters::How;
use toolbus_engine::Millis;

impl Model {
    pub fn receipted(&mut self, now: Millis, no: LetterNo) {
        if self.has_one_life(no) && !self.is_safe(now, no) {
            self.violated(format!("{} was receipted before it was safe", self.describe(no)));
        }
        self.letters[no].receipted = true;
    }

    fn is_safe(&self, now: Millis, no: LetterNo) -> bool {
        let letter = &self.letters[no];
        let is_dead = letter.dead_copy.is_some_and(|copy| self.letters[copy].pending() && self.is_safe(now, copy));
        letter.record_durable
            || is_dead
            || letter.settlement_durable
            || letter.expired(now)
            || match letter.settled {
                Some(How::Acked | How::Expired | How::Cancelled | How::BeforeRestart) => true,
                Some(How::Answered(by) | How::Dead(by)) => self.is_safe(now, by),
                None => false,
            }
    }

    /// With a short memory an answer may be about an earlier life of the letter; and who died once may die again.
    pub fn has_one_life(&self, no: LetterNo) -> bool {
        let letter = &self.letters[no];
        letter.lives <= 1 || (self.long_memory && letter.origin.is_none())
    }

    /// The broker said that the acknowledgement will survive.
    pub fn ack_confirmed(&mut self, no: LetterNo) {
        if self.has_one_life(no) && !self.letters[no].settlement_durable {
            self.violated(format!("the acknowledgement of {} was confirmed before it was safe", self.describe(no)));
        }
        self.letters[no].confirmed = true;
    }
}
