//! One agent's connection to the bus.

use crate::connection::{self, Destination};
use crate::deliver::NewDelivery;
use crate::mux::MultiplexedClient;
use crate::options::{ClientOptions, Resend, SendOptions};
use crate::reply_guard::ReplyListener;
use crate::session::Session;
use crate::shared::Shared;
use crate::signals::{Cancellation, LiveEvent};
use crate::supervisor;
use crate::{BrokerError, BrokerResult};
use bytestring::ByteString;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use toolbus_protocol::{
    AgentEnd, AgentRef, Body, ClientFrame, ClientLink, Event, InboxMessage, JournalClaim, MsgId, check_name,
};

/// Delivers to other agents' mailboxes and receives from its own. Reconnects after a lost connection: messages without
/// a receipt are sent again under the same id, and the subscription is renewed.
pub struct BrokerClient {
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: ClientOptions,
    me: AgentRef,
    pub(crate) task: AbortHandle,
    /// Closed when the task has ended.
    running: watch::Receiver<()>,
}

/// How long [`BrokerClient::close`] takes at most: a broker that doesn't read must not block it.
pub const CLOSE_LIMIT: Duration = Duration::from_secs(2);

impl BrokerClient {
    /// Connects to the broker at `endpoint` with default options.
    pub async fn connect(endpoint: &str, agent: AgentRef, token: &str) -> BrokerResult<Self> {
        Self::connect_with(endpoint, agent, token, ClientOptions::default()).await
    }

    /// Connects to the broker at `endpoint`. Fails if the first connection can't be made; later losses are handled by
    /// reconnecting in the background.
    pub async fn connect_with(
        endpoint: &str,
        agent: AgentRef,
        token: &str,
        options: ClientOptions,
    ) -> BrokerResult<Self> {
        Self::connect_to(Destination::new(endpoint, agent.clone(), token)?, agent, options).await
    }

    /// Connects over a link to a broker in the same process. Never reconnects: the client closes with the connection.
    pub async fn connect_over(link: ClientLink, agent: AgentRef, options: ClientOptions) -> BrokerResult<Self> {
        let link = std::sync::Mutex::new(Some(link));
        let once = move || {
            let link = link.lock().ok().and_then(|mut link| link.take());
            link.ok_or_else(|| BrokerError::Transport("the link has already been used".into()))
        };
        Self::connect_local(once, agent, ClientOptions { reconnect: false, ..options }).await
    }

    /// Connects to a broker in the same process; `links` makes a new link for each connection.
    pub async fn connect_local(
        links: impl Fn() -> BrokerResult<ClientLink> + Send + Sync + 'static,
        agent: AgentRef,
        options: ClientOptions,
    ) -> BrokerResult<Self> {
        Self::connect_to(Destination::in_process(agent.clone(), Arc::new(links)), agent, options).await
    }

    async fn connect_to(destination: Destination, agent: AgentRef, options: ClientOptions) -> BrokerResult<Self> {
        let connection = connection::connect(&destination, &options).await?;
        let agent = connection.agent.clone().unwrap_or(agent);
        let shared = Shared::new(Session::new(agent.clone(), Instant::now()), options.max_outstanding);
        shared.lock().connected(connection.terms);
        let (sender, running) = watch::channel(());
        let supervisor = supervisor::run(connection, destination, options.clone(), Arc::clone(&shared));
        let task = tokio::spawn(async move {
            // Dropped last, also if the task is aborted.
            let _sender = sender;
            supervisor.await;
        });
        Ok(Self { shared, options, me: agent, task: task.abort_handle(), running })
    }

    /// This client's identity as stamped by the broker: name and role come with the credential.
    pub fn me(&self) -> AgentRef {
        self.me.clone()
    }

    /// Whether the client is connected now.
    pub fn reader_alive(&self) -> bool {
        self.shared.lock().is_connected()
    }

    /// Like [`BrokerClient::subscribe`], for a host: names the journal in which it records the calls of its mailbox, also
    /// after every reconnect. See [`BrokerClient::is_unsure`].
    pub async fn subscribe_with(&self, claim: JournalClaim) -> BrokerResult<()> {
        self.shared.change(|session| {
            session.claim_mailbox(claim);
            session.subscribe();
        });
        self.check_open()
    }

    /// Sets the listener for the ends of this client's replies: receipted by the broker, or refused. It is called with the
    /// client's lock held, so it must not block or call the client.
    pub fn on_reply_settled(&self, listener: ReplyListener) {
        self.shared.lock().reply_listener = Some(listener);
    }

    /// Subscribes to this agent's mailbox: unacknowledged messages are pushed first, then queued ones, then new ones.
    pub async fn subscribe(&self) -> BrokerResult<()> {
        self.shared.change(Session::subscribe);
        self.check_open()
    }

