//! The part of a client that outlives its connection, without I/O: frames in, frames out, and who waits for what.

use crate::asked::Asked;
use crate::error::{BrokerError, BrokerResult};
use crate::hosts::HostsView;
use crate::outstanding::{OutstandingDeliveries, OutstandingDelivery, Settles, give_up};
use crate::pending::{CallEvents, PendingRequest};
use crate::postponed::Postponed;
use crate::signals::push_bounded;
use crate::terms::Terms;
use crate::unplaced::UnplacedReplies;
use bytestring::ByteString;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use toolbus_protocol::{
    AckResult, AgentRef, Body, BrokerFrame, ClientFrame, ErrorCode, Event, InboxKind, InboxMessage, MsgId, Push,
    Refusal,
};

/// So many acknowledgements go out without waiting for a frame to ride on.
const ACKS_PER_FRAME: usize = 128;

/// A reply is worth delivering for as long as its request was, and for so long after that: a caller that comes back late
/// still finds it, and that it was not collected can be seen. One that is gone for good leaves nothing behind.
const REPLY_KEPT: Duration = Duration::from_secs(3600);

/// A live event of a call: progress, a log line.
#[derive(Debug, Clone)]
pub struct LiveEvent {
    pub from: ByteString,
    pub correlation_id: MsgId,
    pub body: Body,
}

/// What is known of a received message beside its content.
struct Received {
    /// The connection it came on, and its tag there.
    epoch: u64,
    tag: Option<u64>,
    deadline: Option<Instant>,
    attempt: u32,
}

pub struct Session {
    pub me: AgentRef,
    /// Counts connections; tags are only good on the one they came on. Zero while there is none.
    pub epoch: u64,
    epochs: u64,
    pub terms: Terms,
    frames: Vec<ClientFrame>,
    acks: Vec<u64>,
    pub outstanding: OutstandingDeliveries,
    pub requests: HashMap<ByteString, PendingRequest>,
    pub ack_results: HashMap<ByteString, oneshot::Sender<BrokerResult<()>>>,
    /// `connected` answers carry no id: they come in the order of the questions.
    pub presence: VecDeque<oneshot::Sender<Vec<ByteString>>>,
    pub asked: Asked,
    pub hosts: HostsView,
    pub inbox: VecDeque<InboxMessage>,
    /// Messages handed out and not acknowledged.
    received: HashMap<ByteString, Received>,
    pub cancels: VecDeque<MsgId>,
    /// Cancels that wait for a connection: what they take back waits too, here or at the broker.
    unsent_cancels: VecDeque<ClientFrame>,
    pub events: VecDeque<LiveEvent>,
    pub wants_mailbox: bool,
    /// Another connection has the mailbox now. When this one ends too, so does the client.
    pub displaced: Option<BrokerError>,
    pub unplaced: UnplacedReplies,
    pub postponed: Postponed,
    /// Replies to requests that nobody waits for any more are settled by themselves.
    pub multiplexed: bool,
    pub closed: Option<BrokerError>,
    pub broker_identity: Option<ByteString>,
}

impl Session {
    pub fn new(me: AgentRef) -> Self {
        Self {
            me,
            epoch: 0,
            epochs: 0,
            terms: Terms::default(),
            frames: Vec::new(),
            acks: Vec::new(),
            outstanding: OutstandingDeliveries::default(),
            requests: HashMap::new(),
            ack_results: HashMap::new(),
            presence: VecDeque::new(),
            asked: Asked::default(),
            hosts: HostsView::default(),
            inbox: VecDeque::new(),
            received: HashMap::new(),
            cancels: VecDeque::new(),
            unsent_cancels: VecDeque::new(),
            events: VecDeque::new(),
            wants_mailbox: false,
            displaced: None,
            unplaced: UnplacedReplies::default(),
            postponed: Postponed::default(),
            multiplexed: false,
            closed: None,
            broker_identity: None,
        }
    }

    /// A connection stands: subscribe again, and send again what has no receipt, under the same ids.
    pub fn connected(&mut self, terms: Terms) {
        self.epochs += 1;
        self.epoch = self.epochs;
        self.terms = terms;
        self.frames.clear();
        self.acks.clear();
        if self.wants_mailbox && self.displaced.is_none() {
            self.frames.push(ClientFrame::Subscribe);
        }
        let again = self.outstanding.resend(self.epoch);
        self.frames.extend(again);
        self.frames.extend(self.unsent_cancels.drain(..));
        if terms.version >= 2 {
            self.hosts.connected(&mut self.frames);
        }
    }

    /// The connection is gone. What asks about this moment only is over; everything durable waits for the next one.
    pub fn disconnected(&mut self) {
        self.epoch = 0;
        self.frames.clear();
        self.acks.clear();
        // Nobody has seen these, and they come again.
        for message in self.inbox.drain(..) {
            self.received.remove(message.id.as_str());
        }
        self.requests.values_mut().filter_map(|request| request.events.as_mut()).for_each(CallEvents::forget_stored);
        self.ack_results.clear();
        self.presence.clear();
        self.asked.clear();
        self.hosts.disconnected();
    }

