//! Fences: which messages of a mailbox an earlier subscriber may have started whose journal the present one does not have.
//! Such messages are pushed with a mark, [`crate::Outgoing::Unsure`].

use crate::{Engine, Message, Millis, Seq};

/// When a subscriber with another journal took over a mailbox. Its journal does not know what was started before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// Messages before this one were accepted earlier.
    pub before: Seq,
    /// A message that was first sent earlier may have been pushed by a process of the broker that lost it.
    pub at: Millis,
}

impl Engine {
    /// Fences a mailbox whose subscriber records calls in another journal than the one before. Messages before the fence
    /// that may have been pushed are preceded by [`crate::Outgoing::Unsure`] from now on.
    pub fn fence(&mut self, now: Millis, mailbox: &str) -> Fence {
        let fence = Fence { before: self.unsettled.end(), at: now };
        self.restore_fence(mailbox, fence);
        fence
    }

    /// Restores a fence. It outlives its mailbox, which is removed while it is empty.
    pub fn restore_fence(&mut self, mailbox: &str, fence: Fence) {
        if self.fences.len() >= self.options.mailboxes
            && !self.fences.contains_key(mailbox)
            && let Some(oldest) = self.fences.iter().min_by_key(|(_, fence)| fence.before).map(|(name, _)| name.clone())
        {
            self.fences.remove(&oldest);
        }
        self.fences.insert(mailbox.into(), fence);
    }

    /// Whether an earlier subscriber with another journal may have started the message.
    pub(crate) fn is_unsure(&self, index: usize, message: &Message) -> bool {
        let fence = self.fences.get(&*self.boxes[index].name);
        fence.is_some_and(|fence| message.seq < fence.before || message.accepted_at < fence.at)
            && self.may_have_been_pushed(index, message.seq)
    }

    /// Whether a message may have been pushed before. Pushes before a crash may have left no record, so a restored message
    /// counts as pushed, and so does one that its sender has sent before.
    pub(crate) fn may_have_been_pushed(&self, index: usize, seq: Seq) -> bool {
        seq < self.restored_until || self.boxes[index].attempts.contains_key(&seq)
    }
}
