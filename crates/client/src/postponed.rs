//! Replies that the broker had no room for at the moment. Nobody else has them, so they are sent again, after a pause that
//! grows, as long as they are worth delivering.

use crate::outstanding::OutstandingDelivery;
use crate::session::Session;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_protocol::ErrorCode;

/// What is kept at most; past it a reply is given up.
const MAX_REPLIES: usize = 1024;
const MAX_BYTES: usize = 64 << 20;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

pub struct Postponed {
    replies: Vec<OutstandingDelivery>,
    bytes: usize,
    /// When all of them are sent again.
    due: Option<Instant>,
    pause: Duration,
}

impl Default for Postponed {
    fn default() -> Self {
        Self { replies: Vec::new(), bytes: 0, due: None, pause: FIRST_PAUSE }
    }
}

impl Postponed {
    /// Keeps a reply that was refused for a reason that passes. Gives back what is not to be sent again.
    pub fn keep(&mut self, mut delivery: OutstandingDelivery, code: Option<ErrorCode>) -> Option<OutstandingDelivery> {
        let is_reply = delivery.settles.is_some() && delivery.receipt.is_none();
        let bytes = delivery.envelope.sealed().len();
        let fits = self.replies.len() < MAX_REPLIES && self.bytes + bytes <= MAX_BYTES;
        if !is_reply || !code.is_some_and(passes) {
            return Some(delivery);
        }
        if !fits {
            tracing::warn!(id = %delivery.envelope.id, "a reply is lost: the broker is full, and too many wait for it");
            return Some(delivery);
        }
        // Others must not wait until the broker has room for this one.
        delivery._slot = None;
        self.bytes += bytes;
        self.replies.push(delivery);
        self.due.get_or_insert_with(|| Instant::now() + self.pause);
        None
    }

    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    fn take(&mut self) -> Vec<OutstandingDelivery> {
        let now = Instant::now();
        // It was long ago that the broker refused something.
        let is_old = self.due.is_some_and(|due| now.saturating_duration_since(due) > LONGEST_PAUSE);
        self.pause = if is_old { FIRST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
        (self.bytes, self.due) = (0, None);
        let mut replies = std::mem::take(&mut self.replies);
        replies.retain(|reply| reply.deadline.is_none_or(|at| at > now));
        replies
    }
}

/// Whether the broker may take the same message later.
fn passes(code: ErrorCode) -> bool {
    use ErrorCode::{BrokerFull, DiskFull, MailboxFull, TooManyMailboxes};
    matches!(code, DiskFull | BrokerFull | MailboxFull | TooManyMailboxes)
}

impl Session {
    pub fn send_postponed(&mut self) {
        let again = self.postponed.take();
        again.into_iter().for_each(|reply| self.deliver(reply));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outstanding::Settles;
    use crate::terms::Terms;
    use toolbus_protocol::{AgentRef, Body, BrokerFrame, ClientFrame, InboxMessage, Refusal};

    fn session() -> Session {
        let mut session = Session::new(AgentRef::new("host"));
        session.connected(Terms::default());
        session
    }

    fn send(session: &mut Session, settles: Option<&str>) -> InboxMessage {
        let message = InboxMessage::new(AgentRef::new("host"), "mcp_reply", Body::null());
        session.deliver(OutstandingDelivery {
            to: "w".into(),
            envelope: message.seal(),
            deadline: None,
            settles: settles.map(|id| Settles { id: id.into(), tag: None }),
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
    fn a_reply_that_finds_no_room_is_sent_again() {
        let mut session = session();
        let reply = send(&mut session, Some("request"));
        assert_eq!(sent(&mut session), 1);
        for _ in 0..3 {
            refuse(&mut session, &reply, ErrorCode::DiskFull);
            assert_eq!(sent(&mut session), 0, "not at once");
            assert!(session.postponed.due().is_some());
            session.send_postponed();
            assert_eq!((sent(&mut session), session.postponed.due()), (1, None));
        }
        assert!(session.postponed.pause > FIRST_PAUSE);
    }

    #[test]
    fn what_would_be_refused_again_or_is_no_reply_is_given_up() {
        let mut session = session();
        for (settles, code) in [(Some("request"), ErrorCode::IdConflict), (None, ErrorCode::DiskFull)] {
            let message = send(&mut session, settles);
            refuse(&mut session, &message, code);
            assert_eq!(session.postponed.due(), None);
        }
    }

    #[test]
    fn so_many_are_kept_and_no_more() {
        let mut session = session();
        for _ in 0..MAX_REPLIES + 10 {
            let reply = send(&mut session, Some("request"));
            refuse(&mut session, &reply, ErrorCode::MailboxFull);
        }
        assert_eq!(session.postponed.replies.len(), MAX_REPLIES);
    }
}
