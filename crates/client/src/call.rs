//! A request in flight: its events as they arrive, then the reply.

use crate::client::BrokerClient;
use crate::options::SendOptions;
use crate::pending::{CallEnd, CallEvent, CallEvents};
use crate::session::Session;
use crate::shared::Shared;
use crate::{BrokerError, BrokerResult};
use bytestring::ByteString;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use toolbus_protocol::{Body, ErrorCode, InboxMessage, MsgId};

/// An event or the reply of a call, in order of arrival. Callers match on it immediately and do not store it, so the
/// size of the variants does not matter.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub enum CallItem {
    /// A live or stored event.
    Event(Body),
    /// The reply or the error that ends the call; always the last item.
    Reply(BrokerResult<InboxMessage>),
}

/// A call in flight. Dropping it before the reply cancels it at the recipient.
pub struct Call {
    open: OpenRequest,
    outcome: oneshot::Receiver<CallEnd>,
    /// Set when the reply has arrived.
    end: Option<CallEnd>,
    deadline: Instant,
    timeout: Duration,
    receipt_timeout: Duration,
    wants_events: bool,
}

impl Call {
    /// Sends the request. With `wants_events`, its events are queued for [`Call::next`]; without, they are handled like
    /// events that belong to no call.
    pub(crate) async fn start(
        client: &BrokerClient,
        to: &str,
        message: &InboxMessage,
        timeout: Duration,
        wants_events: bool,
    ) -> BrokerResult<Self> {
        let deadline = Instant::now() + timeout;
        let (id, to_name) = (message.id.clone().into_inner(), ByteString::from(to));
        let outcome = client.shared.lock().open_request(to_name.clone(), &id, wants_events)?;
        let open = OpenRequest { shared: Arc::clone(&client.shared), to: to_name, id, sent: false, settled: false };
        let receipt_timeout = client.options.receipt_timeout;
        let mut call = Self { open, outcome, end: None, deadline, timeout, receipt_timeout, wants_events };
        let send = SendOptions { deadline: Some(timeout) };
        // No receipt is awaited: the reply implies it, and a rejection is delivered to the pending request too.
        let sending = client.start_delivery(to, message, send, None, None);
        tokio::time::timeout_at(deadline, sending).await.unwrap_or(Err(BrokerError::Timeout(timeout)))?;
        call.open.sent = true;
        Ok(call)
    }

    /// The call's id; events and the reply carry it as their correlation id.
    pub fn id(&self) -> MsgId {
        MsgId::from(self.open.id.clone())
    }

    /// Waits until the request is durable or acknowledged. Fails if it was refused or removed before. Cancellation-safe,
    /// and costs no frame: the broker sends the receipt anyway, and the reply implies it.
    pub async fn receipt(&mut self) -> BrokerResult<()> {
        let waiting = self.open.shared.lock().outstanding.await_receipt(&self.open.id);
        if let Some(receipt) = waiting {
            let limit = self.receipt_timeout;
            let outcome = tokio::time::timeout(limit, receipt).await.map_err(|_| BrokerError::Timeout(limit))?;
            return outcome.unwrap_or(Err(BrokerError::Closed));
        }
        if let Ok(end) = self.outcome.try_recv() {
            self.open.settled = true;
            self.end = Some(end);
        }
        match self.end.as_ref().and_then(|end| end.outcome.as_ref()) {
            Some(Err(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Number of live events dropped because the caller read them too slowly.
    pub fn dropped_events(&self) -> u64 {
        match &self.end {
            Some(end) => end.events.dropped,
            None => self.open.shared.lock().call_events(&self.open.id).map_or(0, |events| events.dropped),
        }
    }

    /// Withdraws the request if it is still queued; the call then ends with [`ErrorCode::Cancelled`]. Otherwise asks
    /// the recipient to abandon the work, and the call still waits for its reply.
    pub fn cancel(&self) {
        let (to, id) = (self.open.to.clone(), self.open.id.clone());
        self.open.shared.change(|session| session.cancel(to, id));
    }

    /// Stops waiting for the reply without cancelling the request.
    pub fn detach(mut self) {
        self.set_detached();
    }

    /// The same for a call that is dropped later.
    pub fn set_detached(&mut self) {
        if std::mem::replace(&mut self.open.settled, true) {
            return;
        }
        self.open.shared.change(|session| session.detach_request(&self.open.id));
    }

    /// Returns the next event, then the reply once, then `None`. Cancellation-safe.
    pub async fn next(&mut self) -> Option<CallItem> {
        let waiting = tokio::time::timeout_at(self.deadline, poll_fn(|cx| self.poll_next(cx)));
        match waiting.await {
            Ok(item) => item,
            Err(_) => Some(CallItem::Reply(Err(self.time_out()))),
        }
    }

    /// Waits for the reply and discards events.
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
                Poll::Ready(Err(_)) => self.end = Some(end_with(Err(BrokerError::Closed))),
                Poll::Pending if !self.wants_events => return Poll::Pending,
                // A steady stream of events must not keep a call alive past its deadline.
                Poll::Pending if Instant::now() >= self.deadline => {
                    return Poll::Ready(Some(CallItem::Reply(Err(self.time_out()))));
                }
                Poll::Pending => return self.open.poll_event(cx).map(|body| Some(CallItem::Event(body))),
            }
        }
        Poll::Ready(self.next_after_end())
    }

    /// After the reply has arrived: the events queued before it come first.
    fn next_after_end(&mut self) -> Option<CallItem> {
        let end = self.end.as_mut()?;
        if let Some(event) = end.events.pop() {
            return Some(CallItem::Event(self.open.shared.change(|session| consume_event(session, event))));
        }
        let outcome = match end.outcome.take()? {
            // The broker's clock may reach the deadline before ours.
            Err(error) if error.code() == Some(ErrorCode::Expired) => {
                self.open.settled = false;
                Err(self.time_out())
            }
            outcome => outcome,
        };
        Some(CallItem::Reply(outcome))
    }

    fn time_out(&mut self) -> BrokerError {
        self.open.abandon();
        let left = self.end.take();
        self.end = Some(end_taken());
        self.open.acknowledge_rest(left.map(|end| end.events));
        BrokerError::Timeout(self.timeout)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.open.acknowledge_rest(self.end.take().map(|end| end.events));
    }
}

/// A request registered in the session. Dropping it before it is settled removes it there and cancels it at the
/// recipient.
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
                Some(event) => Poll::Ready(consume_event(session, event)),
                None => {
                    events.set_waker(cx.waker());
                    Poll::Pending
                }
            }
        })
    }

    fn abandon(&mut self) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        self.shared.change(|session| match self.sent {
            true => session.abandon_request(self.to.clone(), self.id.clone()),
            false => session.detach_request(&self.id),
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

/// Acknowledges a stored event as soon as the caller has it.
fn consume_event(session: &mut Session, event: CallEvent) -> Body {
    event.stored.into_iter().for_each(|settles| session.ack_settles(settles));
    event.body
}

fn end_with(outcome: BrokerResult<InboxMessage>) -> CallEnd {
    CallEnd { outcome: Some(outcome), events: CallEvents::default() }
}

fn end_taken() -> CallEnd {
    CallEnd { outcome: None, events: CallEvents::default() }
}
