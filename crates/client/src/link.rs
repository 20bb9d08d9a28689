//! Making a connection: the destination, `hello` and `welcome`. The socket itself is made in `dial`.

use crate::dial::Dialling;
use crate::error::{BrokerError, BrokerResult};
use crate::options::ClientOptions;
use crate::terms::Terms;
use crate::tls;
use futures_util::{SinkExt, StreamExt};
use http::Uri;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio_websockets::{ClientBuilder, Error as WsError, Limits, Message, WebSocketStream};
use toolbus_protocol::{
    AgentRef, BrokerFrame, ClientFrame, ErrorCode, Framing, Hello, PROTOCOL_VERSION, Refusal, Welcome, json,
};

/// What a connection runs on: a socket, or a pipe within the process.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

pub type Socket = WebSocketStream<Box<dyn Transport>>;

pub struct Link {
    pub socket: Socket,
    pub terms: Terms,
    /// A broker that is silent for longer than this is asked for a sign of life.
    pub heartbeat: Duration,
    /// Who we are to the broker, if it says so.
    pub agent: Option<AgentRef>,
}

/// Where to connect and as whom.
#[derive(Clone)]
pub struct Destination {
    way: Way,
    agent: AgentRef,
}

/// Makes pipes to a broker in the same process, one for each connection.
pub type PipeMaker = dyn Fn() -> BrokerResult<DuplexStream> + Send + Sync;

#[derive(Clone)]
enum Way {
    Network { uri: Uri, is_secure: bool, token: String },
    Pipe(Arc<PipeMaker>),
}

impl Destination {
    pub fn new(endpoint: &str, agent: AgentRef, token: &str) -> BrokerResult<Self> {
        let uri: Uri = endpoint.parse().map_err(|error| BrokerError::Address(format!("{endpoint}: {error}")))?;
        let is_secure = match uri.scheme_str() {
            Some("ws") => false,
            Some("wss" | "https") => true,
            _ => return Err(BrokerError::Address(format!("{endpoint}: it has to begin with ws:// or wss://"))),
        };
        if uri.host().is_none() {
            return Err(BrokerError::Address(format!("{endpoint}: it names no host")));
        }
        Ok(Self { way: Way::Network { uri, is_secure, token: token.to_owned() }, agent })
    }

    pub fn within_process(agent: AgentRef, pipes: Arc<PipeMaker>) -> Self {
        Self { way: Way::Pipe(pipes), agent }
    }
}

pub async fn connect(destination: &Destination, options: &ClientOptions) -> BrokerResult<Link> {
    let connecting = async {
        let limits = Limits::default().max_payload_len(Some(options.max_frame_bytes));
        match &destination.way {
            Way::Network { uri, is_secure, token } => {
                let socket = Dialling { uri, is_secure: *is_secure, options }.connect(limits).await?;
                greet(socket, &destination.agent, token, options).await
            }
            Way::Pipe(pipes) => {
                let pipe: Box<dyn Transport> = Box::new(pipes()?);
                let socket = ClientBuilder::new().limits(limits).take_over(pipe);
                greet(socket, &destination.agent, "", options).await
            }
        }
    };
    tokio::time::timeout(options.connect_timeout, connecting)
        .await
        .unwrap_or(Err(BrokerError::Timeout(options.connect_timeout)))
}

async fn greet(mut socket: Socket, agent: &AgentRef, token: &str, options: &ClientOptions) -> BrokerResult<Link> {
    let hello = ClientFrame::Hello(Hello {
        agent: agent.clone(),
        token: token.to_owned(),
        version: Some(PROTOCOL_VERSION),
        framing: Some(options.framing),
    });
    let text = json::write_client(&hello, agent);
    let sent = socket.send(Message::text(text)).await;
    sent.map_err(|error| lost("can't greet", error))?;
    let welcome = await_welcome(&mut socket).await?;
    let version = welcome.version.unwrap_or(1).min(PROTOCOL_VERSION);
    let framing = if version >= 2 { welcome.framing.unwrap_or_default() } else { Framing::Json };
    let heartbeat = Duration::from_millis(welcome.heartbeat_ms.unwrap_or(10_000).clamp(50, 600_000));
    let max_frame_bytes = welcome.limits.map(|limits| limits.max_frame_bytes);
    Ok(Link { socket, terms: Terms { version, framing, max_frame_bytes }, heartbeat, agent: welcome.agent })
}

async fn await_welcome(socket: &mut Socket) -> BrokerResult<Welcome> {
    while let Some(message) = socket.next().await {
        let message = message.map_err(|error| lost("no welcome", error))?;
        let Some(text) = message.as_text() else { continue };
        match json::read_broker(text.as_bytes()) {
            Ok(BrokerFrame::Welcome(welcome)) => return Ok(welcome),
            Ok(BrokerFrame::Error(refusal)) => {
                return Err(refused(refusal));
            }
            Ok(_) => {}
            Err(error) => return Err(BrokerError::Protocol(error.to_string())),
        }
    }
    Err(BrokerError::Transport("the broker closed the connection during the handshake".into()))
}

/// With TLS the broker may find fault with our certificate only now.
fn lost(what: &str, error: WsError) -> BrokerError {
    match error {
        WsError::Io(error) => match tls::reason(&error) {
            Some(reason) => BrokerError::Tls(reason),
            None => BrokerError::Transport(format!("{what}: {error}")),
        },
        error => BrokerError::Transport(format!("{what}: {error}")),
    }
}

/// A broker that is busy or on its way out says so for now; everything else is about who we are, and stays.
fn refused(Refusal { code, reason, .. }: Refusal) -> BrokerError {
    match code {
        Some(
            ErrorCode::HelloTimeout | ErrorCode::ShuttingDown | ErrorCode::TooManyConnections | ErrorCode::CannotCheck,
        ) => BrokerError::Transport(reason),
        code => BrokerError::Auth { code, reason },
    }
}
