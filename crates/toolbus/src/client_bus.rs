//! The bus as a worker's front needs it, on one client connection: calls go out on it, a task keeps the directory of
//! hosts, and two more bring what hosts say outside of any call to the session it is for.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;
use toolbus_client::{BrokerClient, BrokerError, Call, CallItem, KnownHosts, MultiplexedClient, SendOptions};
use toolbus_mcp::{Card, HostEvent};
use toolbus_protocol::{Body, InboxKind, InboxMessage, MsgId};
use toolbus_worker::{BoxFuture, Bus, BusCall, BusItem, HostEntry, Hosts, SessionEvent};

pub struct ClientBus {
    client: Arc<MultiplexedClient>,
    hosts: watch::Receiver<Hosts>,
    sessions: Arc<Sessions>,
    _tasks: [AbortOnDropHandle<()>; 3],
}

/// What hosts said to a session and its front has not taken yet; past it, it is lost and logged.
const SESSION_EVENTS: usize = 1024;
/// Before the directory is asked for again after a failure.
const PAUSE: Duration = Duration::from_millis(500);

type Sessions = Mutex<HashMap<String, mpsc::Sender<SessionEvent>>>;

impl ClientBus {
    /// Knows the hosts when it returns. Where there are none yet, it waits for the first one for at most that long.
    pub async fn open(client: BrokerClient, patience: Duration) -> Result<Arc<Self>, BrokerError> {
        let client = Arc::new(client.into_multiplexed());
        let mut directory = Directory::default();
        let mut changes = client.client().watch_hosts();
        let (sender, mut hosts) = watch::channel(directory.refresh(client.client()).await?);
        let keeper = Arc::clone(&client);
        let directory = tokio::spawn(async move {
            while changes.changed().await.is_some() {
                match directory.refresh(keeper.client()).await {
                    Ok(hosts) => drop(sender.send_replace(hosts)),
                    // The connection is being made again, and the watch rings when it is.
                    Err(error) => {
                        tracing::debug!(%error, "the directory of hosts could not be read");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        });
        let sessions = Arc::new(Sessions::default());
        let events = tokio::spawn(pass_events(Arc::clone(&client), Arc::clone(&sessions)));
        let messages = tokio::spawn(pass_messages(Arc::clone(&client), Arc::clone(&sessions)));
        let settled = hosts.wait_for(|hosts| is_settled(hosts));
        // Nobody there yet is an answer too.
        tokio::time::timeout(patience, settled).await.ok();
        let tasks = [directory, events, messages].map(AbortOnDropHandle::new);
        Ok(Arc::new(Self { client, hosts, sessions, _tasks: tasks }))
    }
}

fn is_settled(hosts: &Hosts) -> bool {
    let starting = |host: &HostEntry| {
        let servers = &host.card.servers;
        host.away_since_ms.is_none() && servers.iter().any(|server| server.state == toolbus_mcp::ServerState::Starting)
    };
    !hosts.is_empty() && !hosts.iter().any(starting)
}

impl Bus for ClientBus {
    fn start_call<'a>(
        &'a self,
        host: &'a str,
        body: Body,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn BusCall>, BrokerError>> {
        Box::pin(async move {
            let call = self.client.start_call(host, self.request(body), limit).await?;
            Ok(Box::new(OpenCall { id: call.id().as_str().to_owned(), call }) as Box<dyn BusCall>)
        })
    }

    fn send<'a>(&'a self, host: &'a str, body: Body, limit: Duration) -> BoxFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            let send = SendOptions { deadline: Some(limit) };
            self.client.client().deliver_nowait(host, self.request(body), send).await.map(drop)
        })
    }

    fn hosts(&self) -> watch::Receiver<Hosts> {
        self.hosts.clone()
    }

    fn open_session(&self, key: &str) -> mpsc::Receiver<SessionEvent> {
        let (sender, receiver) = mpsc::channel(SESSION_EVENTS);
        let mut sessions = lock(&self.sessions);
        sessions.retain(|_, session| !session.is_closed());
        sessions.insert(key.to_owned(), sender);
        receiver
    }
}

impl ClientBus {
    fn request(&self, body: Body) -> InboxMessage {
        InboxMessage::new(self.client.client().me(), InboxKind::McpRequest, body)
    }
}

struct OpenCall {
    id: String,
    call: Call,
}

impl BusCall for OpenCall {
    fn id(&self) -> &str {
        &self.id
    }

    fn next(&mut self) -> BoxFuture<'_, BusItem> {
        Box::pin(async move {
            match self.call.next().await {
                Some(CallItem::Event(body)) => BusItem::Event(body),
                Some(CallItem::Reply(reply)) => BusItem::Reply(reply.map(|message| message.body)),
                None => BusItem::Reply(Err(BrokerError::Closed)),
            }
        })
    }
}

/// The cards that came, so that each is sent and read only once.
#[derive(Default)]
struct Directory {
    cards: BTreeMap<String, (u64, Arc<Card>)>,
}

impl Directory {
    async fn refresh(&mut self, client: &BrokerClient) -> Result<Hosts, BrokerError> {
        let known: KnownHosts = self.cards.iter().map(|(host, (version, _))| (host.clone(), *version)).collect();
        let seen = client.hosts(&known).await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let mut cards = BTreeMap::new();
        let mut hosts = Vec::new();
        for entry in seen {
            let name = entry.id.to_string();
            let card = match (&entry.card, self.cards.get(&name)) {
                (Some(card), _) => Arc::new(read_card(&name, card)),
                (None, Some((_, card))) => Arc::clone(card),
                (None, None) => continue,
            };
            cards.insert(name.clone(), (entry.version, Arc::clone(&card)));
            let away_since_ms = (!entry.online).then(|| now.saturating_sub(entry.since_ms));
            hosts.push(HostEntry { name, away_since_ms, card });
        }
        self.cards = cards;
        Ok(Arc::new(hosts))
    }
}

fn read_card(host: &str, card: &Body) -> Card {
    card.to().unwrap_or_else(|error| {
        tracing::warn!("the card of host {host:?} can't be read: {error}");
        Card::default()
    })
}

async fn pass_events(client: Arc<MultiplexedClient>, sessions: Arc<Sessions>) {
    while let Some(event) = client.client().next_event().await {
        pass(&sessions, &event.correlation_id, &event.from, &event.body);
    }
}

async fn pass_messages(client: Arc<MultiplexedClient>, sessions: Arc<Sessions>) {
    while let Some(message) = client.client().next_message().await {
        if let (InboxKind::McpEvent, Some(session)) = (&message.kind, &message.correlation_id) {
            pass(&sessions, session, &message.from.session_id, &message.body);
        }
        // Whatever else comes is for nobody here.
        if client.client().ack(message.id).await.is_err() {
            return;
        }
    }
}

fn pass(sessions: &Sessions, session: &MsgId, host: &str, body: &Body) {
    let Some(sender) = lock(sessions).get(session.as_str()).cloned() else { return };
    match std::str::from_utf8(body.as_bytes()).map(HostEvent::parse) {
        Ok(Ok(event)) => {
            if sender.try_send(SessionEvent { host: host.to_owned(), event }).is_err() {
                tracing::warn!("a session does not take what host {host:?} says; it is dropped");
            }
        }
        _ => tracing::debug!("host {host:?} said something that can't be read"),
    }
}

/// A panic while such a lock was held left nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
