//! The journal behind a host's mailbox, and the received messages that this journal can't vouch for.

use bytestring::ByteString;
use std::collections::HashSet;
use toolbus_protocol::{ClientFrame, JournalClaim};

/// Marked messages that have not arrived yet. The mark precedes its message on the connection.
const MAX_MARKED: usize = 64;

/// State of a session whose client claimed its mailbox for a journal.
#[derive(Default)]
pub struct MailboxClaim {
    /// Sent before every `subscribe`.
    pub claim: Option<JournalClaim>,
    marked: HashSet<ByteString>,
}

impl MailboxClaim {
    /// The frame to send before `subscribe`.
    pub fn frame(&self) -> Option<ClientFrame> {
        self.claim.clone().map(ClientFrame::Claim)
    }

    /// The message of that id may have been started by a host with another journal.
    pub fn mark(&mut self, id: ByteString) {
        if self.marked.len() < MAX_MARKED {
            self.marked.insert(id);
        }
    }

    /// Whether the arriving message was marked.
    pub fn take_mark(&mut self, id: &ByteString) -> bool {
        !self.marked.is_empty() && self.marked.remove(id)
    }
}
