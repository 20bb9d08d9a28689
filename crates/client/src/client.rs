//! One agent's connection to the bus.

use crate::error::{BrokerError, BrokerResult};
use crate::link::{self, Destination};
use crate::mux::MultiplexedClient;
use crate::options::ClientOptions;
use crate::outstanding::OutstandingDelivery;
use crate::session::{LiveEvent, Session};
use crate::shared::Shared;
use crate::supervisor;
use bytestring::ByteString;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::DuplexStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use toolbus_protocol::{AgentRef, Body, ClientFrame, Event, InboxKind, InboxMessage, MsgId, check_name};

/// How a message is to be sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct SendOptions {
    /// How long the message is worth delivering.
    pub deadline: Option<Duration>,
}

/// Delivers to other agents' mailboxes and receives from its own. Survives lost connections: what has no receipt is
/// sent again under the same id, and the subscription is renewed.
pub struct BrokerClient {
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: ClientOptions,
    me: AgentRef,
    task: Option<JoinHandle<()>>,
}

impl BrokerClient {
    pub async fn connect(endpoint: &str, agent: AgentRef, token: &str) -> BrokerResult<Self> {
        Self::connect_with(endpoint, agent, token, ClientOptions::default()).await
    }

    /// Fails if the first connection can't be made; later losses are mended in the background.
    pub async fn connect_with(
        endpoint: &str,
        agent: AgentRef,
        token: &str,
        options: ClientOptions,
    ) -> BrokerResult<Self> {
        Self::connect_to(Destination::new(endpoint, agent.clone(), token)?, agent, options).await
    }

    /// Connects over a pipe to a broker in the same process. When the connection ends, so does the client.
    pub async fn connect_over(stream: DuplexStream, agent: AgentRef, options: ClientOptions) -> BrokerResult<Self> {
        let pipe = std::sync::Mutex::new(Some(stream));
        let once = move || {
            let pipe = pipe.lock().ok().and_then(|mut pipe| pipe.take());
            pipe.ok_or_else(|| BrokerError::Transport("the pipe was used up".into()))
        };
        Self::connect_local(once, agent, ClientOptions { reconnect: false, ..options }).await
    }

    /// Connects to a broker in the same process, over a new pipe whenever the connection was lost.
    pub async fn connect_local(
        pipes: impl Fn() -> BrokerResult<DuplexStream> + Send + Sync + 'static,
        agent: AgentRef,
        options: ClientOptions,
    ) -> BrokerResult<Self> {
        Self::connect_to(Destination::within_process(agent.clone(), Arc::new(pipes)), agent, options).await
    }

    async fn connect_to(destination: Destination, agent: AgentRef, options: ClientOptions) -> BrokerResult<Self> {
        let link = link::connect(&destination, &options).await?;
        let agent = link.agent.clone().unwrap_or(agent);
        let shared = Shared::new(Session::new(agent.clone()), options.max_outstanding);
        shared.lock().connected(link.terms);
        let task = tokio::spawn(supervisor::run(link, destination, options.clone(), Arc::clone(&shared)));
        Ok(Self { shared, options, me: agent, task: Some(task) })
    }

    /// Who this client is, as the broker says: the name and the role come with the credential.
    pub fn me(&self) -> AgentRef {
        self.me.clone()
    }

    /// Whether a connection stands right now.
    pub fn reader_alive(&self) -> bool {
        self.shared.lock().is_connected()
    }

    /// Starts receiving: first what was pushed and never acknowledged, then what waits, then what arrives.
    pub async fn subscribe(&self) -> BrokerResult<()> {
        self.shared.change(|session| {
            session.wants_mailbox = true;
            session.displaced = None;
            session.send(ClientFrame::Subscribe);
        });
        self.check_open()
    }

    /// Sends a message and waits for the receipt: it is safe then, whatever happens. Several deliveries can be on
    /// their way at once; giving up the wait does not take the message back.
    pub async fn deliver(&self, to: &str, message: InboxMessage) -> BrokerResult<MsgId> {
        self.deliver_with(to, message, SendOptions::default()).await
    }

    pub async fn deliver_with(&self, to: &str, message: InboxMessage, send: SendOptions) -> BrokerResult<MsgId> {
        let id = message.id.clone();
        let (sender, receipt) = oneshot::channel();
        self.start_delivery(to, &message, send, None, Some(sender)).await?;
        self.await_receipt(receipt).await?;
        Ok(id)
    }

    /// Like [`BrokerClient::deliver_with`], without waiting until it is safe: it is sent again after a reconnect if need
    /// be. Messages leave in the order of these calls.
    pub async fn deliver_nowait(&self, to: &str, message: InboxMessage, send: SendOptions) -> BrokerResult<MsgId> {
        self.start_delivery(to, &message, send, None, None).await?;
        Ok(message.id)
    }

    /// Answers a received message and acknowledges it, as one step: a crash leaves both or neither. The reply expires an
    /// hour after the deadline of its request.
    pub async fn reply(&self, request: &InboxMessage, kind: impl Into<InboxKind>, body: Body) -> BrokerResult<MsgId> {
        let (sender, receipt) = oneshot::channel();
        let id = self.start_reply(request, kind, body, Some(sender)).await?;
        self.await_receipt(receipt).await?;
        Ok(id)
    }

