//! The state of a client that outlives its connections, without I/O: frames in, frames out, and the pending operations.

use crate::BrokerError;
use crate::agent_ends::AgentEnds;
use crate::backlog::Backlog;
use crate::follow::Follows;
use crate::hosts::HostsState;
use crate::journal_claim::MailboxClaim;
use crate::kept_replies::KeptReplies;
use crate::outstanding::{OutstandingDeliveries, Settles};
use crate::pending::{CallEvents, PendingRequest};
use crate::planted::PlantedBug;
use crate::postponed::PostponedReplies;
use crate::queries::PendingQueries;
use crate::received::Received;
use crate::reply_guard::{ReplyGuard, ReplyListener};
use crate::signals::{Cancellation, LiveEvent, push_bounded};
use crate::terms::Terms;
use crate::withdraw::Withdrawals;
use bytestring::ByteString;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use toolbus_protocol::{AgentRef, BrokerFrame, ClientFrame, Event, InboxKind, InboxMessage, MsgId, Push};

/// This many acknowledgements are sent without waiting for a frame to piggyback on.
const ACKS_PER_FRAME: usize = 128;

pub struct Session {
    pub me: AgentRef,
    /// The current time, set by the owner before every use.
    pub now: Instant,
    /// Number of the current connection, zero while disconnected. Tags are valid only within their epoch.
    pub epoch: u64,
    /// Number of connections so far.
    epochs: u64,
    pub terms: Terms,
    frames: Vec<ClientFrame>,
    backlog: Backlog,
    acks: Vec<u64>,
    pub outstanding: OutstandingDeliveries,
    pub requests: HashMap<ByteString, PendingRequest>,
    /// `connected` answers carry no id and arrive in the order of the queries.
    pub presence: VecDeque<oneshot::Sender<Vec<ByteString>>>,
    pub queries: PendingQueries,
    pub withdrawals: Withdrawals,
    pub follows: Follows,
    pub hosts: HostsState,
    pub inbox: VecDeque<InboxMessage>,
    /// Messages received and not acknowledged.
    pub(crate) received: HashMap<ByteString, Received>,
    pub cancels: VecDeque<Cancellation>,
    /// Cancels issued while disconnected. The messages that they withdraw are queued too, here or at the broker.
    unsent_cancels: VecDeque<ClientFrame>,
    pub events: VecDeque<LiveEvent>,
    pub wants_subscription: bool,
    pub claim: MailboxClaim,
    pub agent_ends: AgentEnds,
    /// Set when another connection has taken over the mailbox. The client then closes when its connection ends.
    pub displaced: Option<BrokerError>,
    /// Gets the end of every reply.
    pub reply_listener: Option<ReplyListener>,
    pub kept_replies: KeptReplies,
    pub postponed: PostponedReplies,
    /// Whether replies without a pending request are acknowledged automatically.
    pub multiplexed: bool,
    pub closed: Option<BrokerError>,
    pub broker_identity: Option<ByteString>,
    pub planted: Option<PlantedBug>,
}

impl Session {
    pub fn new(me: AgentRef, now: Instant) -> Self {
        Self {
            me,
            now,
            epoch: 0,
            epochs: 0,
            terms: Terms::default(),
            frames: Vec::new(),
            backlog: Backlog::default(),
            acks: Vec::new(),
            outstanding: OutstandingDeliveries::default(),
            requests: HashMap::new(),
            presence: VecDeque::new(),
            queries: PendingQueries::default(),
            withdrawals: Withdrawals::default(),
            follows: Follows::default(),
            hosts: HostsState::default(),
            inbox: VecDeque::new(),
            received: HashMap::new(),
            cancels: VecDeque::new(),
            unsent_cancels: VecDeque::new(),
            events: VecDeque::new(),
            wants_subscription: false,
            claim: MailboxClaim::default(),
            agent_ends: AgentEnds::default(),
            displaced: None,
            reply_listener: None,
            kept_replies: KeptReplies::default(),
            postponed: PostponedReplies::default(),
            multiplexed: false,
            closed: None,
            broker_identity: None,
            planted: None,
        }
    }

