//! Messages that their sender cancels, and dead letters that a reader can't decode.

use super::{MailboxModel, MessageNo, Model};
use crate::simulation::messages::Settlement;
use toolbus_engine::{CancelOutcome, ConnId, DEAD_LETTER_SUFFIX, Message};

/// The state of a message before a cancel.
#[derive(Debug, Clone, Copy)]
pub struct BeforeCancel {
    is_open: bool,
    is_leased: bool,
    settled: Option<Settlement>,
}

impl Model {
    /// A client cancels the message with this id in this mailbox. Takes effect only for its own messages: at once if
    /// the message is queued.
    pub fn cancelled(&mut self, client: usize, mailbox: &str, id: &str) -> Option<MessageNo> {
        let no = self.find(mailbox, id)?;
        if self.messages[no].from != client || mailbox.ends_with(DEAD_LETTER_SUFFIX) {
            return None;
        }
        // If ids are evicted, an incarnation that the model has not observed may end here. A message that expired while
        // its dead-lettering was refused may still be in the mailbox.
        let expired = self.messages[no].settled == Some(Settlement::Expired);
        self.messages[no].cancelled_once |= self.messages[no].known && (expired || !self.is_certainly_known(no));
        let sent = &self.messages[no];
        if !sent.pending() {
            return None;
        }
        let seq = sent.seq;
        if seq.is_some_and(|seq| self.mailbox(mailbox).leases.contains_key(&seq)) {
            self.messages[no].cancelled_in_flight = true;
        } else {
            self.settle(no, Settlement::Cancelled);
        }
        Some(no)
    }

    /// The broker answered a cancel of this message at once, or will answer `withdrawn` when that is durable (`None`).
    pub fn cancel_answered(&mut self, no: MessageNo, before: BeforeCancel, outcome: Option<CancelOutcome>) {
        let BeforeCancel { is_open, is_leased, settled } = before;
        let certainly_settled = settled.filter(|_| self.is_certainly_known(no) && !self.dead_lettering);
        let is_wrong = match outcome {
            None | Some(CancelOutcome::Withdrawn) => {
                is_leased || certainly_settled.is_some_and(|how| how != Settlement::Cancelled)
            }
            Some(CancelOutcome::Running) => certainly_settled.is_some(),
            Some(CancelOutcome::Finished | CancelOutcome::Unknown) => is_open,
        };
        if is_wrong {
            self.violated(format!("the cancel of {} was answered with {outcome:?}", self.describe(no)));
        }
    }

    /// The broker reported that the message is withdrawn and was never pushed.
    pub fn withdrawal_reported(&mut self, no: MessageNo) {
        let sent = &self.messages[no];
        if self.has_one_incarnation(no) && !sent.settlement_durable {
            self.violated(format!("{} was reported as withdrawn before that was durable", self.describe(no)));
        } else if self.keeps_all_ids && sent.pushed_since_accepted {
            self.violated(format!("{} was reported as withdrawn although it was pushed", self.describe(no)));
        }
        // If ids are evicted, the message may have been accepted again since.
        self.messages[no].withdrawn = self.keeps_all_ids;
    }

    /// The state of a message before a cancel.
    pub fn before_cancel(&mut self, no: MessageNo) -> BeforeCancel {
        let (name, seq) = (self.messages[no].mailbox.clone(), self.messages[no].seq);
        let is_leased = seq.is_some_and(|seq| self.mailbox(&name).leases.contains_key(&seq));
        BeforeCancel { is_open: self.is_certainly_open(no), is_leased, settled: self.messages[no].settled }
    }

    /// Whether a crash now could restore a cancelled message. If ids are evicted, it may be in a later incarnation,
    /// which has no record.
    pub fn may_be_restored(&self, no: MessageNo) -> bool {
        let sent = &self.messages[no];
        let being_written =
            self.disk.in_flight.as_ref().is_some_and(|in_flight| in_flight.puts.values().any(|put| *put == no));
        self.keeps_all_ids
            && self.has_one_incarnation(no)
            && !sent.settlement_durable
            && (sent.record_durable || being_written)
    }

    /// A subscription ends or is replaced. Messages cancelled while they were in flight on it are settled.
    pub(super) fn replace_subscription(&mut self, name: &str, next: MailboxModel) {
        let gone = std::mem::replace(self.mailbox(name), next);
        for no in gone.leases.into_values().filter(|no| self.messages[*no].cancelled_in_flight).collect::<Vec<_>>() {
            self.settle(no, Settlement::Cancelled);
        }
    }

    /// A reader of dead letters can't decode one of them: it stays in the mailbox for the next subscription.
    pub fn skipped(&mut self, conn: ConnId, message: &Message) {
        let mailbox = self.mailbox(&message.mailbox);
        if mailbox.subscriber == Some(conn) && mailbox.leases.remove(&message.seq).is_some() {
            mailbox.leased_bytes -= message.size();
            mailbox.skipped += 1;
        }
    }
}
