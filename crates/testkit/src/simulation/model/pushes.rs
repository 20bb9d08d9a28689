//! What a push must obey: the deadline, the window, the order, and that a settled message stays settled.

use super::{MessageNo, Model};
use toolbus_engine::{ConnId, DEAD_LETTER_SUFFIX, Message, Millis};

impl Model {
    pub fn pushed(&mut self, now: Millis, conn: ConnId, message: &Message, attempt: u32) -> Option<MessageNo> {
        let no = self.witness(message)?;
        let about = self.describe(no);
        let sent_message = &self.sent[no];
        if message.expires_at.is_some_and(|at| at <= now) {
            self.violated(format!("{about} was pushed after its deadline"));
        } else if let Some(how) = sent_message.settled {
            self.violated(format!("{about} was pushed again although it was settled: {how:?}"));
        } else if attempt > self.options.max_attempts && !message.mailbox.ends_with(DEAD_LETTER_SUFFIX) {
            self.violated(format!("{about} was pushed {attempt} times, more than allowed"));
        }
        self.check_window(no, conn, message);
        self.check_order(no);
        self.sent[no].pushed = true;
        Some(no)
    }

    fn check_window(&mut self, no: MessageNo, conn: ConnId, message: &Message) {
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
    fn check_order(&mut self, no: MessageNo) {
        let sent_message = &self.sent[no];
        // What was taken off the books may be back after a crash, behind what came later.
        let was_gone = sent_message.expired_once(self.latest) || sent_message.cancelled_once;
        if sent_message.pushed || sent_message.lost_its_place || was_gone || sent_message.origin.is_some() {
            return;
        }
        let order = sent_message.order;
        let newest = self.newest_pushed.entry((sent_message.from, sent_message.mailbox.clone())).or_default();
        let in_order = *newest < order;
        *newest = order.max(*newest);
        if !in_order {
            self.violated(format!("{} overtook an older one of its sender", self.describe(no)));
        }
    }
}
