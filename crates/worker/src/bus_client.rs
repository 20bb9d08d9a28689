//! The [`Bus`] over a broker client: one connection for all MCP sessions of an identity. Background tasks keep the
//! host manifests up to date and route events that belong to no call to their session.

use crate::bus::{BoxFuture, Bus, BusCall, BusItem, HostEntry, Hosts, SessionEvent, Waiting};
use crate::call_key::{key_of, keyed_id};
use crate::worker::lock;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use toolbus_client::{
    BrokerClient, BrokerError, BrokerResult, Call, CallItem, CancelOutcome, HostsWatch, Inspect, Inspected, KnownHosts,
    MessageRef, MessageRow, MultiplexedClient, SendOptions,
};
use toolbus_mcp::{HostEvent, HostManifest};
use toolbus_protocol::{Body, InboxKind, InboxMessage, MsgId};

/// Events buffered per session. Events for a client that does not read are dropped beyond it.
const SESSION_QUEUE: usize = 256;
/// Limit for one queue inspection.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit for the withdrawal of a request, reconnects included.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before the list of hosts is requested again after an error.
const HOSTS_RETRY: Duration = Duration::from_secs(1);

/// The [`Bus`] of one identity, on one connection to the broker.
pub struct BusClient {
    client: Arc<MultiplexedClient>,
    hosts: watch::Receiver<Hosts>,
    sessions: Arc<SessionEvents>,
    tasks: Vec<JoinHandle<()>>,
}

impl BusClient {
    /// Takes over the connection and fetches the hosts; fails if that fails.
    pub async fn start(client: BrokerClient) -> BrokerResult<Arc<Self>> {
        let client = Arc::new(client.into_multiplexed());
        let watch = client.client().watch_hosts();
        let mut directory = Directory { client: Arc::clone(&client), manifests: BTreeMap::new() };
        let (sender, hosts) = watch::channel(directory.fetch().await?);
        let sessions = Arc::new(SessionEvents::default());
        let tasks = vec![
            tokio::spawn(directory.keep_current(watch, sender)),
            tokio::spawn(forward_live_events(Arc::clone(&client), Arc::clone(&sessions))),
            tokio::spawn(forward_messages(Arc::clone(&client), Arc::clone(&sessions))),
        ];
        Ok(Arc::new(Self { client, hosts, sessions, tasks }))
    }

    /// The broker client that this bus uses.
    pub fn client(&self) -> &MultiplexedClient {
        &self.client
    }

    async fn inspect(&self, inspect: Inspect) -> Option<Inspected> {
        let inspected = tokio::time::timeout(INSPECT_TIMEOUT, self.client.client().inspect(inspect)).await;
        inspected.ok()?.inspect_err(|error| tracing::debug!(%error, "queue inspection failed")).ok()
    }

    async fn send_call(
        &self,
        host: &str,
        message: InboxMessage,
        limit: Duration,
    ) -> Result<Box<dyn BusCall>, BrokerError> {
        let id = message.id.to_string();
        let call = self.client.start_call(host, message, limit).await?;
        Ok(Box::new(ClientCall { id, call }))
    }

    fn message(&self, body: Body) -> InboxMessage {
        InboxMessage::new(self.client.client().me(), InboxKind::McpRequest, body)
    }
}

impl Drop for BusClient {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Bus for BusClient {
    fn start_call<'a>(
        &'a self,
        host: &'a str,
        body: Body,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn BusCall>, BrokerError>> {
        Box::pin(self.send_call(host, self.message(body), limit))
    }

