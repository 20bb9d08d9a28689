//! What a front needs of the bus: calls with events, messages that nobody answers, the hosts' manifests, and what hosts say
//! outside of any call. A trait, so that tests can put a host of their own behind it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use toolbus_client::BrokerError;
use toolbus_mcp::{HostEvent, HostManifest};
use toolbus_protocol::Body;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A host as the broker knows it: connected now, or away since then with the manifest that it left.
#[derive(Debug, Clone)]
pub struct HostEntry {
    pub name: String,
    /// Milliseconds since 1970; `None` while the host is connected.
    pub away_since_ms: Option<u64>,
    pub manifest: Arc<HostManifest>,
}

/// All hosts that this worker may use, replaced as a whole when one changes.
pub type Hosts = Arc<Vec<HostEntry>>;

pub trait Bus: Send + Sync + 'static {
    /// Sends a request; its answer has to come within the limit. Requests leave in the order of these calls.
    fn start_call<'a>(
        &'a self,
        host: &'a str,
        body: Body,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn BusCall>, BrokerError>>;

    /// Sends what is not answered, in order with the requests, without waiting for its receipt.
    fn send<'a>(&'a self, host: &'a str, body: Body, limit: Duration) -> BoxFuture<'a, Result<(), BrokerError>>;

    /// The same, and returns when the message is safe: whoever is about to leave has no other chance.
    fn deliver<'a>(&'a self, host: &'a str, body: Body, limit: Duration) -> BoxFuture<'a, Result<(), BrokerError>> {
        self.send(host, body, limit)
    }

    /// How many messages are before that call in its host's mailbox. `None` if it does not wait there, or nobody can tell.
    fn ahead<'a>(&'a self, _host: &'a str, _call: &'a str) -> BoxFuture<'a, Option<u64>> {
        Box::pin(async { None })
    }

    /// Requests of this agent that wait for that host, in order. `None` if nobody can tell.
    fn waiting<'a>(&'a self, _host: &'a str) -> BoxFuture<'a, Option<Vec<Waiting>>> {
        Box::pin(async { None })
    }

    /// The same of one request. `None` if it does not wait there, or nobody can tell.
    fn waits<'a>(&'a self, host: &'a str, call: &'a str) -> BoxFuture<'a, Option<Waiting>> {
        Box::pin(async move { self.waiting(host).await?.into_iter().find(|waiting| waiting.id == call) })
    }

    /// Whether it is certain that the call waits for its host and was never brought to it.
    fn is_untouched<'a>(&'a self, host: &'a str, call: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(async move { self.waits(host, call).await.is_some_and(|waiting| waiting.is_untouched) })
    }

    /// Takes a request back that waits for a host that is away. True once it is certain that the host never gets it.
    fn withdraw<'a>(&'a self, _host: &'a str, _call: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(async { false })
    }

    fn hosts(&self) -> watch::Receiver<Hosts>;

    /// False when the bus is gone for good, so that a new one is needed.
    fn is_alive(&self) -> bool {
        true
    }

    /// From now on, what hosts say to that session outside of any call arrives here, until the receiver is dropped.
    fn open_session(&self, key: &str) -> mpsc::Receiver<SessionEvent>;
}

/// A request in its host's mailbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub id: String,
    /// It was never brought to the host.
    pub is_untouched: bool,
    /// For how long it has waited, where that is known.
    pub age_ms: u64,
}

/// What a host says to a session outside of any call.
#[derive(Debug)]
pub struct SessionEvent {
    pub host: String,
    pub event: HostEvent,
}

/// A call under way. Dropping it before its reply cancels it at the host.
pub trait BusCall: Send {
    /// The call's id on the bus, by which the host knows it.
    fn id(&self) -> &str;

    /// Takes the call back if it still waits for its host: then its reply is that it was cancelled. Otherwise the host is
    /// asked to give it up, and its reply comes as ever.
    fn take_back(&mut self);

    /// The next event, in the end the reply, once. Giving up the wait loses nothing.
    fn next(&mut self) -> BoxFuture<'_, BusItem>;

    /// Leaves the call to itself, once its request is safe: it is not cancelled, and nobody waits for its reply.
    fn leave(self: Box<Self>) -> BoxFuture<'static, Result<(), BrokerError>>;
}

#[derive(Debug)]
pub enum BusItem {
    Event(Body),
    Reply(Result<Body, BrokerError>),
}
