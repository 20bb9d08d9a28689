//! Replies that the broker refused for lack of room. No other copy exists, so they are retried with exponential backoff
//! until they expire.

use crate::outstanding::OutstandingDelivery;
use crate::session::Session;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_base::Backoff;
use toolbus_protocol::ErrorCode;

/// Limits on the kept replies; beyond them a reply is lost.
const MAX_REPLIES: usize = 1024;
const MAX_BYTES: usize = 64 << 20;
const MAX_BACKOFF: Duration = Duration::from_secs(10);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), MAX_BACKOFF);

pub struct PostponedReplies {
    replies: Vec<OutstandingDelivery>,
    bytes: usize,
    /// When all kept replies are sent again.
    due: Option<Instant>,
    backoff: Backoff,
}

impl Default for PostponedReplies {
    fn default() -> Self {
        Self { replies: Vec::new(), bytes: 0, due: None, backoff: BACKOFF }
    }
}

impl PostponedReplies {
    /// Keeps a reply that was refused for a transient reason. Returns the delivery if it is not to be retried.
    pub fn keep(
        &mut self,
        mut delivery: OutstandingDelivery,
        code: Option<ErrorCode>,
        now: Instant,
    ) -> Option<OutstandingDelivery> {
        let is_reply = delivery.settles.is_some() && delivery.receipt.is_none();
        let bytes = delivery.envelope.sealed().len();
        let fits = self.replies.len() < MAX_REPLIES && self.bytes + bytes <= MAX_BYTES;
        if !is_reply || !code.is_some_and(is_transient) {
            return Some(delivery);
        }
        if !fits {
            tracing::warn!(id = %delivery.envelope.id, "reply lost: the broker is full, and so is the retry queue");
            return Some(delivery);
        }
        // A postponed reply must not block other deliveries.
        delivery._slot = None;
        self.bytes += bytes;
        self.due.get_or_insert_with(|| now + self.backoff.next_delay_for(&delivery.envelope.id));
        self.replies.push(delivery);
        None
    }

    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    fn take(&mut self, now: Instant) -> Vec<OutstandingDelivery> {
        // The last refusal was long ago, so the backoff starts over.
        if self.due.is_some_and(|due| now.saturating_duration_since(due) > MAX_BACKOFF) {
            self.backoff.reset();
        }
        (self.bytes, self.due) = (0, None);
        let mut replies = std::mem::take(&mut self.replies);
        replies.retain(|reply| reply.deadline.is_none_or(|at| at > now));
        replies
    }
}

/// Whether the broker may accept the same message later.
fn is_transient(code: ErrorCode) -> bool {
    use ErrorCode::{BrokerFull, DiskFull, MailboxFull, ShareFull, TooManyMailboxes};
    matches!(code, DiskFull | BrokerFull | MailboxFull | ShareFull | TooManyMailboxes)
}

impl Session {
    pub fn send_postponed(&mut self) {
        let replies = self.postponed.take(self.now);
        replies.into_iter().for_each(|reply| self.deliver(reply));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Resend;
    use crate::outstanding::Settles;
    use crate::terms::Terms;
    use toolbus_protocol::{AgentRef, Body, BrokerFrame, ClientFrame, InboxMessage, Refusal};

    fn session() -> Session {
        let mut session = Session::new(AgentRef::new("host"), Instant::now());
        session.connected(Terms::default());
        session
    }

    fn send(session: &mut Session, settles: Option<&str>) -> InboxMessage {
        let message = InboxMessage::new(AgentRef::new("host"), "mcp_reply", Body::null());
        session.deliver(OutstandingDelivery {
            reply: None,
            to: "w".into(),
            envelope: message.seal(),
            deadline: None,
            settles: settles.map(|id| Settles { id: id.into(), tag: None }),
            resend: Resend::Immediately,
            sent_at: None,
            receipt: None,
            _slot: None,
        });
        message
    }

    fn refuse(session: &mut Session, message: &InboxMessage, code: ErrorCode) {
        let id = Some(message.id.clone().into_inner());
        session.receive(BrokerFrame::Error(Refusal { reason: "no".into(), id, code: Some(code) }));
    }

    fn sent(session: &mut Session) -> usize {
        let mut frames = Vec::new();
        session.take_frames(true, &mut frames);
        frames.iter().filter(|frame| matches!(frame, ClientFrame::Deliver(_))).count()
    }

    #[test]
    fn a_reply_refused_for_lack_of_room_is_sent_again() {
        let mut session = session();
        let reply = send(&mut session, Some("request"));
        assert_eq!(sent(&mut session), 1);
        for _ in 0..3 {
            refuse(&mut session, &reply, ErrorCode::DiskFull);
            assert_eq!(sent(&mut session), 0, "not immediately");
            assert!(session.postponed.due().is_some());
            session.send_postponed();
            assert_eq!((sent(&mut session), session.postponed.due()), (1, None));
        }
        refuse(&mut session, &reply, ErrorCode::DiskFull);
        let due = session.postponed.due().expect("it is kept");
        assert!(due > Instant::now() + BACKOFF.clone().next_delay(), "later than after the first refusal");
    }

    #[test]
    fn permanent_refusals_and_messages_other_than_replies_are_not_retried() {
        let mut session = session();
        for (settles, code) in [(Some("request"), ErrorCode::IdConflict), (None, ErrorCode::DiskFull)] {
            let message = send(&mut session, settles);
            refuse(&mut session, &message, code);
            assert_eq!(session.postponed.due(), None);
        }
    }

    #[test]
    fn the_number_of_postponed_replies_is_bounded() {
        let mut session = session();
        for _ in 0..MAX_REPLIES + 10 {
            let reply = send(&mut session, Some("request"));
            refuse(&mut session, &reply, ErrorCode::MailboxFull);
        }
        assert_eq!(session.postponed.replies.len(), MAX_REPLIES);
    }
}
