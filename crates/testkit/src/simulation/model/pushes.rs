//! What a push must obey: the deadline, the window, the order, and that a settled letter stays settled.

use super::{LetterNo, Model};
use toolbus_engine::{ConnId, DEAD_LETTER_SUFFIX, Message, Millis};

impl Model {
    pub fn pushed(&mut self, now: Millis, conn: ConnId, message: &Message, attempt: u32) -> Option<LetterNo> {
        let no = self.witness(message)?;
        let about = self.describe(no);
        let letter = &self.letters[no];
        if message.expires_at.is_some_and(|at| at <= now) {
            self.violated(format!("{about} was pushed after its deadline"));
        } else if let Some(how) = letter.settled {
            self.violated(format!("{about} was pushed again although it was settled: {how:?}"));
        } else if attempt > self.options.max_attempts && !message.mailbox.ends_with(DEAD_LETTER_SUFFIX) {
            self.violated(format!("{about} was pushed {attempt} times, more than allowed"));
        }
        self.check_window(no, conn, message);
        self.check_order(no);
        self.letters[no].pushed = true;
        Some(no)
    }

    fn check_window(&mut self, no: LetterNo, conn: ConnId, message: &Message) {
        let (max_messages, max_bytes) = (self.options.window_messages, self.options.window_bytes);
        let mailbox = self.mailbox(&message.mailbox);
        let to_subscriber = mailbox.subscriber == Some(conn);
        let first_time = mailbox.pushed.insert(no);
        let alone = mailbox.leases.is_empty();
        mailbox.leases.insert(message.seq, no);
        mailbox.leased_bytes += message.size();
        let fits = alone || (mailbox.leases.len() <= max_messages && mailbox.leased_bytes <= max_bytes);
        let about = self.describe(no);
        if !to_subscriber {
            self.violated(format!("{about} was pushed to a connection that is not subscribed"));
        } else if !first_time {
            self.violated(format!("{about} was pushed twice on one subscription"));
        } else if !fits {
            self.violated(format!("{about} was pushed past the window"));
        }
    }

    /// What a mailbox gets for the first time comes in the order of its sender.
    fn check_order(&mut self, no: LetterNo) {
        let letter = &self.letters[no];
        // What was taken off the books may be back after a crash, behind what came later.
        let was_gone = letter.expired_once(self.latest) || letter.cancelled_once;
        if letter.pushed || letter.lost_its_place || was_gone || letter.origin.is_some() {
            return;
        }
        let order = letter.order;
        let newest = self.newest_pushed.entry((letter.from, letter.mailbox.clone())).or_default();
        let in_order = *newest < order;
        *newest = order.max(*newest);
        if !in_order {
            self.violated(format!("{} overtook an older one of its sender", self.describe(no)));
        }
    }
}