    /// Sends a message and waits for the receipt, which means that it is durable or acknowledged. Deliveries may run
    /// concurrently; dropping the future does not withdraw the message.
    pub async fn deliver(&self, to: &str, message: InboxMessage) -> BrokerResult<MsgId> {
        self.deliver_with(to, message, SendOptions::default()).await
    }

    /// Like [`BrokerClient::deliver`], with options.
    pub async fn deliver_with(&self, to: &str, message: InboxMessage, send: SendOptions) -> BrokerResult<MsgId> {
        let id = message.id.clone();
        let (sender, receipt) = oneshot::channel();
        self.start_delivery(to, &message, send, None, Some(sender)).await?;
        self.await_receipt(receipt).await?;
        Ok(id)
    }

    /// Like [`BrokerClient::deliver_with`], without waiting for the receipt; the message is resent after a reconnect if
    /// the receipt is missing. Messages are sent in the order of these calls.
    pub async fn deliver_nowait(&self, to: &str, message: InboxMessage, send: SendOptions) -> BrokerResult<MsgId> {
        self.start_delivery(to, &message, send, None, None).await?;
        Ok(message.id)
    }

    /// Checks a message against the limits that the broker announced in the handshake, without sending it.
    pub fn check_message(&self, message: &InboxMessage) -> BrokerResult<()> {
        self.shared.look().terms.check(message)
    }

    pub(crate) async fn start_delivery(
        &self,
        to: &str,
        message: &InboxMessage,
        send: SendOptions,
        answers: Option<(&MsgId, Resend)>,
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
        let (limit, slot) = (send.deadline, Some(slot));
        let new = NewDelivery { to, message, envelope, limit, answers, receipt, slot };
        self.shared.change(|session| session.start_delivery(new))
    }

