//! A client without a connection, for the simulation: the session of a [`crate::BrokerClient`], and the calls of a
//! [`crate::MultiplexedClient`] on it. Time, frames and the moments at which messages are taken come from the caller.

use crate::BrokerResult;
use crate::deliver::NewDelivery;
use crate::options::Resend;
use crate::pending::CallEnd;
use crate::reply_guard::ReplySettled;
use crate::session::Session;
use crate::signals::Cancellation;
use crate::terms::Terms;
use crate::withdraw::PendingWithdrawal;
use bytestring::ByteString;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use toolbus_protocol::{
    AgentRef, BrokerFrame, CancelOutcome, ClientFrame, Framing, InboxMessage, JournalClaim, MsgId, PROTOCOL_VERSION,
};

pub use crate::planted::PlantedBug;

const TERMS: Terms = Terms { version: PROTOCOL_VERSION, framing: Framing::Compact, max_frame_bytes: None };

/// A client whose connection is simulated.
pub struct SimulatedClient {
    session: Session,
    calls: BTreeMap<ByteString, oneshot::Receiver<CallEnd>>,
    withdrawals: BTreeMap<ByteString, oneshot::Receiver<CancelOutcome>>,
    settled: Arc<Mutex<Vec<ReplySettled>>>,
}

impl SimulatedClient {
    /// A client that is not connected yet.
    pub fn new(name: &str, now: Instant, planted: Option<PlantedBug>) -> Self {
        let mut session = Session::new(AgentRef::new(name), now);
        // A client exists only after its first handshake.
        (session.terms, session.planted) = (TERMS, planted);
        Self { session, calls: BTreeMap::new(), withdrawals: BTreeMap::new(), settled: Arc::default() }
    }

    /// Serves the mailbox as a host does: claims it for a journal, and gets the ends of its replies.
    pub fn serve(&mut self, claim: JournalClaim) {
        self.session.claim_mailbox(claim);
        self.session.subscribe();
        let settled = Arc::clone(&self.settled);
        self.session.reply_listener =
            Some(Arc::new(move |reply| settled.lock().unwrap_or_else(PoisonError::into_inner).push(reply)));
    }

    /// Makes calls as a worker does.
    pub fn multiplex(&mut self) {
        self.session.multiplex();
    }

    /// Sets the time; to be called before every use.
    pub fn set_time(&mut self, now: Instant) {
        self.session.now = now;
    }

    /// A connection was established.
    pub fn connected(&mut self) {
        self.session.connected(TERMS);
    }

    /// The connection was lost.
    pub fn disconnected(&mut self) {
        self.session.disconnected();
    }

    /// A frame arrived.
    pub fn receive(&mut self, frame: BrokerFrame) {
        self.session.receive(frame);
    }

    /// The frames to send. Acknowledgements wait for other frames, unless they are flushed.
    pub fn frames(&mut self, flush_acks: bool) -> Vec<ClientFrame> {
        let mut frames = Vec::new();
        self.session.take_frames(flush_acks, &mut frames);
        frames
    }

    /// Sends replies again that the broker had no room for, if it is time.
    pub fn retry(&mut self) {
        if self.session.is_connected() && self.session.postponed.due().is_some_and(|due| due <= self.session.now) {
            self.session.send_postponed();
        }
    }

    /// Whether everything that was sent has a receipt, and nothing waits to be sent.
    pub fn is_idle(&self) -> bool {
        let is_waiting = self.session.has_frames() || self.session.has_pending_acks();
        !is_waiting && self.session.outstanding.ids().next().is_none() && self.session.inbox.is_empty()
    }

    /// What keeps it from being idle.
    pub fn remaining_work(&self) -> String {
        let session = &self.session;
        let sent: Vec<String> = session.outstanding.ids().map(|id| id.to_string()).collect();
        format!(
            "no receipt for [{}], {} messages not taken, frames to send: {}, acknowledgements to send: {}",
            sent.join(", "),
            session.inbox.len(),
            session.has_frames(),
            session.has_pending_acks()
        )
    }

