//! What must hold for messages in a cluster.

use std::collections::BTreeSet;

/// A message, by its number.
#[derive(Debug, Clone, Default)]
pub struct Sent {
    pub to: usize,
    pub receipted: bool,
    /// The recipient has read it.
    pub received: bool,
    /// The broker of this epoch confirmed the acknowledgement.
    pub confirmed: Option<u64>,
}

/// The messages and the first violation.
#[derive(Default)]
pub struct Oracle {
    pub messages: Vec<Sent>,
    /// Epochs that were taken over.
    pub epochs: BTreeSet<u64>,
    violation: Option<String>,
}

impl Oracle {
    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    pub fn violated(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert_with(|| what.into());
    }

    /// A broker of that epoch takes a message out of its mailbox to push it.
    pub fn pushed(&mut self, no: usize, epoch: u64) {
        if self.messages[no].confirmed.is_some_and(|confirmed| epoch >= confirmed) {
            self.violated(format!("message {no} was pushed although its acknowledgement was confirmed"));
        }
    }

    pub fn taken_over(&mut self, epoch: u64) {
        if !self.epochs.insert(epoch) {
            self.violated(format!("epoch {epoch} has two owners"));
        }
    }

    /// The end of a run: every receipted message has been read by its recipient.
    pub fn check_end(&mut self) {
        let lost = self.messages.iter().position(|sent| sent.receipted && !sent.received);
        if let Some(no) = lost {
            self.violated(format!("message {no} was receipted and is lost"));
        }
        let open = self.messages.iter().position(|sent| !sent.receipted);
        if let Some(no) = open {
            self.violated(format!("message {no} never got a receipt"));
        }
    }
}