    /// On a new connection: subscribes again and resends deliveries without a receipt, under the same ids.
    pub fn connected(&mut self, terms: Terms) {
        self.epochs += 1;
        self.epoch = self.epochs;
        self.terms = terms;
        self.frames.clear();
        self.backlog.clear();
        self.acks.clear();
        if self.wants_subscription && self.end_reason().is_none() {
            self.frames.extend(self.claim.frame().filter(|_| terms.version >= 2));
            self.frames.push(ClientFrame::Subscribe);
        }
        self.spoil_resend();
        self.keep_untagged_replies();
        self.fail_too_large();
        let resent = self.outstanding.resend(self.epoch, self.now);
        self.frames.extend(resent);
        self.frames.extend(self.unsent_cancels.drain(..));
        if terms.version >= 2 {
            self.frames.extend(self.withdrawals.ask_again());
            self.frames.extend(self.follows.renew());
            self.hosts.connected(&mut self.frames);
        }
    }

    /// On a lost connection: queries about the current moment fail; deliveries and requests wait for the next one.
    pub fn disconnected(&mut self) {
        self.epoch = 0;
        self.frames.clear();
        self.acks.clear();
        // Not yet taken by the application, so the broker delivers them again.
        for message in self.inbox.drain(..) {
            self.received.remove(message.id.as_str());
        }
        self.requests.values_mut().filter_map(|request| request.events.as_mut()).for_each(CallEvents::forget_stored);
        self.withdrawals.connection_lost(self.outstanding.ids());
        self.follows.connection_lost();
        self.presence.clear();
        self.queries.clear();
        self.hosts.disconnected();
    }

    /// Fails everything that waits. Queued frames are still sent if there is a connection, except a subscription: it
    /// would displace a newer subscriber.
    pub fn close(&mut self, error: BrokerError) {
        self.frames.retain(|frame| !matches!(frame, ClientFrame::Subscribe | ClientFrame::Claim(_)));
        self.presence.clear();
        self.queries.clear();
        self.withdrawals.close();
        self.follows.close(&error);
        self.hosts.close(&error);
        self.outstanding.fail_all(&error);
        self.end_requests(&error);
        self.closed.get_or_insert(error);
    }

    pub fn end_requests(&mut self, error: &BrokerError) {
        for (_, request) in self.requests.drain() {
            request.end(Err(error.clone()));
        }
    }

    /// Why no more messages are received, if the client is closed or displaced.
    pub fn end_reason(&self) -> Option<BrokerError> {
        self.closed.clone().or_else(|| self.displaced.clone())
    }

    pub fn is_connected(&self) -> bool {
        self.epoch != 0
    }

    /// Queues a frame for the current connection; without a connection the frame is dropped.
    pub fn send(&mut self, frame: ClientFrame) {
        if self.is_connected() && self.backlog.admits(self.frames.len(), &frame) {
            self.frames.push(frame);
        }
    }

    /// Queues a frame that is never dropped. Only while connected.
    pub fn push_frame(&mut self, frame: ClientFrame) {
        self.frames.push(frame);
    }

    /// Sends a cancel, on the next connection if there is none now.
    pub fn cancel(&mut self, to: ByteString, correlation_id: ByteString) {
        let frame = ClientFrame::Cancel { to, correlation_id, request_id: None };
        match self.is_connected() {
            true => self.frames.push(frame),
            false => push_bounded(&mut self.unsent_cancels, frame),
        }
    }

    /// Stops tracking a received message and returns how to acknowledge it.
    pub fn settle_with_reply(&mut self, id: &MsgId) -> Settles {
        let id = id.clone().into_inner();
        let tag = self.received.remove(&id).and_then(|received| Some((received.epoch, received.tag?)));
        Settles { id, tag: tag.filter(|_| self.terms.version >= 2) }
    }

    pub fn ack(&mut self, id: &MsgId) {
        let settles = self.settle_with_reply(id);
        self.ack_settles(settles);
    }

    /// Reports that a received request was refused; call it before the reply.
    pub fn refused(&mut self, id: &MsgId) {
        let tag = self.received.get(id.as_str()).filter(|received| received.epoch == self.epoch);
        if let Some(tag) = tag.and_then(|received| received.tag).filter(|_| self.terms.version >= 2) {
            self.send(ClientFrame::Refused { tags: vec![tag] });
        }
    }

