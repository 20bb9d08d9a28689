//! The bus as its client gives it: one connection for all sessions of an identity. Tasks of its own keep the hosts'
//! manifests up to date and bring what belongs to no call to its session.

use crate::bus::{BoxFuture, Bus, BusCall, BusItem, HostEntry, Hosts, SessionEvent, Waiting};
use crate::worker::lock;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use toolbus_client::{
    BrokerClient, BrokerError, BrokerResult, Call, CallItem, HostsWatch, Inspect, Inspected, KnownHosts, MessageRef,
    MessageRow, MultiplexedClient, SendOptions,
};
use toolbus_mcp::{HostEvent, HostManifest};
use toolbus_protocol::{Body, InboxKind, InboxMessage, MsgId};

/// What waits for one session; a client that does not read loses the rest.
const SESSION_QUEUE: usize = 256;
/// How long the broker may take to say where a call stands.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often it is asked whether a request was taken back.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The pause after the broker did not say which hosts there are.
const ASK_AGAIN: Duration = Duration::from_secs(1);

pub struct BusClient {
    client: Arc<MultiplexedClient>,
    hosts: watch::Receiver<Hosts>,
    sessions: Arc<SessionAdmin>,
    tasks: Vec<JoinHandle<()>>,
}

impl BusClient {
    /// Takes over the connection. Fails if the broker does not say which hosts there are.
    pub async fn start(client: BrokerClient) -> BrokerResult<Arc<Self>> {
        let client = Arc::new(client.into_multiplexed());
        let watch = client.client().watch_hosts();
        let mut directory = Directory { client: Arc::clone(&client), manifests: BTreeMap::new() };
        let (sender, hosts) = watch::channel(directory.ask().await?);
        let sessions = Arc::new(SessionAdmin::default());
        let tasks = vec![
            tokio::spawn(directory.keep(watch, sender)),
            tokio::spawn(bring_live_events(Arc::clone(&client), Arc::clone(&sessions))),
            tokio::spawn(bring_messages(Arc::clone(&client), Arc::clone(&sessions))),
        ];
        Ok(Arc::new(Self { client, hosts, sessions, tasks }))
    }

    pub fn client(&self) -> &MultiplexedClient {
        &self.client
    }

    async fn inspect(&self, inspect: Inspect) -> Option<Inspected> {
        let inspected = tokio::time::timeout(INSPECT_TIMEOUT, self.client.client().inspect(inspect)).await;
        inspected.ok()?.inspect_err(|error| tracing::debug!(%error, "the broker does not let us inspect")).ok()
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
        let message = self.message(body);
        Box::pin(async move {
            let id = message.id.to_string();
            let sent =
                Sent { client: Arc::clone(&self.client), host: host.to_owned(), message: message.clone(), limit };
            let call = self.client.start_call(host, message, limit).await?;
            Ok(Box::new(ClientCall { id, call, sent }) as Box<dyn BusCall>)
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
        let inspect = self.inspect(look_for(host, call));
        Box::pin(async move { found(&inspect.await?, call) })
    }

    fn withdraw<'a>(&'a self, host: &'a str, call: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            if !self.is_untouched(host, call).await {
                return false;
            }
            if self.client.client().cancel(host, &MsgId::from(call.to_owned())).await.is_err() {
                return false;
            }
            // The broker does not answer a cancel, so it is asked what became of the message.
            let until = Instant::now() + INSPECT_TIMEOUT;
            while Instant::now() < until {
                match self.inspect(look_for(host, call)).await {
                    // A host that is back may have got it just before.
                    Some(inspected) if inspected.peers.first() != Some(&false) => return false,
                    Some(inspected) if found(&inspected, call).is_none() => return !inspected.more,
                    _ => tokio::time::sleep(LOOK_AGAIN).await,
                }
            }
            false
        })
    }

    fn hosts(&self) -> watch::Receiver<Hosts> {
        self.hosts.clone()
    }

    fn is_alive(&self) -> bool {
        !self.tasks.iter().any(JoinHandle::is_finished)
    }

    fn open_session(&self, key: &str) -> mpsc::Receiver<SessionEvent> {
        self.sessions.open(key)
    }
}

/// Whether the host is there, where the request stands, and how often it was brought.
fn look_for(host: &str, call: &str) -> Inspect {
    let messages = vec![MessageRef { to: host.into(), id: call.into() }];
    Inspect { peers: vec![host.into()], messages, rows_of: Some(host.into()), ..Inspect::default() }
}

fn as_waiting(row: &MessageRow) -> Waiting {
    Waiting { id: row.id.to_string(), is_untouched: row.attempt == 0, age_ms: row.age_ms }
}