    /// Nobody waits any longer. Frames that are queued still go out, if there is a connection to take them.
    pub fn close(&mut self, error: BrokerError) {
        self.ack_results.clear();
        self.presence.clear();
        self.asked.clear();
        self.hosts.close(&error);
        self.outstanding.fail_all(&error);
        self.end_requests(&error);
        self.closed.get_or_insert(error);
    }

    fn end_requests(&mut self, error: &BrokerError) {
        for (_, request) in self.requests.drain() {
            request.end(Err(error.clone()));
        }
    }

    /// Why nothing comes any more, if so.
    pub fn end_reason(&self) -> Option<BrokerError> {
        self.closed.clone().or_else(|| self.displaced.clone())
    }

    pub fn is_connected(&self) -> bool {
        self.epoch != 0
    }

    /// Queues a frame for the present connection; without one it is dropped.
    pub fn send(&mut self, frame: ClientFrame) {
        if self.is_connected() {
            self.frames.push(frame);
        }
    }

    /// Takes a message back, or asks for the work on it to be abandoned; with the next connection if there is none.
    pub fn cancel(&mut self, to: ByteString, correlation_id: ByteString) {
        let frame = ClientFrame::Cancel { to, correlation_id };
        match self.is_connected() {
            true => self.frames.push(frame),
            false => push_bounded(&mut self.unsent_cancels, frame),
        }
    }

    pub fn deliver(&mut self, delivery: OutstandingDelivery) {
        if self.is_connected() {
            self.frames.push(delivery.frame(self.epoch));
        }
        self.outstanding.add(delivery);
    }

    /// How to name a received message when it is settled together with a reply.
    pub fn settle_with_reply(&mut self, id: &MsgId) -> Settles {
        let id = id.clone().into_inner();
        let tag = self.received.remove(&id).and_then(|received| Some((received.epoch, received.tag?)));
        Settles { id, tag: tag.filter(|_| self.terms.version >= 2) }
    }

    pub fn ack(&mut self, id: &MsgId) {
        let settles = self.settle_with_reply(id);
        self.ack_settles(settles);
    }

    pub fn ack_settles(&mut self, settles: Settles) {
        match settles.tag {
            Some((epoch, tag)) if epoch == self.epoch => self.acks.push(tag),
            _ => self.send(ClientFrame::Ack { id: settles.id }),
        }
    }

    /// The events of an open call whose caller wants them.
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

    pub fn deadline_of(&self, id: &MsgId) -> Option<Instant> {
        self.received.get(id.as_str())?.deadline
    }

    pub fn attempt_of(&self, id: &MsgId) -> Option<u32> {
        Some(self.received.get(id.as_str())?.attempt)
    }

    /// How long a reply to that message is worth delivering; for ever if the message itself is.
    pub fn reply_deadline(&self, request: &MsgId) -> Option<Duration> {
        let left = self.deadline_of(request)?.saturating_duration_since(Instant::now());
        Some(left + REPLY_KEPT)
    }

    /// Whether acknowledgements wait for something to ride on.
    pub fn has_riders(&self) -> bool {
        !self.acks.is_empty()
    }

    pub fn has_frames(&self) -> bool {
        !self.frames.is_empty() || self.acks.len() >= ACKS_PER_FRAME
    }

    /// What to send now: the frames, with the acknowledgements in front of them.
    pub fn take_frames(&mut self, with_riders: bool, out: &mut Vec<ClientFrame>) {
        if !self.acks.is_empty() && (with_riders || self.has_frames()) {
            out.push(ClientFrame::AckTags { tags: std::mem::take(&mut self.acks) });
        }
        out.append(&mut self.frames);
    }

