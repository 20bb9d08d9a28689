//! Establishing a connection: the endpoint, then the `hello`/`welcome` handshake. The socket is opened in `dial`.

use crate::dial::Dialer;
use crate::options::ClientOptions;
use crate::terms::Terms;
use crate::tls;
use crate::{BrokerError, BrokerResult};
use futures_util::{SinkExt, StreamExt};
use http::Uri;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_websockets::{Error as WsError, Limits, Message, WebSocketStream};
use toolbus_base::BoxFuture;
use toolbus_protocol::{
    AgentRef, BrokerFrame, ClientFrame, ClientLink, ErrorCode, Framing, Hello, PROTOCOL_VERSION, Refusal, Welcome, json,
};

/// The byte stream of a connection.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

pub type Socket = WebSocketStream<Box<dyn Transport>>;

/// The way to the broker.
pub enum Channel {
    Socket(Box<Socket>),
    /// To a broker in the same process.
    Link(ClientLink),
}

pub struct Connection {
    pub channel: Channel,
    pub terms: Terms,
    /// The broker is pinged when it has been silent for longer than this.
    pub heartbeat: Duration,
    /// Our identity as stamped by the broker, if `welcome` carries it.
    pub agent: Option<AgentRef>,
}

/// Timeout of a connection to one of several brokers, handshake included.
const SEVERAL_TIMEOUT: Duration = Duration::from_secs(3);

/// The endpoint and the agent to connect as.
#[derive(Clone)]
pub struct Destination {
    endpoint: Endpoint,
    agent: AgentRef,
}

/// Makes links to a broker in the same process, one for each connection.
pub type LinkMaker = dyn Fn() -> BrokerResult<ClientLink> + Send + Sync;

#[derive(Clone)]
enum Endpoint {
    Network { brokers: Arc<Brokers>, token: String },
    Local(Arc<LinkMaker>),
}

/// The addresses of a broker, or of the brokers of a cluster.
struct Brokers {
    addresses: Vec<Address>,
    /// The one that is tried first.
    preferred: AtomicUsize,
}

struct Address {
    uri: Uri,
    is_secure: bool,
}

impl Destination {
    /// `endpoint` is an address, or several that are separated by commas. The agent's name decides which one is tried first,
    /// so that agents with the same addresses spread over the brokers.
    pub fn new(endpoint: &str, agent: AgentRef, token: &str) -> BrokerResult<Self> {
        let addresses: Vec<Address> = endpoint.split(',').map(Address::parse).collect::<BrokerResult<_>>()?;
        let mut hasher = DefaultHasher::new();
        agent.session_id.hash(&mut hasher);
        let preferred = AtomicUsize::new((hasher.finish() % addresses.len() as u64) as usize);
        let brokers = Arc::new(Brokers { addresses, preferred });
        Ok(Self { endpoint: Endpoint::Network { brokers, token: token.to_owned() }, agent })
    }

    pub fn in_process(agent: AgentRef, links: Arc<LinkMaker>) -> Self {
        Self { endpoint: Endpoint::Local(links), agent }
    }
}

impl Address {
    fn parse(endpoint: &str) -> BrokerResult<Self> {
        let endpoint = endpoint.trim();
        let uri: Uri = endpoint.parse().map_err(|error| BrokerError::Address(format!("{endpoint}: {error}")))?;
        let is_secure = match uri.scheme_str() {
            Some("ws") => false,
            Some("wss" | "https") => true,
            _ => return Err(BrokerError::Address(format!("{endpoint}: the scheme must be ws:// or wss://"))),
        };
        if uri.host().is_none() {
            return Err(BrokerError::Address(format!("{endpoint}: it has no host")));
        }
        Ok(Self { uri, is_secure })
    }
}

pub fn connect<'a>(
    destination: &'a Destination,
    options: &'a ClientOptions,
) -> BoxFuture<'a, BrokerResult<Connection>> {
    match &destination.endpoint {
        Endpoint::Network { brokers, token } => Box::pin(brokers.connect(&destination.agent, token, options)),
        Endpoint::Local(links) => Box::pin(within(options.connect_timeout, connect_link(links))),
    }
}