    pub fn ack_settles(&mut self, settles: Settles) {
        match settles.tag {
            Some((epoch, tag)) if epoch == self.epoch => self.acks.push(tag),
            _ => self.send(ClientFrame::Ack { id: settles.id }),
        }
    }

    /// The event queue of a pending call, if its caller wants events.
    pub fn call_events(&mut self, id: &ByteString) -> Option<&mut CallEvents> {
        self.requests.get_mut(id)?.events.as_mut()
    }

    pub fn acknowledge_events(&mut self, events: Option<CallEvents>) {
        for settles in events.into_iter().flat_map(CallEvents::into_settles) {
            self.ack_settles(settles);
        }
    }

    pub fn forget_received(&mut self, id: &MsgId) {
        self.received.remove(id.as_str());
    }

    /// Whether there is something that [`crate::BrokerClient`]'s waiting callers take, or a reason for them to stop.
    pub fn has_news(&self) -> bool {
        let has_items = !self.inbox.is_empty() || !self.cancels.is_empty() || !self.events.is_empty();
        has_items || self.agent_ends.has_uncollected() || self.displaced.is_some() || self.closed.is_some()
    }

    /// Whether acknowledgements wait for a frame to piggyback on.
    pub fn has_pending_acks(&self) -> bool {
        !self.acks.is_empty()
    }

    pub fn has_frames(&self) -> bool {
        !self.frames.is_empty() || self.acks.len() >= ACKS_PER_FRAME
    }

    /// Moves the frames to send into `out`, acknowledgements first.
    pub fn take_frames(&mut self, flush_acks: bool, out: &mut Vec<ClientFrame>) {
        if !self.acks.is_empty() && (flush_acks || self.has_frames()) {
            out.push(ClientFrame::AckTags { tags: std::mem::take(&mut self.acks) });
        }
        out.append(&mut self.frames);
        self.backlog.clear();
    }

    pub fn receive(&mut self, frame: BrokerFrame) {
        let mut to_ack = Vec::new();
        match frame {
            BrokerFrame::Message(push) => self.receive_message(push),
            BrokerFrame::Receipts { ranges } => {
                let epoch = if self.is_planted(PlantedBug::AcknowledgedTwice) { u64::MAX } else { self.epoch };
                for (first, last) in ranges {
                    self.outstanding.receipts(first, last, epoch, &mut to_ack);
                }
            }
            BrokerFrame::Delivered { id } => self.outstanding.receipt_by_id(&id, self.epoch, &mut to_ack),
            BrokerFrame::Error(refusal) => self.receive_refusal(refusal),
            BrokerFrame::AckResult(result) => self.queries.acked(result),
            BrokerFrame::CancelResult(result) => self.withdrawal_answered(result),
            BrokerFrame::Cancel { correlation_id, from } => {
                push_bounded(&mut self.cancels, Cancellation { id: MsgId::from(correlation_id), from });
            }
            BrokerFrame::Connected { ids } => {
                if let Some(sender) = self.presence.pop_front() {
                    sender.send(ids).ok();
                }
            }
            BrokerFrame::Event(Event { peer, correlation_id, body }) => {
                match self.events_from(&correlation_id, &peer) {
                    Some(events) => events.push_live(body),
                    None => {
                        let event = LiveEvent { from: peer, correlation_id: MsgId::from(correlation_id), body };
                        push_bounded(&mut self.events, event);
                    }
                }
            }
            BrokerFrame::EventBatch { correlation_id, batch } => {
                // Only brokers of the original send it, and they don't name the sender.
                let event = LiveEvent { from: "".into(), correlation_id: MsgId::from(correlation_id), body: batch };
                push_bounded(&mut self.events, event);
            }
            BrokerFrame::Status(status) => self.queries.status(status),
            BrokerFrame::Inspected(inspected) => self.queries.inspected(inspected),
            BrokerFrame::Followed(followed) => self.follows.reported(followed),
            BrokerFrame::Announced(announced) => self.hosts.announced(announced),
            BrokerFrame::Hosts(hosts) => self.hosts.answered(hosts),
            BrokerFrame::HostsChanged => self.hosts.notify_change(),
            BrokerFrame::Unsure { id } => self.claim.mark(id),
            BrokerFrame::AgentsEnded { agents } => agents.into_iter().for_each(|end| self.end_agent(end)),
            BrokerFrame::BrokerIdentity { id } => self.broker_identity = Some(id),
            BrokerFrame::Welcome(_) | BrokerFrame::Unknown { .. } => {}
        }
        to_ack.into_iter().for_each(|settles| self.ack_settles(settles));
    }

