//! Rules for a push: deadline, window, order, and no push of a settled message.

use super::{MessageNo, Model};
use toolbus_engine::{ConnId, DEAD_LETTER_SUFFIX, Message, Millis};

impl Model {
    pub fn pushed(&mut self, now: Millis, conn: ConnId, message: &Message, attempt: u32) -> Option<MessageNo> {
        let no = self.observe(message)?;
        let about = self.describe(no);
        let sent = &self.messages[no];
        if message.expires_at.is_some_and(|at| at <= now) {
            self.violated(format!("{about} was pushed after its deadline"));
        } else if sent.withdrawn {
            self.violated(format!("{about} was pushed although it was reported as withdrawn"));
        } else if let Some(how) = sent.settled {
            self.violated(format!("{about} was pushed again although it was settled: {how:?}"));
        } else if attempt > self.options.max_attempts && !message.mailbox.ends_with(DEAD_LETTER_SUFFIX) {
            self.violated(format!("{about} was pushed {attempt} times, more than allowed"));
        }
        self.check_window(no, conn, message);
        self.check_order(no);
        self.messages[no].pushed = true;
        self.messages[no].pushed_since_accepted = true;
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

    /// First pushes to a mailbox keep the order in which each sender sent.
    fn check_order(&mut self, no: MessageNo) {
        let sent = &self.messages[no];
        // A crash can restore an expired or cancelled message behind later ones.
        let was_gone = sent.expired_once(self.latest) || sent.cancelled_once;
        if sent.pushed || sent.order_lost || was_gone || sent.origin.is_some() {
            return;
        }
        let order = sent.order;
        let newest = self.newest_pushed.entry((sent.from, sent.mailbox.clone())).or_default();
        let in_order = *newest < order;
        *newest = order.max(*newest);
        if !in_order {
            self.violated(format!("{} overtook an earlier message of its sender", self.describe(no)));
        }
    }
}