impl Brokers {
    /// Tries each broker once, the one that answered last first.
    async fn connect(&self, agent: &AgentRef, token: &str, options: &ClientOptions) -> BrokerResult<Connection> {
        let (count, first) = (self.addresses.len(), self.preferred.load(Ordering::Relaxed));
        // A broker that hangs must not delay the next one for long.
        let limit = if count > 1 { options.connect_timeout.min(SEVERAL_TIMEOUT) } else { options.connect_timeout };
        let mut failure = None;
        for number in (first..first + count).map(|number| number % count) {
            let Address { uri, is_secure } = &self.addresses[number];
            let connecting = async {
                let limits = Limits::default().max_payload_len(Some(options.max_frame_bytes));
                let socket = Dialer { uri, is_secure: *is_secure, options }.connect(limits).await?;
                handshake(socket, agent, token, options).await
            };
            match within(limit, connecting).await {
                Ok(connection) => {
                    self.preferred.store(number, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(error) if error.is_final() => return Err(error),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.expect("there is an address"))
    }
}

async fn connect_link(links: &Arc<LinkMaker>) -> BrokerResult<Connection> {
    let link = links()?;
    // A broker that refuses its own process does it when the link is made.
    let welcome = loop {
        match std::future::poll_fn(|cx| link.poll_receive(cx)).await {
            Some(BrokerFrame::Welcome(welcome)) => break welcome,
            Some(BrokerFrame::Error(refusal)) => return Err(refusal_error(refusal)),
            Some(_) => {}
            None => return Err(closed_in_handshake()),
        }
    };
    Ok(Connection::new(Channel::Link(link), welcome))
}

async fn within<T>(limit: Duration, connecting: impl Future<Output = BrokerResult<T>>) -> BrokerResult<T> {
    tokio::time::timeout(limit, connecting).await.unwrap_or(Err(BrokerError::Timeout(limit)))
}

async fn handshake(
    mut socket: Socket,
    agent: &AgentRef,
    token: &str,
    options: &ClientOptions,
) -> BrokerResult<Connection> {
    let hello = ClientFrame::Hello(Hello {
        agent: agent.clone(),
        token: token.to_owned(),
        version: Some(PROTOCOL_VERSION),
        framing: Some(options.framing),
    });
    let text = json::write_client(&hello, agent);
    let sent = socket.send(Message::text(text)).await;
    sent.map_err(|error| handshake_error("can't send hello", error))?;
    let welcome = await_welcome(&mut socket).await?;
    Ok(Connection::new(Channel::Socket(Box::new(socket)), welcome))
}

impl Connection {
    fn new(channel: Channel, welcome: Welcome) -> Self {
        let version = welcome.version.unwrap_or(1).min(PROTOCOL_VERSION);
        let framing = if version >= 2 { welcome.framing.unwrap_or_default() } else { Framing::Json };
        let heartbeat = Duration::from_millis(welcome.heartbeat_ms.unwrap_or(10_000).clamp(50, 600_000));
        let max_frame_bytes = welcome.limits.map(|limits| limits.max_frame_bytes);
        Self { channel, terms: Terms { version, framing, max_frame_bytes }, heartbeat, agent: welcome.agent }
    }
}

fn closed_in_handshake() -> BrokerError {
    BrokerError::Transport("the broker closed the connection during the handshake".into())
}

async fn await_welcome(socket: &mut Socket) -> BrokerResult<Welcome> {
    while let Some(message) = socket.next().await {
        let message = message.map_err(|error| handshake_error("no welcome", error))?;
        let Some(text) = message.as_text() else { continue };
        match json::read_broker(text.as_bytes()) {
            Ok(BrokerFrame::Welcome(welcome)) => return Ok(welcome),
            Ok(BrokerFrame::Error(refusal)) => {
                return Err(refusal_error(refusal));
            }
            Ok(_) => {}
            Err(error) => return Err(BrokerError::Protocol(error.to_string())),
        }
    }
    Err(closed_in_handshake())
}

/// With TLS, the broker's rejection of our certificate may arrive only after the TLS handshake.
fn handshake_error(what: &str, error: WsError) -> BrokerError {
    match error {
        WsError::Io(error) => match tls::reason(&error) {
            Some(reason) => BrokerError::Tls(reason),
            None => BrokerError::Transport(format!("{what}: {error}")),
        },
        error => BrokerError::Transport(format!("{what}: {error}")),
    }
}

/// A refusal by a busy or stopping broker is transient. All others concern our credential and are permanent.
fn refusal_error(Refusal { code, reason, .. }: Refusal) -> BrokerError {
    match code {
        Some(
            code @ (ErrorCode::HelloTimeout
            | ErrorCode::ShuttingDown
            | ErrorCode::TooManyConnections
            | ErrorCode::CannotCheck),
        ) => BrokerError::Busy { code, reason },
        code => BrokerError::Auth { code, reason },
    }
}