    fn receive_message(&mut self, push: Push) {
        let settles = || Settles { id: push.envelope.id.clone(), tag: push.tag.map(|tag| (self.epoch, tag)) };
        if let Some(mut reply) = self.kept_replies.reply_to(&push, self.now, settles) {
            reply.reply = reply.reply.or_else(|| self.guard_reply(&reply.to, &push.envelope.id));
            return self.deliver(reply);
        }
        let pending = push.envelope.correlation_id.as_ref().filter(|correlation| {
            self.requests.get(*correlation).is_some_and(|request| request.to == push.from.session_id)
        });
        if let Some(correlation) = pending.cloned() {
            return self.receive_for_request(correlation, push);
        }
        let message = push.envelope.open(push.from.clone());
        let is_reply = matches!(message.kind, InboxKind::Reply | InboxKind::McpReply);
        if let Some(request) = message.correlation_id.as_ref().filter(|_| is_reply) {
            // The reply implies the receipt of the request; the broker sends no other.
            let mut to_ack = Vec::new();
            self.outstanding.receipt_by_id(&request.clone().into_inner(), self.epoch, &mut to_ack);
            to_ack.into_iter().for_each(|settles| self.ack_settles(settles));
        }
        if self.multiplexed && is_reply && message.correlation_id.is_some() {
            // The caller no longer waits, or the sender is not the recipient of the request.
            self.ack_push(&push);
            return;
        }
        self.keep_message(&push, message);
    }

    /// Watches a reply until the broker has it or refuses it.
    pub fn guard_reply(&self, to: &ByteString, request: &ByteString) -> Option<ReplyGuard> {
        let listener = self.reply_listener.as_ref()?;
        Some(ReplyGuard::new(listener, to.clone(), request.clone()))
    }

    fn keep_message(&mut self, push: &Push, message: InboxMessage) {
        let deadline = push.deadline_ms.and_then(|left| self.now.checked_add(Duration::from_millis(left)));
        let id = push.envelope.id.clone();
        let is_unsure = self.claim.take_mark(&id);
        let (epoch, tag, attempt) = (self.epoch, push.tag, push.attempt);
        let generation = self.agent_ends.generation(&push.from.session_id);
        self.received.insert(id, Received { epoch, tag, deadline, attempt, is_unsure, generation });
        self.inbox.push_back(message);
    }

    /// A message from the recipient of a pending request: its reply, or a stored event before it.
    fn receive_for_request(&mut self, correlation: ByteString, push: Push) {
        let message = push.envelope.open(push.from.clone());
        if message.kind == InboxKind::McpEvent {
            let tag = push.tag.filter(|_| self.terms.version >= 2).map(|tag| (self.epoch, tag));
            let settles = Settles { id: push.envelope.id.clone(), tag };
            match self.call_events(&correlation) {
                Some(events) => {
                    if !events.push_stored(message.body, settles.clone()) {
                        self.ack_settles(settles);
                    }
                }
                None => self.keep_message(&push, message),
            }
            return;
        }
        // The reply implies the receipt of the request; the broker sends no other.
        let mut to_ack = Vec::new();
        self.outstanding.receipt_by_id(&correlation, self.epoch, &mut to_ack);
        let request = self.requests.remove(&correlation);
        self.ack_push(&push);
        if let Some(request) = request {
            request.end(Ok(message));
        }
    }

    /// Like [`Session::call_events`], if `peer` is the recipient of the call.
    fn events_from(&mut self, correlation: &ByteString, peer: &ByteString) -> Option<&mut CallEvents> {
        self.requests.get_mut(correlation).filter(|request| request.to == *peer)?.events.as_mut()
    }

    fn ack_push(&mut self, push: &Push) {
        match push.tag.filter(|_| self.terms.version >= 2) {
            Some(tag) => self.acks.push(tag),
            None => self.frames.push(ClientFrame::Ack { id: push.envelope.id.clone() }),
        }
    }
}