    pub(crate) async fn await_receipt(&self, receipt: oneshot::Receiver<BrokerResult<()>>) -> BrokerResult<()> {
        let limit = self.options.receipt_timeout;
        match tokio::time::timeout(limit, receipt).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(BrokerError::Closed),
            Err(_) => Err(BrokerError::Timeout(limit)),
        }
    }

    /// Returns the next message of the mailbox, or `None` when the client is closed or displaced by another subscriber;
    /// [`BrokerClient::end_reason`] tells which.
    pub async fn next_message(&self) -> Option<InboxMessage> {
        self.next(|session| session.inbox.pop_front(), |session| session.displaced.is_some()).await
    }

    /// The deadline of a message that was received and not acknowledged yet, if its sender set one.
    pub fn deadline_of(&self, id: &MsgId) -> Option<Instant> {
        self.shared.look().deadline_of(id)
    }

    /// Whether a received message may have been started by a host with another journal, so that this one can't tell.
    pub fn is_unsure(&self, id: &MsgId) -> bool {
        self.shared.look().is_unsure(id)
    }

    /// The generation of its sender's name when a message was received: agents that had the same name one after the other
    /// have different ones.
    pub fn generation_of(&self, id: &MsgId) -> u64 {
        self.shared.look().generation_of(id)
    }

    /// The number of deliveries so far of a message that was received and not acknowledged yet.
    pub fn attempt_of(&self, id: &MsgId) -> Option<u32> {
        self.shared.look().attempt_of(id)
    }

    /// Waits until the number of the current connection differs from `seen`, and returns it; the first is 1. `None`
    /// when the client is closed.
    pub async fn next_connection(&self, seen: u64) -> Option<u64> {
        self.next(|session| (session.is_connected() && session.epoch != seen).then_some(session.epoch), |_| false).await
    }

    /// Whether the client is closed permanently: by its owner, or because it stopped reconnecting.
    pub fn is_closed(&self) -> bool {
        self.shared.look().closed.is_some()
    }

    /// Why the client receives no more messages: it is closed or displaced. `None` while it is active.
    pub fn end_reason(&self) -> Option<BrokerError> {
        self.shared.look().end_reason()
    }

    /// Waits until the client is closed permanently, and returns the reason.
    pub async fn closed(&self) -> BrokerError {
        self.next(|session| session.closed.clone(), |_| false).await.unwrap_or(BrokerError::Closed)
    }

    /// Returns the correlation id of the next cancellation, or `None` when the client is closed.
    pub async fn next_cancel(&self) -> Option<MsgId> {
        self.next_cancellation().await.map(|cancelled| cancelled.id)
    }

    /// Like [`BrokerClient::next_cancel`], with the sender of the cancelled message.
    pub async fn next_cancellation(&self) -> Option<Cancellation> {
        self.next(|session| session.cancels.pop_front(), |_| false).await
    }

    /// Returns the next agent that has ended, for a host, or `None` when the client is closed. What earlier generations of
    /// the agent began has to end.
    pub async fn next_agent_end(&self) -> Option<AgentEnd> {
        self.next(|session| session.agent_ends.collect(), |_| false).await
    }

    /// Returns the next live event that belongs to no [`crate::Call`], or `None` when the client is closed.
    pub async fn next_event(&self) -> Option<LiveEvent> {
        self.next(|session| session.events.pop_front(), |_| false).await
    }

    async fn next<T>(
        &self,
        mut take: impl FnMut(&mut Session) -> Option<T>,
        over: impl Fn(&Session) -> bool,
    ) -> Option<T> {
        let mut inspect = || {
            let mut session = self.shared.look();
            let was_full = session.inbox.len() >= self.options.max_inbox;
            let item = take(&mut session);
            let ended = session.closed.is_some() || over(&session);
            drop(session);
            if was_full && item.is_some() {
                self.shared.wake_task();
            }
            match item {
                Some(item) => Some(Some(item)),
                None => ended.then_some(None),
            }
        };
        loop {
            // Fast path without `Notify`. After registering the waiter, check again: an update in between would be
            // missed.
            if let Some(found) = inspect() {
                return found;
            }
            let mut updated = std::pin::pin!(self.shared.updates.notified());
            updated.as_mut().enable();
            if let Some(found) = inspect() {
                return found;
            }
            updated.await;
        }
    }

    /// Acknowledges a message without waiting until that is durable: a crash may cause another delivery.
    pub async fn ack(&self, id: MsgId) -> BrokerResult<()> {
        self.shared.change(|session| session.ack(&id));
        self.check_open()
    }

    /// For hosts: reports that a received request was refused, which counts against its sender's share. Call it before the
    /// reply.
    pub fn report_refused(&self, id: &MsgId) {
        self.shared.change(|session| session.refused(id));
    }

    /// Acknowledges a message and waits until that is durable: it is never delivered again.
    pub async fn ack_confirmed(&self, id: MsgId) -> BrokerResult<()> {
        let request_id = MsgId::new().into_inner();
        let (sender, outcome) = oneshot::channel();
        self.shared.change(|session| {
            session.forget_received(&id);
            if session.is_connected() {
                session.queries.acks.insert(request_id.clone(), sender);
                session.send(ClientFrame::AckWithReceipt { id: id.into_inner(), request_id });
            }
        });
        self.await_answer(outcome).await?
    }

    /// Withdraws the message that this agent sent to `to` under that id, if it is still queued. Otherwise asks `to` to
    /// abandon the work that belongs to the id. Best effort, not stored; [`BrokerClient::withdraw`] tells the outcome.
    pub async fn cancel(&self, to: &str, correlation_id: &MsgId) -> BrokerResult<()> {
        let (to, id) = (ByteString::from(to), correlation_id.clone().into_inner());
        self.shared.change(|session| session.cancel(to, id));
        self.check_open()
    }

    /// Sends a live event of a call to its caller: ordered, but dropped if the caller is disconnected or too slow.
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

    /// The names of the connected agents that have this role.
    pub async fn list_connected(&self, role: &str) -> BrokerResult<Vec<String>> {
        let (sender, answer) = oneshot::channel();
        self.shared.change(|session| {
            // Answers carry no id and are matched in order, so a query that is not sent must not be queued.
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
                let no_connection = || BrokerError::Transport("disconnected before the answer arrived".into());
                Err(self.shared.lock().closed.clone().unwrap_or_else(no_connection))
            }
            Err(_) => Err(BrokerError::Timeout(limit)),
        }
    }

    fn check_open(&self) -> BrokerResult<()> {
        self.shared.look().closed.clone().map_or(Ok(()), Err)
    }

    /// Turns this client into one that correlates many concurrent requests with their replies.
    pub fn into_multiplexed(self) -> MultiplexedClient {
        MultiplexedClient::new(self)
    }

    /// Sends the queued frames and closes the connection, within [`CLOSE_LIMIT`]. Deliveries without a receipt fail.
    pub async fn close(&self) {
        self.shared.change(|session| session.close(BrokerError::Closed));
        tokio::time::timeout(CLOSE_LIMIT, self.task_ended()).await.ok();
    }

    pub(crate) async fn task_ended(&self) {
        // Nothing is ever sent: this returns when the sender is dropped.
        self.running.clone().changed().await.ok();
    }
}

impl Drop for BrokerClient {
    fn drop(&mut self) {
        self.shared.change(|session| session.close(BrokerError::Closed));
    }
}

pub(crate) type ReceiptSender = oneshot::Sender<BrokerResult<()>>;
