//! Replies that wait for the broker to deliver their request once more, and are then sent with its acknowledgement.
//!
//! - Replies that the broker refused because it does not know their request. A crash may have lost the request before it
//!   was durable; the caller then sends it again.
//! - Replies with [`Resend::WithRequest`] whose connection was lost. If the broker had already accepted the reply, it
//!   doesn't deliver the request again, and the reply is dropped after a while.

use crate::options::Resend;
use crate::outstanding::{OutstandingDelivery, Settles};
use crate::planted::PlantedBug;
use crate::session::Session;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_protocol::{MsgId, Push};

/// Limits on the kept replies; beyond them the oldest are dropped.
const MAX_REPLIES: usize = 4096;
const MAX_BYTES: usize = 16 << 20;
/// How long a reply is kept while the client is connected: by then the broker has delivered the request again, or the
/// caller is assumed gone.
const MAX_AGE: Duration = Duration::from_secs(600);

#[derive(Default)]
pub struct KeptReplies {
    replies: VecDeque<KeptReply>,
    bytes: usize,
}

struct KeptReply {
    settles: Settles,
    delivery: OutstandingDelivery,
    /// When it was kept, or when the current connection began.
    since: Instant,
}

impl KeptReplies {
    /// Keeps a delivery if it is a reply.
    pub fn keep(&mut self, delivery: OutstandingDelivery, now: Instant) {
        let Some(settles) = delivery.settles.clone() else { return };
        self.bytes += delivery.envelope.sealed().len();
        // A kept reply must not block other deliveries.
        let delivery = OutstandingDelivery { _slot: None, ..delivery };
        self.replies.push_back(KeptReply { settles, delivery, since: now });
        while self.replies.len() > MAX_REPLIES || self.bytes > MAX_BYTES {
            self.drop_oldest();
        }
    }

    /// Removes and returns the kept reply to a request that was delivered again.
    pub fn reply_to(
        &mut self,
        push: &Push,
        now: Instant,
        settles: impl FnOnce() -> Settles,
    ) -> Option<OutstandingDelivery> {
        if self.replies.is_empty() {
            return None;
        }
        let answers =
            |kept: &KeptReply| kept.settles.id == push.envelope.id && kept.delivery.to == push.from.session_id;
        let found = self.replies.iter().position(answers).and_then(|found| self.replies.remove(found));
        self.bytes -= found.as_ref().map_or(0, |found| found.delivery.envelope.sealed().len());
        while self.replies.front().is_some_and(|oldest| now - oldest.since > MAX_AGE) {
            self.drop_oldest();
        }
        let KeptReply { delivery, .. } = found?;
        let is_expired = delivery.deadline.is_some_and(|at| at <= now);
        (!is_expired).then(|| OutstandingDelivery { settles: Some(settles()), ..delivery })
    }

    /// On a new connection: requests that are not acknowledged are delivered again from now on.
    fn await_requests(&mut self, now: Instant) {
        self.replies.iter_mut().for_each(|reply| reply.since = now);
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.replies.pop_front() {
            self.bytes -= oldest.delivery.envelope.sealed().len();
        }
    }
}

impl Session {
    /// On a new connection: keeps the outstanding replies that must not be sent without the tag of their request.
    pub fn keep_untagged_replies(&mut self) {
        self.kept_replies.await_requests(self.now);
        if self.is_planted(PlantedBug::ReplyWithoutRequest) {
            return;
        }
        let untagged = self.outstanding.take_all(|delivery| delivery.resend == Resend::WithRequest);
        untagged.into_iter().for_each(|reply| self.kept_replies.keep(reply, self.now));
    }

    /// Returns the delivery, unless it is a reply that must not be sent without the tag of its request and has none.
    pub fn keep_if_untagged(&mut self, mut delivery: OutstandingDelivery) -> Option<OutstandingDelivery> {
        // A broker of version 1 has no tags.
        if delivery.resend == Resend::Immediately || self.terms.version < 2 {
            return Some(delivery);
        }
        if let Some(settles) = delivery.settles.take_if(|settles| self.received.contains_key(&settles.id)) {
            // A reply that was postponed has a tag of an earlier connection.
            delivery.settles = Some(self.settle_with_reply(&MsgId::from(settles.id)));
        }
        if delivery.settled_in_frame(self.epoch) {
            return Some(delivery);
        }
        self.kept_replies.keep(delivery, self.now);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytestring::ByteString;
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
            resend: Resend::Immediately,
            sent_at: None,
            receipt: None,
            _slot: None,
        }
    }

    fn is_answered(replies: &mut KeptReplies, request: &str, from: &str) -> bool {
        let envelope = message(request, 1).seal();
        let push = Push { tag: Some(7), attempt: 1, from: AgentRef::new(from), deadline_ms: None, envelope };
        let settles = || Settles { id: ByteString::from(request), tag: Some((1, 7)) };
        replies.reply_to(&push, Instant::now(), settles).is_some()
    }

    #[test]
    fn a_kept_reply_answers_a_repeated_request_of_its_caller_once() {
        let mut replies = KeptReplies::default();
        replies.keep(delivery("q", 1), Instant::now());
        assert!(!is_answered(&mut replies, "q", "other"));
        assert!(!is_answered(&mut replies, "p", "caller"));
        assert!(is_answered(&mut replies, "q", "caller"));
        assert!(!is_answered(&mut replies, "q", "caller"));
        assert_eq!(replies.bytes, 0);
    }

    #[test]
    fn a_reply_to_a_broker_without_tags_is_sent_at_once() {
        for (version, kept) in [(1, 0), (2, 1)] {
            let mut session = Session::new(AgentRef::new("me"), Instant::now());
            session.connected(crate::terms::Terms { version, ..Default::default() });
            session.deliver(OutstandingDelivery { resend: Resend::WithRequest, ..delivery("q", 1) });
            assert_eq!((session.kept_replies.replies.len(), session.has_frames()), (kept, kept == 0));
        }
    }

    #[test]
    fn a_kept_reply_does_not_block_other_deliveries() {
        let slots = std::sync::Arc::new(tokio::sync::Semaphore::new(1));
        let slot = std::sync::Arc::clone(&slots).try_acquire_owned().ok();
        let mut replies = KeptReplies::default();
        replies.keep(OutstandingDelivery { _slot: slot, ..delivery("q", 1) }, Instant::now());
        assert_eq!((slots.available_permits(), replies.replies.len()), (1, 1));
    }

    #[test]
    fn the_oldest_replies_are_dropped_when_full() {
        let mut replies = KeptReplies::default();
        (0..MAX_REPLIES + 10).for_each(|number| replies.keep(delivery(&number.to_string(), 1), Instant::now()));
        assert_eq!(replies.replies.len(), MAX_REPLIES);
        assert!(!is_answered(&mut replies, "9", "caller") && is_answered(&mut replies, "10", "caller"));
        replies.keep(delivery("large", MAX_BYTES - 1000), Instant::now());
        assert!(replies.bytes <= MAX_BYTES && is_answered(&mut replies, "large", "caller"));
    }
}
