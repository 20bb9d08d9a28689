//! A request with everything that comes back for it: events as they arrive, then the reply.

use crate::client::{BrokerClient, SendOptions};
use crate::error::{BrokerError, BrokerResult};
use crate::pending::{CallEnd, CallEvent, CallEvents, PendingRequest};
use crate::session::Session;
use crate::shared::Shared;
use bytestring::ByteString;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use toolbus_protocol::{Body, ErrorCode, InboxMessage, MsgId};

/// What comes back for a call, in the order in which it came. It is looked at and taken apart at once, so its size does
/// not matter.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub enum CallItem {
    Event(Body),
    /// The last item.
    Reply(BrokerResult<InboxMessage>),
}

/// A call under way. Dropping it before its reply forgets it here and cancels it there.
pub struct Call {
    open: OpenRequest,
    outcome: oneshot::Receiver<CallEnd>,
    /// Set when the reply is here.
    end: Option<CallEnd>,
    deadline: Instant,
    timeout: Duration,
    wants_events: bool,
}

impl Call {
    /// Sends the request. Events are kept for [`Call::next`] only if they are wanted; otherwise they go where events go
    /// that belong to no call.
    pub(crate) async fn start(
        client: &BrokerClient,
        to: &str,
        message: &InboxMessage,
        timeout: Duration,
        wants_events: bool,
    ) -> BrokerResult<Self> {
        let deadline = Instant::now() + timeout;
        let (reply, outcome) = oneshot::channel();
        let (id, to_name) = (message.id.clone().into_inner(), ByteString::from(to));
        let events = wants_events.then(CallEvents::default);
        {
            let mut session = client.shared.lock();
            if let Some(end) = session.end_reason() {
                return Err(end);
            }
            if session.requests.contains_key(&id) {
                let reason = "a request with this id is under way".to_owned();
                let id = Some(message.id.clone());
                return Err(BrokerError::Rejected { code: Some(ErrorCode::IdConflict), reason, id });
            }
            session.requests.insert(id.clone(), PendingRequest { to: to_name.clone(), reply, events });
        }
        let open = OpenRequest { shared: Arc::clone(&client.shared), to: to_name, id, sent: false, settled: false };
        let mut call = Self { open, outcome, end: None, deadline, timeout, wants_events };
        let send = SendOptions { deadline: Some(timeout) };
        // The receipt is of no interest: the reply implies it, and a refusal reaches the request as well.
        let sending = client.start_delivery(to, message, send, None, None);
        tokio::time::timeout_at(deadline, sending).await.unwrap_or(Err(BrokerError::Timeout(timeout)))?;
        call.open.sent = true;
        Ok(call)
    }

    /// The call's id, which its events and its reply carry.
    pub fn id(&self) -> MsgId {
        MsgId::from(self.open.id.clone())
    }

    /// Live events that were dropped because they were not taken in time.
    pub fn dropped_events(&self) -> u64 {
        match &self.end {
            Some(end) => end.events.dropped,
            None => self.open.shared.lock().call_events(&self.open.id).map_or(0, |events| events.dropped),
        }
    }

    /// Takes the request back if it is still queued: then the call ends with [`ErrorCode::Cancelled`]. Otherwise asks the
    /// other end to abandon the work, and the call still waits for its reply.
    pub fn cancel(&self) {
        let (to, id) = (self.open.to.clone(), self.open.id.clone());
        self.open.shared.change(|session| session.cancel(to, id));
    }

    /// Leaves the request to itself: nobody waits for its reply any more, and it is not called off.
    pub fn detach(mut self) {
        self.open.settled = true;
        let id = self.open.id.clone();
        self.open.shared.change(|session| {
            let forgotten = session.requests.remove(&id);
            session.acknowledge_events(forgotten.and_then(|request| request.events));
        });
    }

    /// The next event, and in the end the reply, once. Giving up the wait loses nothing.
    pub async fn next(&mut self) -> Option<CallItem> {
        let waiting = tokio::time::timeout_at(self.deadline, poll_fn(|cx| self.poll_next(cx)));
        match waiting.await {
            Ok(item) => item,
            Err(_) => Some(CallItem::Reply(Err(self.time_is_up()))),
        }
    }