/// The request among the rows; or behind them, where their number is limited.
fn found(inspected: &Inspected, call: &str) -> Option<Waiting> {
    let row = inspected.rows.iter().find(|row| &*row.id == call).map(as_waiting);
    let behind = || {
        inspected.messages.first().copied().flatten()?;
        // Messages are brought in order, so none behind one was brought that was not.
        let is_untouched =
            inspected.more && inspected.rows.last().is_some_and(|row| row.attempt == 0 && !row.in_flight);
        Some(Waiting { id: call.to_owned(), is_untouched, age_ms: 0 })
    };
    row.or_else(behind)
}

struct ClientCall {
    id: String,
    call: Call,
    sent: Sent,
}

/// What it takes to send a request once more.
struct Sent {
    client: Arc<MultiplexedClient>,
    host: String,
    message: InboxMessage,
    limit: Duration,
}

impl BusCall for ClientCall {
    fn id(&self) -> &str {
        &self.id
    }

    fn take_back(&mut self) {
        self.call.cancel();
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

    fn leave(self: Box<Self>) -> BoxFuture<'static, Result<(), BrokerError>> {
        Box::pin(async move {
            let Self { call, sent: Sent { client, host, message, limit }, .. } = *self;
            // Calls don't ask for receipts. The same message sent again is stored once, and gets one.
            client.client().deliver_with(&host, message, SendOptions { deadline: Some(limit) }).await?;
            call.detach();
            Ok(())
        })
    }
}

/// The hosts and their manifests; a manifest is fetched and read once for each of its versions.
struct Directory {
    client: Arc<MultiplexedClient>,
    manifests: BTreeMap<String, (u64, Arc<HostManifest>)>,
}

impl Directory {
    async fn ask(&mut self) -> BrokerResult<Hosts> {
        let known: KnownHosts = self.manifests.iter().map(|(host, (version, _))| (host.clone(), *version)).collect();
        let hosts = self.client.client().hosts(&known).await?;
        let mut manifests = BTreeMap::new();
        let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
        let entries = hosts.into_iter().map(|host| {
            let name = host.id.to_string();
            let manifest = match host.manifest {
                Some(manifest) => read(&name, &manifest),
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

    async fn keep(mut self, mut watch: HostsWatch, sender: watch::Sender<Hosts>) {
        while watch.changed().await.is_some() {
            loop {
                match self.ask().await {
                    Ok(hosts) => {
                        sender.send_replace(hosts);
                        break;
                    }
                    Err(_) if self.client.client().is_closed() => return,
                    Err(error) => tracing::debug!(%error, "which hosts there are is not known now"),
                }
                tokio::time::sleep(ASK_AGAIN).await;
            }
        }
    }
}

fn read(host: &str, manifest: &Body) -> Arc<HostManifest> {
    let manifest = serde_json::from_slice(manifest.as_bytes());
    Arc::new(manifest.unwrap_or_else(|error| {
        tracing::warn!(%host, %error, "the manifest of this host can't be read");
        HostManifest::default()
    }))
}

/// Which session gets what belongs to no call.
#[derive(Default)]
struct SessionAdmin {
    open: Mutex<HashMap<String, mpsc::Sender<SessionEvent>>>,
}

impl SessionAdmin {
    fn open(&self, key: &str) -> mpsc::Receiver<SessionEvent> {
        let (sender, receiver) = mpsc::channel(SESSION_QUEUE);
        let mut open = lock(&self.open);
        open.retain(|_, sender| !sender.is_closed());
        open.insert(key.to_owned(), sender);
        receiver
    }

    fn bring(&self, key: &str, host: &str, body: &Body) {
        let Some(session) = lock(&self.open).get(key).cloned() else { return };
        let event = std::str::from_utf8(body.as_bytes()).ok().and_then(|text| HostEvent::parse(text).ok());
        let Some(event) = event else { return };
        if session.try_send(SessionEvent { host: host.to_owned(), event }).is_err() {
            tracing::debug!(%host, session = %key, "a client does not take what it is told");
        }
    }
}

async fn bring_live_events(client: Arc<MultiplexedClient>, sessions: Arc<SessionAdmin>) {
    while let Some(event) = client.client().next_event().await {
        sessions.bring(event.correlation_id.as_str(), &event.from, &event.body);
    }
}

async fn bring_messages(client: Arc<MultiplexedClient>, sessions: Arc<SessionAdmin>) {
    while let Some(message) = client.client().next_message().await {
        if let (InboxKind::McpEvent, Some(key)) = (&message.kind, &message.correlation_id) {
            sessions.bring(key.as_str(), &message.from.session_id, &message.body);
        }
        // Whatever else comes to a worker's mailbox has no reader here.
        if client.client().ack(message.id).await.is_err() {
            return;
        }
    }
}
