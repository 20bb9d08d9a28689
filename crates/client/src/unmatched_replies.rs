//! Replies that the broker refused because it does not know their request. A crash may have lost the request before it
//! was durable; the caller then sends the request again, and the kept reply answers it.

use crate::outstanding::{OutstandingDelivery, Settles};
use bytestring::ByteString;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_protocol::{Envelope, Push};

/// Limits on the kept replies; beyond them the oldest are dropped.
const MAX_REPLIES: usize = 256;
const MAX_BYTES: usize = 16 << 20;
/// Maximum age of a kept reply: a caller that has not resent its request by then is assumed gone.
const MAX_AGE: Duration = Duration::from_secs(600);

#[derive(Default)]
pub struct UnmatchedReplies {
    replies: VecDeque<UnmatchedReply>,
    bytes: usize,
}

struct UnmatchedReply {
    request: ByteString,
    to: ByteString,
    envelope: Envelope,
    deadline: Option<Instant>,
    kept_since: Instant,
}

impl UnmatchedReplies {
    /// Keeps a delivery if it is a reply.
    pub fn keep(&mut self, delivery: &OutstandingDelivery) {
        let Some(settles) = &delivery.settles else { return };
        self.bytes += delivery.envelope.sealed().len();
        self.replies.push_back(UnmatchedReply {
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

    /// Removes and returns the kept reply to a request that was delivered again.
    pub fn reply_to(&mut self, push: &Push, settles: impl FnOnce() -> Settles) -> Option<OutstandingDelivery> {
        if self.replies.is_empty() {
            return None;
        }
        let now = Instant::now();
        while self.replies.front().is_some_and(|oldest| now - oldest.kept_since > MAX_AGE) {
            self.drop_oldest();
        }
        let matches = |reply: &UnmatchedReply| reply.request == push.envelope.id && reply.to == push.from.session_id;
        let found = self.replies.iter().position(matches)?;
        let UnmatchedReply { to, envelope, deadline, .. } = self.replies.remove(found)?;
        self.bytes -= envelope.sealed().len();
        if deadline.is_some_and(|at| at <= now) {
            return None;
        }
        Some(OutstandingDelivery {
            reply: None,
            to,
            envelope,
            deadline,
            settles: Some(settles()),
            receipt: None,
            _slot: None,
        })
    }

    /// Whether this reply is kept, which means that the broker has not accepted it.
    pub fn contains(&self, to: &str, reply_id: &str) -> bool {
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
        let body = Body::of(&"x".repeat(size)).expect("a string");
        InboxMessage { id: id.into(), ..InboxMessage::new(AgentRef::new("me"), "mcp_reply", body) }
    }

    fn delivery(request: &str, size: usize) -> OutstandingDelivery {
        let settles = Some(Settles { id: ByteString::from(request), tag: None });
        let envelope = message(&format!("to {request}"), size).seal();
        OutstandingDelivery {
            reply: None,
            to: "caller".into(),
            envelope,
            deadline: None,
            settles,
            receipt: None,
            _slot: None,
        }
    }

    fn is_answered(replies: &mut UnmatchedReplies, request: &str, from: &str) -> bool {
        let envelope = message(request, 1).seal();
        let push = Push { tag: Some(7), attempt: 1, from: AgentRef::new(from), deadline_ms: None, envelope };
        let settles = || Settles { id: ByteString::from(request), tag: Some((1, 7)) };
        replies.reply_to(&push, settles).is_some()
    }

    #[test]
    fn a_kept_reply_answers_a_repeated_request_of_its_caller_once() {
        let mut replies = UnmatchedReplies::default();
        replies.keep(&delivery("q", 1));
        assert!(
            replies.contains("caller", "to q")
                && !replies.contains("caller", "to p")
                && !replies.contains("other", "to q")
        );
        assert!(!is_answered(&mut replies, "q", "other"));
        assert!(!is_answered(&mut replies, "p", "caller"));
        assert!(is_answered(&mut replies, "q", "caller"));
        assert!(!is_answered(&mut replies, "q", "caller"));
        assert_eq!(replies.bytes, 0);
    }

    #[test]
    fn the_oldest_replies_are_dropped_when_full() {
        let mut replies = UnmatchedReplies::default();
        (0..MAX_REPLIES + 10).for_each(|number| replies.keep(&delivery(&number.to_string(), 1)));
        assert_eq!(replies.replies.len(), MAX_REPLIES);
        assert!(!is_answered(&mut replies, "9", "caller") && is_answered(&mut replies, "10", "caller"));
        replies.keep(&delivery("large", MAX_BYTES - 1000));
        assert!(replies.bytes <= MAX_BYTES && is_answered(&mut replies, "large", "caller"));
    }
}