    fn start_keyed_call<'a>(
        &'a self,
        host: &'a str,
        body: Body,
        limit: Duration,
        key: u64,
    ) -> BoxFuture<'a, Result<Box<dyn BusCall>, BrokerError>> {
        let message = InboxMessage { id: keyed_id(key), ..self.message(body) };
        Box::pin(self.send_call(host, message, limit))
    }

    fn has_equal<'a>(&'a self, host: &'a str, key: u64) -> BoxFuture<'a, bool> {
        let inspect = self.inspect(Inspect { rows_of: Some(host.into()), ..Inspect::default() });
        Box::pin(async move {
            let me = self.client.client().me().session_id;
            let is_equal = |row: &MessageRow| *row.from != *me && key_of(&row.id) == Some(key);
            inspect.await.is_some_and(|inspected| inspected.rows.iter().any(is_equal))
        })
    }

    fn send<'a>(&'a self, host: &'a str, body: Body, limit: Duration) -> BoxFuture<'a, Result<(), BrokerError>> {
        let message = self.message(body);
        let send = SendOptions { deadline: Some(limit) };
        Box::pin(async move { self.client.client().deliver_nowait(host, message, send).await.map(drop) })
    }

    fn deliver<'a>(&'a self, host: &'a str, body: Body, limit: Duration) -> BoxFuture<'a, Result<(), BrokerError>> {
        let message = self.message(body);
        let send = SendOptions { deadline: Some(limit) };
        Box::pin(async move { self.client.client().deliver_with(host, message, send).await.map(drop) })
    }

    fn ahead<'a>(&'a self, host: &'a str, call: &'a str) -> BoxFuture<'a, Option<u64>> {
        let messages = vec![MessageRef { to: host.into(), id: call.into() }];
        let inspect = self.inspect(Inspect { messages, ..Inspect::default() });
        Box::pin(async { inspect.await?.messages.first().copied().flatten() })
    }

    fn waiting<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Option<Vec<Waiting>>> {
        let inspect = self.inspect(Inspect { rows_of: Some(host.into()), ..Inspect::default() });
        Box::pin(async { Some(inspect.await?.rows.iter().map(as_waiting).collect()) })
    }

    fn waits<'a>(&'a self, host: &'a str, call: &'a str) -> BoxFuture<'a, Option<Waiting>> {
        let inspect = self.inspect(inspect_call(host, call));
        Box::pin(async move { find_queued(&inspect.await?, call) })
    }

    fn is_untouched<'a>(&'a self, host: &'a str, call: &'a str) -> BoxFuture<'a, bool> {
        let inspect = self.inspect(inspect_call(host, call));
        Box::pin(async move { inspect.await.is_some_and(|inspected| is_untouched(&inspected, call)) })
    }

    fn withdraw<'a>(&'a self, host: &'a str, call: &'a str) -> BoxFuture<'a, bool> {
        self.withdraw_within(host, call, WITHDRAW_TIMEOUT)
    }

    fn withdraw_within<'a>(&'a self, host: &'a str, call: &'a str, limit: Duration) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let id = MsgId::from(call.to_owned());
            match self.client.client().withdraw(host, &id, limit).await {
                Ok(outcome) => outcome == CancelOutcome::Withdrawn,
                Err(error) => {
                    tracing::debug!(%error, "a withdrawal was not confirmed");
                    false
                }
            }
        })
    }

    fn hosts(&self) -> watch::Receiver<Hosts> {
        self.hosts.clone()
    }

    fn abort(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.client.client().abort())
    }

    fn is_alive(&self) -> bool {
        !self.tasks.iter().any(JoinHandle::is_finished)
    }

    fn open_session(&self, key: &str) -> mpsc::Receiver<SessionEvent> {
        self.sessions.open(key)
    }
}

/// Inspects the presence of the host, the queue position of the request and its delivery attempts.
pub fn inspect_call(host: &str, call: &str) -> Inspect {
    let messages = vec![MessageRef { to: host.into(), id: call.into() }];
    Inspect { peers: vec![host.into()], messages, rows_of: Some(host.into()), ..Inspect::default() }
}

fn as_waiting(row: &MessageRow) -> Waiting {
    Waiting { id: row.id.to_string(), is_untouched: row.attempt == 0, age_ms: row.age_ms }
}

/// Whether such an inspection shows that the request is queued and was never delivered.
pub fn is_untouched(inspected: &Inspected, call: &str) -> bool {
    find_queued(inspected, call).is_some_and(|waiting| waiting.is_untouched)
}

/// The request among the rows of the inspection, or beyond them if the row limit cut the list.
fn find_queued(inspected: &Inspected, call: &str) -> Option<Waiting> {
    let row = inspected.rows.iter().find(|row| &*row.id == call).map(as_waiting);
    let beyond = || {
        inspected.messages.first().copied().flatten()?;
        // Delivery is in order: if the last row was never delivered, no message after it was.
        let is_untouched =
            inspected.more && inspected.rows.last().is_some_and(|row| row.attempt == 0 && !row.in_flight);
        Some(Waiting { id: call.to_owned(), is_untouched, age_ms: 0 })
    };
    row.or_else(beyond)
}

struct ClientCall {
    id: String,
    call: Call,
}

impl BusCall for ClientCall {
    fn id(&self) -> &str {
        &self.id
    }

