//! The interface of a frontend to the bus: calls with events, one-way messages, host manifests, and the events of hosts
//! that belong to no call. A trait, so that tests can replace the broker and the hosts.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use toolbus_client::BrokerError;
use toolbus_mcp::{HostEvent, HostManifest};
use toolbus_protocol::Body;

pub use toolbus_base::BoxFuture;

/// A host in the broker's directory, connected or away. The manifest of an away host is the last one it announced.
#[derive(Debug, Clone)]
pub struct HostEntry {
    /// The host's mailbox.
    pub name: String,
    /// When the host disconnected, in milliseconds since the Unix epoch; `None` while it is connected.
    pub away_since_ms: Option<u64>,
    /// The servers of the host, filtered by this worker's role.
    pub manifest: Arc<HostManifest>,
}

/// A snapshot of all hosts that this worker may use, replaced as a whole when one changes.
pub type Hosts = Arc<Vec<HostEntry>>;

/// A connection to the bus.
pub trait Bus: Send + Sync + 'static {
    /// Sends a request whose reply has to arrive within `limit`. Requests are sent in the order of these calls.
    fn start_call<'a>(
        &'a self,
        host: &'a str,
        body: Body,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn BusCall>, BrokerError>>;

    /// Like [`Bus::start_call`], with an id that contains the key of the call's content.
    fn start_keyed_call<'a>(
        &'a self,
        host: &'a str,
        body: Body,
        limit: Duration,
        _key: u64,
    ) -> BoxFuture<'a, Result<Box<dyn BusCall>, BrokerError>> {
        self.start_call(host, body, limit)
    }

    /// Whether another mailbox of this agent has a request with that key in the host's mailbox.
    fn has_equal<'a>(&'a self, _host: &'a str, _key: u64) -> BoxFuture<'a, bool> {
        Box::pin(async { false })
    }

    /// Sends a one-way message, in order with the requests, without waiting for its receipt.
    fn send<'a>(&'a self, host: &'a str, body: Body, limit: Duration) -> BoxFuture<'a, Result<(), BrokerError>>;

    /// Like [`Bus::send`], but returns only once the message is receipted. For callers that disconnect right after it.
    fn deliver<'a>(&'a self, host: &'a str, body: Body, limit: Duration) -> BoxFuture<'a, Result<(), BrokerError>> {
        self.send(host, body, limit)
    }

    /// The number of messages ahead of the call in its host's mailbox. `None` if the call is not queued there or the
    /// position is unknown.
    fn ahead<'a>(&'a self, _host: &'a str, _call: &'a str) -> BoxFuture<'a, Option<u64>> {
        Box::pin(async { None })
    }

    /// This agent's requests that are queued in the host's mailbox, in order. `None` if that is unknown.
    fn waiting<'a>(&'a self, _host: &'a str) -> BoxFuture<'a, Option<Vec<Waiting>>> {
        Box::pin(async { None })
    }

    /// The queued request with the id `call`. `None` if it is not queued there or that is unknown.
    fn waits<'a>(&'a self, host: &'a str, call: &'a str) -> BoxFuture<'a, Option<Waiting>> {
        Box::pin(async move { self.waiting(host).await?.into_iter().find(|waiting| waiting.id == call) })
    }

    /// True only if the call is certainly still queued and was never delivered to its host.
    fn is_untouched<'a>(&'a self, host: &'a str, call: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(async move { self.waits(host, call).await.is_some_and(|waiting| waiting.is_untouched) })
    }

    /// Withdraws a request that is queued for an absent host. True only if the host certainly never receives it. A running
    /// call then ends with the error `cancelled`; if the host has received it, the host is asked to cancel it.
    fn withdraw<'a>(&'a self, _host: &'a str, _call: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(async { false })
    }

    /// Like [`Bus::withdraw`], but waits for the broker's answer as long as `limit`.
    fn withdraw_within<'a>(&'a self, host: &'a str, call: &'a str, _limit: Duration) -> BoxFuture<'a, bool> {
        self.withdraw(host, call)
    }

    /// Watches the hosts that this worker may use.
    fn hosts(&self) -> watch::Receiver<Hosts>;

    /// Cuts the connection without cancelling calls or acknowledging replies that arrive from now on.
    fn abort(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// False once the connection is closed for good and has to be replaced by a new one.
    fn is_alive(&self) -> bool {
        true
    }

    /// Subscribes to the events that hosts send to the session outside of any call, until the receiver is dropped.
    fn open_session(&self, key: &str) -> mpsc::Receiver<SessionEvent>;
}

/// A request that is queued in its host's mailbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The id of the request on the bus.
    pub id: String,
    /// True if the request was never delivered to the host.
    pub is_untouched: bool,
    /// How long the request has been queued; 0 if that is unknown.
    pub age_ms: u64,
}

/// An event that a host sends to a session outside of any call.
#[derive(Debug)]
pub struct SessionEvent {
    /// The sender.
    pub host: String,
    /// The notification or request.
    pub event: HostEvent,
}

/// A running call. Dropping it before its reply cancels it at the host.
pub trait BusCall: Send {
    /// The id of the call on the bus.
    fn id(&self) -> &str;

    /// The next event; the last item is the reply, once. Cancellation-safe.
    fn next(&mut self) -> BoxFuture<'_, BusItem>;

    /// Dropping the call no longer cancels it: it goes on, and its reply is ignored.
    fn detach(&mut self);

    /// Waits for the receipt of the request, then detaches from the call.
    fn leave(self: Box<Self>) -> BoxFuture<'static, Result<(), BrokerError>>;
}

/// An item of a running call.
#[derive(Debug)]
pub enum BusItem {
    /// A [`HostEvent`] that precedes the reply.
    Event(Body),
    /// The reply, or the reason why there is none. The last item.
    Reply(Result<Body, BrokerError>),
}
