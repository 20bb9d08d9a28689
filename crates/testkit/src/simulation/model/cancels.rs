//! What becomes of a message that its sender takes back, and of one that its reader can't be shown.

use super::{MailboxModel, MessageNo, Model};
use crate::simulation::sent::How;
use toolbus_engine::{ConnId, DEAD_LETTER_SUFFIX, Message};

impl Model {
    /// A client cancels what goes by that id in that mailbox. Only its own message is taken back: at once if it is queued.
    pub fn cancelled(&mut self, client: usize, mailbox: &str, id: &str) -> Option<MessageNo> {
        let no = self.find(mailbox, id)?;
        if self.sent[no].from != client || mailbox.ends_with(DEAD_LETTER_SUFFIX) {
            return None;
        }
        // With a short memory it may have begun a new life unseen, which ends here. And one whose time was up while it
        // died, in vain, is still there.
        let expired = self.sent[no].settled == Some(How::Expired);
        self.sent[no].cancelled_once |= self.sent[no].known && (expired || !self.is_certainly_known(no));
        let sent_message = &self.sent[no];
        if !sent_message.pending() {
            return None;
        }
        let seq = sent_message.seq;
        if seq.is_some_and(|seq| self.mailbox(mailbox).leases.contains_key(&seq)) {
            self.sent[no].taken_back = true;
        } else {
            self.settle(no, How::Cancelled);
        }
        Some(no)
    }

    /// Whether a crash now could bring back a message that was taken back. With a short memory it may be in another life
    /// by now, which has no record.
    pub fn may_come_back(&self, no: MessageNo) -> bool {
        let sent_message = &self.sent[no];
        let being_written =
            self.disk.in_flight.as_ref().is_some_and(|flight| flight.puts.values().any(|put| *put == no));
        self.long_memory
            && self.has_one_life(no)
            && !sent_message.settlement_durable
            && (sent_message.record_durable || being_written)
    }

    /// A subscription ends, or another one begins. What was taken back in flight is gone with it.
    pub(super) fn replace_subscription(&mut self, name: &str, next: MailboxModel) {
        let gone = std::mem::replace(self.mailbox(name), next);
        for no in gone.leases.into_values().filter(|no| self.sent[*no].taken_back).collect::<Vec<_>>() {
            self.settle(no, How::Cancelled);
        }
    }

    /// A reader of dead letters can't be shown one of them: it stays for the next reader.
    pub fn skipped(&mut self, conn: ConnId, message: &Message) {
        let mailbox = self.mailbox(&message.mailbox);
        if mailbox.subscriber == Some(conn) && mailbox.leases.remove(&message.seq).is_some() {
            mailbox.leased_bytes -= message.size();
            mailbox.skipped += 1;
        }
    }
}