    fn next(&mut self) -> BoxFuture<'_, BusItem> {
        Box::pin(async {
            match self.call.next().await {
                Some(CallItem::Event(body)) => BusItem::Event(body),
                Some(CallItem::Reply(reply)) => BusItem::Reply(reply.map(|message| message.body)),
                None => BusItem::Reply(Err(BrokerError::Closed)),
            }
        })
    }

    fn detach(&mut self) {
        self.call.set_detached();
    }

    fn leave(mut self: Box<Self>) -> BoxFuture<'static, Result<(), BrokerError>> {
        Box::pin(async move {
            self.call.receipt().await?;
            self.call.detach();
            Ok(())
        })
    }
}

/// The hosts and their manifests. Each version of a manifest is fetched and parsed once.
struct Directory {
    client: Arc<MultiplexedClient>,
    manifests: BTreeMap<String, (u64, Arc<HostManifest>)>,
}

impl Directory {
    async fn fetch(&mut self) -> BrokerResult<Hosts> {
        let known: KnownHosts = self.manifests.iter().map(|(host, (version, _))| (host.clone(), *version)).collect();
        let hosts = self.client.client().hosts(&known).await?;
        let mut manifests = BTreeMap::new();
        let now = toolbus_base::now_ms();
        let entries = hosts.into_iter().map(|host| {
            let name = host.id.to_string();
            let manifest = match host.manifest {
                Some(manifest) => parse_manifest(&name, &manifest),
                None => self.manifests.get(&name).map(|(_, manifest)| Arc::clone(manifest)).unwrap_or_default(),
            };
            manifests.insert(name.clone(), (host.version, Arc::clone(&manifest)));
            let away_since_ms = (!host.online).then(|| now.saturating_sub(host.since_ms));
            HostEntry { name, away_since_ms, manifest }
        });
        let entries = Arc::new(entries.collect());
        self.manifests = manifests;
        Ok(entries)
    }

    async fn keep_current(mut self, mut watch: HostsWatch, sender: watch::Sender<Hosts>) {
        while watch.changed().await.is_some() {
            loop {
                match self.fetch().await {
                    Ok(hosts) => {
                        sender.send_replace(hosts);
                        break;
                    }
                    Err(_) if self.client.client().is_closed() => return,
                    Err(error) => tracing::debug!(%error, "fetching the list of hosts failed"),
                }
                tokio::time::sleep(HOSTS_RETRY).await;
            }
        }
    }
}

fn parse_manifest(host: &str, manifest: &Body) -> Arc<HostManifest> {
    let manifest = serde_json::from_slice(manifest.as_bytes());
    Arc::new(manifest.unwrap_or_else(|error| {
        tracing::warn!(%host, %error, "invalid host manifest");
        HostManifest::default()
    }))
}

/// Routes events that belong to no call to their session.
#[derive(Default)]
struct SessionEvents {
    open: Mutex<HashMap<String, mpsc::Sender<SessionEvent>>>,
}

impl SessionEvents {
    fn open(&self, key: &str) -> mpsc::Receiver<SessionEvent> {
        let (sender, receiver) = mpsc::channel(SESSION_QUEUE);
        let mut open = lock(&self.open);
        open.retain(|_, sender| !sender.is_closed());
        open.insert(key.to_owned(), sender);
        receiver
    }

    fn dispatch(&self, key: &str, host: &str, body: &Body) {
        let Some(session) = lock(&self.open).get(key).cloned() else { return };
        let event = body.text().ok().and_then(|text| HostEvent::parse(text).ok());
        let Some(event) = event else { return };
        if session.try_send(SessionEvent { host: host.to_owned(), event }).is_err() {
            tracing::debug!(%host, session = %key, "an event was dropped: the session's queue is full or closed");
        }
    }
}

async fn forward_live_events(client: Arc<MultiplexedClient>, sessions: Arc<SessionEvents>) {
    while let Some(event) = client.client().next_event().await {
        sessions.dispatch(event.correlation_id.as_str(), &event.from, &event.body);
    }
}

async fn forward_messages(client: Arc<MultiplexedClient>, sessions: Arc<SessionEvents>) {
    while let Some(message) = client.client().next_message().await {
        if let (InboxKind::McpEvent, Some(key)) = (&message.kind, &message.correlation_id) {
            sessions.dispatch(key.as_str(), &message.from.session_id, &message.body);
        }
        // Other kinds of messages have no consumer in a worker.
        if client.client().ack(message.id).await.is_err() {
            return;
        }
    }
}
