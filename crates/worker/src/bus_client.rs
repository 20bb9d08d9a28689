//! The bus as its client gives it: one connection for all sessions of an identity. Tasks of its own keep the hosts'
//! cards up to date and bring what belongs to no call to its session.

use crate::bus::{BoxFuture, Bus, BusCall, BusItem, HostEntry, Hosts, SessionEvent, Waiting};
use crate::worker::lock;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use toolbus_client::{
    BrokerClient, BrokerError, BrokerResult, Call, CallItem, HostsWatch, KnownHosts, Letter, LetterRow, Look, Looked,
    MultiplexedClient, SendOptions,
};
use toolbus_mcp::{Card, HostEvent};
use toolbus_protocol::{Body, InboxKind, InboxMessage, MsgId};

/// What waits for one session; a client that does not read loses the rest.
const SESSION_QUEUE: usize = 256;
/// How long the broker may take to say where a call stands.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);
/// How often it is asked whether a request was taken back.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The pause after the broker did not say which hosts there are.
const ASK_AGAIN: Duration = Duration::from_secs(1);

pub struct BusClient {
    client: Arc<MultiplexedClient>,
    hosts: watch::Receiver<Hosts>,
    sessions: Arc<SessionDesk>,
    tasks: Vec<JoinHandle<()>>,
}

impl BusClient {
    /// Takes over the connection. Fails if the broker does not say which hosts there are.
    pub async fn start(client: BrokerClient) -> BrokerResult<Arc<Self>> {
        let client = Arc::new(client.into_multiplexed());
        let watch = client.client().watch_hosts();
        let mut directory = Directory { client: Arc::clone(&client), cards: BTreeMap::new() };
        let (sender, hosts) = watch::channel(directory.ask().await?);
        let sessions = Arc::new(SessionDesk::default());
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

    async fn look(&self, look: Look) -> Option<Looked> {
        let looked = tokio::time::timeout(LOOK_PATIENCE, self.client.client().look(look)).await;
        looked.ok()?.inspect_err(|error| tracing::debug!(%error, "the broker does not let us look")).ok()
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
        let letters = vec![Letter { to: host.into(), id: call.into() }];
        let look = self.look(Look { letters, ..Look::default() });
        Box::pin(async { look.await?.letters.first().copied().flatten() })
    }

    fn waiting<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Option<Vec<Waiting>>> {
        let look = self.look(Look { rows_of: Some(host.into()), ..Look::default() });
        Box::pin(async { Some(look.await?.rows.iter().map(as_waiting).collect()) })
    }

    fn waits<'a>(&'a self, host: &'a str, call: &'a str) -> BoxFuture<'a, Option<Waiting>> {
        let look = self.look(look_for(host, call));
        Box::pin(async move { found(&look.await?, call) })
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
            let until = Instant::now() + LOOK_PATIENCE;
            while Instant::now() < until {
                match self.look(look_for(host, call)).await {
                    // A host that is back may have got it just before.
                    Some(looked) if looked.peers.first() != Some(&false) => return false,
                    Some(looked) if found(&looked, call).is_none() => return !looked.more,
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
fn look_for(host: &str, call: &str) -> Look {
    let letters = vec![Letter { to: host.into(), id: call.into() }];
    Look { peers: vec![host.into()], letters, rows_of: Some(host.into()), ..Look::default() }
}

fn as_waiting(row: &LetterRow) -> Waiting {
    Waiting { id: row.id.to_string(), is_untouched: row.attempt == 0, age_ms: row.age_ms }
}

/// The request among the rows; or behind them, where their number is limited.
fn found(looked: &Looked, call: &str) -> Option<Waiting> {
    let row = looked.rows.iter().find(|row| &*row.id == call).map(as_waiting);
    let behind = || {
        looked.letters.first().copied().flatten()?;
        // Messages are brought in order, so none behind one was brought that was not.
        let is_untouched = looked.more && looked.rows.last().is_some_and(|row| row.attempt == 0 && !row.in_flight);
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

/// The hosts and their cards; a card is fetched and read once for each of its versions.
struct Directory {
    client: Arc<MultiplexedClient>,
    cards: BTreeMap<String, (u64, Arc<Card>)>,
}

impl Directory {
    async fn ask(&mut self) -> BrokerResult<Hosts> {
        let known: KnownHosts = self.cards.iter().map(|(host, (version, _))| (host.clone(), *version)).collect();
        let hosts = self.client.client().hosts(&known).await?;
        let mut cards = BTreeMap::new();
        let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
        let entries = hosts.into_iter().map(|host| {
            let name = host.id.to_string();
            let card = match host.card {
                Some(card) => read(&name, &card),
                None => self.cards.get(&name).map(|(_, card)| Arc::clone(card)).unwrap_or_default(),
            };
            cards.insert(name.clone(), (host.version, Arc::clone(&card)));
            let away_since_ms = (!host.online).then(|| now.saturating_sub(host.since_ms));
            HostEntry { name, away_since_ms, card }
        });
        let entries = Arc::new(entries.collect());
        self.cards = cards;
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

fn read(host: &str, card: &Body) -> Arc<Card> {
    let card = serde_json::from_slice(card.as_bytes());
    Arc::new(card.unwrap_or_else(|error| {
        tracing::warn!(%host, %error, "the card of this host can't be read");
        Card::default()
    }))
}

/// Which session gets what belongs to no call.
#[derive(Default)]
struct SessionDesk {
    open: Mutex<HashMap<String, mpsc::Sender<SessionEvent>>>,
}

impl SessionDesk {
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

async fn bring_live_events(client: Arc<MultiplexedClient>, sessions: Arc<SessionDesk>) {
    while let Some(event) = client.client().next_event().await {
        sessions.bring(event.correlation_id.as_str(), &event.from, &event.body);
    }
}

async fn bring_messages(client: Arc<MultiplexedClient>, sessions: Arc<SessionDesk>) {
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