    pub fn receive(&mut self, frame: BrokerFrame) {
        let mut to_ack = Vec::new();
        match frame {
            BrokerFrame::Message(push) => self.receive_message(push),
            BrokerFrame::Receipts { ranges } => {
                for (first, last) in ranges {
                    self.outstanding.receipts(first, last, self.epoch, &mut to_ack);
                }
            }
            BrokerFrame::Delivered { id } => self.outstanding.receipt_by_id(&id, self.epoch, &mut to_ack),
            BrokerFrame::Error(refusal) => self.receive_refusal(refusal),
            BrokerFrame::AckResult(result) => self.receive_ack_result(result),
            BrokerFrame::Cancel { correlation_id } => {
                push_bounded(&mut self.cancels, MsgId::from(correlation_id));
            }
            BrokerFrame::Connected { ids } => {
                if let Some(asked) = self.presence.pop_front() {
                    asked.send(ids).ok();
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
            BrokerFrame::Status(status) => self.asked.status(status),
            BrokerFrame::Inspected(inspected) => self.asked.inspected(inspected),
            BrokerFrame::Announced(announced) => self.hosts.announced(announced),
            BrokerFrame::Hosts(hosts) => self.hosts.answered(hosts),
            BrokerFrame::HostsChanged => self.hosts.ring(),
            BrokerFrame::BrokerIdentity { id } => self.broker_identity = Some(id),
            BrokerFrame::Welcome(_) | BrokerFrame::Unknown { .. } => {}
        }
        to_ack.into_iter().for_each(|settles| self.ack_settles(settles));
    }

    fn receive_message(&mut self, push: Push) {
        let settles = || Settles { id: push.envelope.id.clone(), tag: push.tag.map(|tag| (self.epoch, tag)) };
        if let Some(reply) = self.unplaced.reply_to(&push, settles) {
            return self.deliver(reply);
        }
        let awaited = push.envelope.correlation_id.as_ref().filter(|correlation| {
            self.requests.get(*correlation).is_some_and(|request| request.to == push.from.session_id)
        });
        if let Some(correlation) = awaited.cloned() {
            return self.receive_for_request(correlation, push);
        }
        let message = push.envelope.open(push.from.clone());
        let is_reply = matches!(message.kind, InboxKind::Reply | InboxKind::McpReply);
        if let Some(request) = message.correlation_id.as_ref().filter(|_| is_reply) {
            // Whoever waits for the request's receipt has no other: the reply says that it arrived.
            let mut to_ack = Vec::new();
            self.outstanding.receipt_by_id(&request.clone().into_inner(), self.epoch, &mut to_ack);
            to_ack.into_iter().for_each(|settles| self.ack_settles(settles));
        }
        if self.multiplexed && is_reply && message.correlation_id.is_some() {
            // Too late, or from someone who was not asked.
            self.ack_push(&push);
            return;
        }
        self.keep_message(&push, message);
    }

    fn keep_message(&mut self, push: &Push, message: InboxMessage) {
        let deadline = push.deadline_ms.and_then(|left| Instant::now().checked_add(Duration::from_millis(left)));
        self.received.insert(
            push.envelope.id.clone(),
            Received { epoch: self.epoch, tag: push.tag, deadline, attempt: push.attempt },
        );
        self.inbox.push_back(message);
    }

    /// A message from the peer that was asked: the reply, or an event on the way to it.
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
        // The reply says that the request arrived, so no receipt will follow.
        let mut to_ack = Vec::new();
        self.outstanding.receipt_by_id(&correlation, self.epoch, &mut to_ack);
        let request = self.requests.remove(&correlation);
        self.ack_push(&push);
        if let Some(request) = request {
            request.end(Ok(message));
        }
    }

    /// The events of an open call that were asked for, if it is this peer that was called.
    fn events_from(&mut self, correlation: &ByteString, peer: &ByteString) -> Option<&mut CallEvents> {
        self.requests.get_mut(correlation).filter(|request| request.to == *peer)?.events.as_mut()
    }

    fn ack_push(&mut self, push: &Push) {
        match push.tag.filter(|_| self.terms.version >= 2) {
            Some(tag) => self.acks.push(tag),
            None => self.frames.push(ClientFrame::Ack { id: push.envelope.id.clone() }),
        }
    }

    fn receive_refusal(&mut self, refusal: Refusal) {
        let Refusal { reason, id, code } = refusal;
        let Some(id) = id else {
            tracing::warn!(code = code.map(ErrorCode::code), reason, "the broker complained");
            return self.receive_complaint(code, reason);
        };
        let error = BrokerError::Rejected { code, reason, id: Some(MsgId::from(id.clone())) };
        if let Some(request) = self.requests.remove(&id) {
            request.end(Err(error.clone()));
        }
        self.asked.refused(&id, &error);
        if let Some(delivery) = self.outstanding.take(&id) {
            if code == Some(ErrorCode::NotYourRequest) {
                self.unplaced.keep(&delivery);
            }
            self.postponed.keep(delivery, code).into_iter().for_each(|delivery| give_up(delivery, error.clone()));
        }
    }

    /// About the connection as a whole. Replies go to whoever has the mailbox, so nobody need wait for them here.
    fn receive_complaint(&mut self, code: Option<ErrorCode>, reason: String) {
        let error = BrokerError::Auth { code, reason };
        match code {
            Some(ErrorCode::Displaced) => {
                self.end_requests(&error);
                self.displaced = Some(error);
            }
            Some(ErrorCode::CredentialExpired | ErrorCode::CredentialRevoked) => self.close(error),
            _ => {}
        }
    }

    fn receive_ack_result(&mut self, result: AckResult) {
        if let Some(asked) = self.ack_results.remove(&result.request_id) {
            let outcome = if result.accepted {
                Ok(())
            } else {
                let reason = result.reason.unwrap_or_default();
                Err(BrokerError::Rejected { code: None, reason, id: Some(MsgId::from(result.id)) })
            };
            asked.send(outcome).ok();
        }
    }
}