    /// Waits for the reply alone.
    pub async fn reply(mut self) -> BrokerResult<InboxMessage> {
        loop {
            match self.next().await {
                Some(CallItem::Event(_)) => {}
                Some(CallItem::Reply(outcome)) => return outcome,
                None => return Err(BrokerError::Closed),
            }
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<CallItem>> {
        if self.end.is_none() {
            match Pin::new(&mut self.outcome).poll(cx) {
                Poll::Ready(Ok(end)) => {
                    self.open.settled = true;
                    self.end = Some(end);
                }
                Poll::Ready(Err(_)) => self.end = Some(ended(Err(BrokerError::Closed))),
                Poll::Pending if !self.wants_events => return Poll::Pending,
                // Events must not keep a call alive past its time.
                Poll::Pending if Instant::now() >= self.deadline => {
                    return Poll::Ready(Some(CallItem::Reply(Err(self.time_is_up()))));
                }
                Poll::Pending => return self.open.poll_event(cx).map(|body| Some(CallItem::Event(body))),
            }
        }
        Poll::Ready(self.next_of_the_rest())
    }

    /// The reply is here: first come the events that were here before it.
    fn next_of_the_rest(&mut self) -> Option<CallItem> {
        let end = self.end.as_mut()?;
        if let Some(event) = end.events.pop() {
            return Some(CallItem::Event(self.open.shared.change(|session| hand_out(session, event))));
        }
        let outcome = match end.outcome.take()? {
            // The broker's clock may be the first to say that the time is up.
            Err(error) if error.code() == Some(ErrorCode::Expired) => {
                self.open.settled = false;
                Err(self.time_is_up())
            }
            outcome => outcome,
        };
        Some(CallItem::Reply(outcome))
    }

    fn time_is_up(&mut self) -> BrokerError {
        self.open.abandon();
        let left = self.end.take();
        self.end = Some(ended_for_good());
        self.open.acknowledge_rest(left.map(|end| end.events));
        BrokerError::Timeout(self.timeout)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.open.acknowledge_rest(self.end.take().map(|end| end.events));
    }
}

/// A request that the session knows of. One that nobody waits for any more is forgotten here and cancelled there.
struct OpenRequest {
    shared: Arc<Shared>,
    to: ByteString,
    id: ByteString,
    sent: bool,
    settled: bool,
}

impl OpenRequest {
    fn poll_event(&self, cx: &Context<'_>) -> Poll<Body> {
        self.shared.change(|session| {
            let Some(events) = session.call_events(&self.id) else { return Poll::Pending };
            match events.pop() {
                Some(event) => Poll::Ready(hand_out(session, event)),
                None => {
                    events.wake_later(cx.waker());
                    Poll::Pending
                }
            }
        })
    }

    fn abandon(&mut self) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        let (to, correlation_id) = (self.to.clone(), self.id.clone());
        self.shared.change(|session| {
            let forgotten = session.requests.remove(&correlation_id);
            session.acknowledge_events(forgotten.and_then(|request| request.events));
            if self.sent {
                session.cancel(to, correlation_id);
            }
        });
    }

    fn acknowledge_rest(&self, events: Option<CallEvents>) {
        if let Some(events) = events.filter(|events| !events.is_empty()) {
            self.shared.change(|session| session.acknowledge_events(Some(events)));
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// A stored event is done with as soon as its reader has it.
fn hand_out(session: &mut Session, event: CallEvent) -> Body {
    event.stored.into_iter().for_each(|settles| session.ack_settles(settles));
    event.body
}

fn ended(outcome: BrokerResult<InboxMessage>) -> CallEnd {
    CallEnd { outcome: Some(outcome), events: CallEvents::default() }
}

fn ended_for_good() -> CallEnd {
    CallEnd { outcome: None, events: CallEvents::default() }
}