    /// Like [`BrokerClient::reply`], without waiting until it is safe: it is sent again after a reconnect if need be.
    pub async fn reply_nowait(
        &self,
        request: &InboxMessage,
        kind: impl Into<InboxKind>,
        body: Body,
    ) -> BrokerResult<()> {
        self.start_reply(request, kind, body, None).await?;
        Ok(())
    }

    /// Like [`BrokerClient::reply`], with a reply of the caller's making: sent again under its id, on this connection or
    /// another, it still counts once.
    pub async fn reply_message(&self, request: &InboxMessage, reply: &InboxMessage) -> BrokerResult<()> {
        let (sender, receipt) = oneshot::channel();
        self.send_reply(request, reply, Some(sender)).await?;
        self.await_receipt(receipt).await
    }

    /// Like [`BrokerClient::reply_message`], without waiting until it is safe: it is sent again after a reconnect if need
    /// be.
    pub async fn reply_message_nowait(&self, request: &InboxMessage, reply: &InboxMessage) -> BrokerResult<()> {
        self.send_reply(request, reply, None).await
    }

    /// Whether the broker takes such a message, as far as that is known before it is sent.
    pub fn check_message(&self, message: &InboxMessage) -> BrokerResult<()> {
        self.shared.lock().terms.check(message)
    }

    async fn start_reply(
        &self,
        request: &InboxMessage,
        kind: impl Into<InboxKind>,
        body: Body,
        receipt: Option<ReceiptSender>,
    ) -> BrokerResult<MsgId> {
        let reply = InboxMessage::new(self.me(), kind, body).correlated_to(request.id.clone());
        self.send_reply(request, &reply, receipt).await?;
        Ok(reply.id)
    }

    /// A reply to a request with a deadline has one too.
    async fn send_reply(
        &self,
        request: &InboxMessage,
        reply: &InboxMessage,
        receipt: Option<ReceiptSender>,
    ) -> BrokerResult<()> {
        let send = SendOptions { deadline: self.shared.lock().reply_deadline(&request.id) };
        self.start_delivery(&request.from.session_id, reply, send, Some(&request.id), receipt).await
    }

    pub(crate) async fn start_delivery(
        &self,
        to: &str,
        message: &InboxMessage,
        send: SendOptions,
        settles: Option<&MsgId>,
        receipt: Option<ReceiptSender>,
    ) -> BrokerResult<()> {
        for name in [to, message.id.as_str()] {
            check_name(name).map_err(|error| BrokerError::Address(format!("{name:?}: {error}")))?;
        }
        let slot = match Arc::clone(&self.shared.slots).try_acquire_owned() {
            Ok(slot) => slot,
            Err(_) => Arc::clone(&self.shared.slots).acquire_owned().await.map_err(|_| BrokerError::Closed)?,
        };
        let envelope = message.seal();
        self.shared.change(|session| {
            if let Some(closed) = &session.closed {
                return Err(closed.clone());
            }
            session.terms.check(message)?;
            let settles = settles.map(|id| session.settle_with_reply(id));
            session.deliver(OutstandingDelivery {
                to: ByteString::from(to),
                envelope,
                deadline: send.deadline.map(|limit| Instant::now() + limit),
                settles,
                receipt,
                _slot: Some(slot),
            });
            Ok(())
        })
    }