    /// Whether another connection took over the mailbox.
    pub fn is_displaced(&self) -> bool {
        self.session.displaced.is_some()
    }

    /// The next message for the application.
    pub fn next_message(&mut self) -> Option<InboxMessage> {
        self.session.inbox.pop_front()
    }

    /// The next cancel for the application.
    pub fn next_cancellation(&mut self) -> Option<Cancellation> {
        self.session.cancels.pop_front()
    }

    /// The number of deliveries of a received message, the time until its deadline, and whether another journal may have
    /// started it.
    pub fn delivery_of(&self, id: &MsgId) -> (u32, Option<Duration>, bool) {
        let left = self.session.deadline_of(id).map(|at| at.saturating_duration_since(self.session.now));
        (self.session.attempt_of(id).unwrap_or(1), left, self.session.is_unsure(id))
    }

    /// Acknowledges a received message.
    pub fn ack(&mut self, id: &MsgId) {
        self.session.ack(id);
    }

    /// Answers a received message and acknowledges it.
    pub fn reply(&mut self, to: &str, request: &MsgId, reply: &InboxMessage, resend: Resend) -> BrokerResult<()> {
        self.deliver_new(to, reply, None, Some((request, resend)))
    }

    /// The ends of replies since the last call.
    pub fn settled(&mut self) -> Vec<ReplySettled> {
        std::mem::take(&mut self.settled.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends a message.
    pub fn deliver(&mut self, to: &str, message: &InboxMessage, limit: Duration) -> BrokerResult<()> {
        self.deliver_new(to, message, Some(limit), None)
    }

    /// Starts a call.
    pub fn call(&mut self, to: &str, message: &InboxMessage, limit: Duration) -> BrokerResult<()> {
        let id = message.id.clone().into_inner();
        let outcome = self.session.open_request(to.into(), &id, false)?;
        self.calls.insert(id, outcome);
        self.deliver(to, message, limit)
    }

    /// The outcome of a call, once.
    pub fn outcome(&mut self, id: &ByteString) -> Option<BrokerResult<InboxMessage>> {
        let end = self.calls.get_mut(id)?.try_recv().ok()?;
        self.calls.remove(id);
        end.outcome
    }

    /// Asks to cancel a call, and waits for its reply.
    pub fn cancel(&mut self, to: &str, id: &ByteString) {
        self.session.cancel(to.into(), id.clone());
    }

    /// Withdraws a call. The outcome is returned by [`SimulatedClient::withdrawn`].
    pub fn withdraw(&mut self, to: &str, id: &ByteString) -> BrokerResult<()> {
        let (sender, outcome) = oneshot::channel();
        self.withdrawals.insert(id.clone(), outcome);
        let request_id = ByteString::from(format!("withdraw-{id}"));
        self.session.withdraw(request_id, PendingWithdrawal { to: to.into(), id: id.clone(), sender })
    }

    /// Whether the host certainly never receives a withdrawn call, once that is known.
    pub fn withdrawn(&mut self, id: &ByteString) -> Option<bool> {
        let outcome = self.withdrawals.get_mut(id)?.try_recv().ok()?;
        self.withdrawals.remove(id);
        Some(outcome == CancelOutcome::Withdrawn)
    }

    /// Stops waiting for a call, and cancels it.
    pub fn abandon(&mut self, to: &str, id: &ByteString) {
        if self.calls.remove(id).is_some() {
            self.session.abandon_request(to.into(), id.clone());
        }
    }

    /// Stops waiting for a call, which goes on.
    pub fn detach(&mut self, id: &ByteString) {
        if self.calls.remove(id).is_some() {
            self.session.detach_request(id);
        }
    }

    fn deliver_new(
        &mut self,
        to: &str,
        message: &InboxMessage,
        limit: Option<Duration>,
        answers: Option<(&MsgId, Resend)>,
    ) -> BrokerResult<()> {
        let envelope = message.seal();
        self.session.start_delivery(NewDelivery { to, message, envelope, limit, answers, receipt: None, slot: None })
    }
}
