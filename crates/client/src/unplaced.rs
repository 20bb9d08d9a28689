//! Replies that the broker did not take because it does not know their request. It may have forgotten it in a crash,
//! before the request was safe; then whoever asked sends the request again, and the reply is here.

use crate::outstanding::{OutstandingDelivery, Settles};
use bytestring::ByteString;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_protocol::{Envelope, Push};

/// Replies that are kept, by count and by bytes; the oldest go first.
const MAX_REPLIES: usize = 256;
const MAX_BYTES: usize = 16 << 20;
/// Whoever has not asked again by then won't.
const LONGEST_KEPT: Duration = Duration::from_secs(600);

#[derive(Default)]
pub struct UnplacedReplies {
    replies: VecDeque<Unplaced>,
    bytes: usize,
}

struct Unplaced {
    request: ByteString,
    to: ByteString,
    envelope: Envelope,
    deadline: Option<Instant>,
    kept_since: Instant,
}

impl UnplacedReplies {
    /// Remembers a delivery if it is a reply.
    pub fn keep(&mut self, delivery: &OutstandingDelivery) {
        let Some(settles) = &delivery.settles else { return };
        self.bytes += delivery.envelope.sealed().len();
        self.replies.push_back(Unplaced {
            request: settles.id.clone(),
            to: delivery.to.clone(),
            envelope: delivery.envelope.clone(),
            deadline: delivery.deadline,
            kept_since: Instant::now(),
        });
        while self.replies.len() > MAX_REPLIES || self.bytes > MAX_BYTES {
            self.drop_oldest();
        }
    }

    /// The reply to a request that has come again, to be sent once more.
    pub fn reply_to(&mut self, push: &Push, settles: impl FnOnce() -> Settles) -> Option<OutstandingDelivery> {
        if self.replies.is_empty() {
            return None;
        }
        let now = Instant::now();
        while self.replies.front().is_some_and(|oldest| now - oldest.kept_since > LONGEST_KEPT) {
            self.drop_oldest();
        }
        let is_it = |reply: &Unplaced| reply.request == push.envelope.id && reply.to == push.from.session_id;
        let found = self.replies.iter().position(is_it)?;
        let Unplaced { to, envelope, deadline, .. } = self.replies.remove(found)?;
        self.bytes -= envelope.sealed().len();
        if deadline.is_some_and(|at| at <= now) {
            return None;
        }
        Some(OutstandingDelivery { to, envelope, deadline, settles: Some(settles()), receipt: None, _slot: None })
    }

    /// Whether that reply is one of them: nobody has got it from this broker.
    pub fn has(&self, to: &str, reply_id: &str) -> bool {
        self.replies.iter().any(|reply| &*reply.to == to && &*reply.envelope.id == reply_id)
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.replies.pop_front() {
            self.bytes -= oldest.envelope.sealed().len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_protocol::{AgentRef, Body, InboxMessage};

    fn message(id: &str, size: usize) -> InboxMessage {
        let body = Body::of(&"x".repeat(size)).expect("a text");
        InboxMessage { id: id.into(), ..InboxMessage::new(AgentRef::new("me"), "mcp_reply", body) }
    }

    fn delivery(request: &str, size: usize) -> OutstandingDelivery {
        let settles = Some(Settles { id: ByteString::from(request), tag: None });
        let envelope = message(&format!("to {request}"), size).seal();
        OutstandingDelivery { to: "asker".into(), envelope, deadline: None, settles, receipt: None, _slot: None }
    }

    fn placed(replies: &mut UnplacedReplies, request: &str, from: &str) -> bool {
        let envelope = message(request, 1).seal();
        let push = Push { tag: Some(7), attempt: 1, from: AgentRef::new(from), deadline_ms: None, envelope };
        let settles = || Settles { id: ByteString::from(request), tag: Some((1, 7)) };
        replies.reply_to(&push, settles).is_some()
    }

    #[test]
    fn a_reply_goes_once_to_whoever_asks_again() {
        let mut replies = UnplacedReplies::default();
        replies.keep(&delivery("q", 1));
        assert!(replies.has("asker", "to q") && !replies.has("asker", "to p") && !replies.has("somebody else", "to q"));
        assert!(!placed(&mut replies, "q", "somebody else"));
        assert!(!placed(&mut replies, "p", "asker"));
        assert!(placed(&mut replies, "q", "asker"));
        assert!(!placed(&mut replies, "q", "asker"));
        assert_eq!(replies.bytes, 0);
    }

    #[test]
    fn the_oldest_give_way() {
        let mut replies = UnplacedReplies::default();
        (0..MAX_REPLIES + 10).for_each(|number| replies.keep(&delivery(&number.to_string(), 1)));
        assert_eq!(replies.replies.len(), MAX_REPLIES);
        assert!(!placed(&mut replies, "9", "asker") && placed(&mut replies, "10", "asker"));
        replies.keep(&delivery("large", MAX_BYTES - 1000));
        assert!(replies.bytes <= MAX_BYTES && placed(&mut replies, "large", "asker"));
    }
}