    pub(crate) async fn await_receipt(&self, receipt: oneshot::Receiver<BrokerResult<()>>) -> BrokerResult<()> {
        let limit = self.options.receipt_timeout;
        match tokio::time::timeout(limit, receipt).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(BrokerError::Closed),
            Err(_) => Err(BrokerError::Timeout(limit)),
        }
    }

    /// The next message of the mailbox; `None` when the client is closed or another subscriber took over, which
    /// [`BrokerClient::end_reason`] tells apart.
    pub async fn next_message(&self) -> Option<InboxMessage> {
        self.next(|session| session.inbox.pop_front(), |session| session.displaced.is_some()).await
    }

    /// When a message that was received and not acknowledged yet stops being worth the work, if its sender said so.
    pub fn deadline_of(&self, id: &MsgId) -> Option<Instant> {
        self.shared.lock().deadline_of(id)
    }

    /// How often a message that was received and not acknowledged yet was delivered so far.
    pub fn attempt_of(&self, id: &MsgId) -> Option<u32> {
        self.shared.lock().attempt_of(id)
    }

    /// Waits for a connection other than the one with that number, and returns its number; the first is 1. `None` when
    /// the client is closed.
    pub async fn next_connection(&self, seen: u64) -> Option<u64> {
        self.next(|session| (session.is_connected() && session.epoch != seen).then_some(session.epoch), |_| false).await
    }

    /// Whether the client is closed for good: by its owner, or because it gave up on the broker.
    pub fn is_closed(&self) -> bool {
        self.shared.lock().closed.is_some()
    }

    /// Why nothing comes any more, once that is so.
    pub fn end_reason(&self) -> Option<BrokerError> {
        self.shared.lock().end_reason()
    }

    /// Waits until the client is closed for good, and says why.
    pub async fn closed(&self) -> BrokerError {
        self.next(|session| session.closed.clone(), |_| false).await.unwrap_or(BrokerError::Closed)
    }

    /// The next request to abandon work.
    pub async fn next_cancel(&self) -> Option<MsgId> {
        self.next(|session| session.cancels.pop_front(), |_| false).await
    }

    pub async fn next_event(&self) -> Option<LiveEvent> {
        self.next(|session| session.events.pop_front(), |_| false).await
    }

    async fn next<T>(
        &self,
        mut take: impl FnMut(&mut Session) -> Option<T>,
        over: impl Fn(&Session) -> bool,
    ) -> Option<T> {
        let mut inspect = || {
            let mut session = self.shared.lock();
            let was_full = session.inbox.len() >= self.options.max_inbox;
            let item = take(&mut session);
            let ended = session.closed.is_some() || over(&session);
            drop(session);
            if was_full && item.is_some() {
                self.shared.ring();
            }
            match item {
                Some(item) => Some(Some(item)),
                None => ended.then_some(None),
            }
        };
        loop {
            // Mostly there is something; only who finds nothing has to sign up to be woken, and look once more.
            if let Some(found) = inspect() {
                return found;
            }
            let mut arrived = std::pin::pin!(self.shared.arrivals.notified());
            arrived.as_mut().enable();
            if let Some(found) = inspect() {
                return found;
            }
            arrived.await;
        }
    }

    /// Processed, forget it. Not waited for: a crash right now may bring the message once more.
    pub async fn ack(&self, id: MsgId) -> BrokerResult<()> {
        self.shared.change(|session| session.ack(&id));
        self.check_open()
    }

    /// Acknowledges and waits until that is durable: the message never comes again.
    pub async fn ack_confirmed(&self, id: MsgId) -> BrokerResult<()> {
        let request_id = MsgId::new().into_inner();
        let (sender, outcome) = oneshot::channel();
        self.shared.change(|session| {
            session.forget_received(&id);
            if session.is_connected() {
                session.ack_results.insert(request_id.clone(), sender);
                session.send(ClientFrame::AckWithReceipt { id: id.into_inner(), request_id });
            }
        });
        self.await_answer(outcome).await?
    }

    /// Takes back the message of that id that this agent sent to `to`, if it is still queued. Otherwise asks `to` to
    /// abandon the work that belongs to that id. Best effort, not stored.
    pub async fn cancel(&self, to: &str, correlation_id: &MsgId) -> BrokerResult<()> {
        let (to, id) = (ByteString::from(to), correlation_id.clone().into_inner());
        self.shared.change(|session| session.cancel(to, id));
        self.check_open()
    }

    /// A live event for whoever waits for that call: ordered, but dropped when nobody is there or too slow.
    pub async fn publish_event(&self, to: &str, correlation_id: &MsgId, body: Body) -> BrokerResult<()> {
        let correlation_id = correlation_id.clone().into_inner();
        let event = ClientFrame::Event(Event { peer: ByteString::from(to), correlation_id, body });
        self.shared.change(|session| {
            if session.terms.version >= 2 {
                session.send(event);
            }
        });
        self.check_open()
    }

    /// Who of this role is connected now.
    pub async fn list_connected(&self, role: &str) -> BrokerResult<Vec<String>> {
        let (sender, answer) = oneshot::channel();
        self.shared.change(|session| {
            // Answers come in the order of the questions: one that isn't asked must not wait among them.
            if session.is_connected() {
                session.presence.push_back(sender);
                session.send(ClientFrame::ListConnected { role: ByteString::from(role) });
            }
        });
        let ids = self.await_answer(answer).await?;
        Ok(ids.into_iter().map(|id| id.to_string()).collect())
    }

    pub(crate) async fn await_answer<T>(&self, answer: oneshot::Receiver<T>) -> BrokerResult<T> {
        let limit = self.options.receipt_timeout;
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => {
                let no_connection = || BrokerError::Transport("there is no connection to bring the answer".into());
                Err(self.shared.lock().closed.clone().unwrap_or_else(no_connection))
            }
            Err(_) => Err(BrokerError::Timeout(limit)),
        }
    }

    fn check_open(&self) -> BrokerResult<()> {
        self.shared.lock().closed.clone().map_or(Ok(()), Err)
    }

    /// Turns the connection into one for many requests at a time.
    pub fn into_multiplexed(self) -> MultiplexedClient {
        MultiplexedClient::new(self)
    }

    /// Sends what waits and closes the connection. What has no receipt by then is given up.
    pub async fn close(mut self) {
        self.shared.change(|session| session.close(BrokerError::Closed));
        if let Some(task) = self.task.take() {
            // Bounded: a broker that doesn't take our goodbye is left without one.
            tokio::time::timeout(Duration::from_secs(2), task).await.ok();
        }
    }
}

impl Drop for BrokerClient {
    fn drop(&mut self) {
        self.shared.change(|session| session.close(BrokerError::Closed));
    }
}

type ReceiptSender = oneshot::Sender<BrokerResult<()>>;
