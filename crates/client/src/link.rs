//! Making a connection: address, socket, WebSocket, `hello` and `welcome`.

use crate::error::{BrokerError, BrokerResult};
use crate::options::{ClientOptions, TlsOptions};
use crate::terms::Terms;
use crate::tls;
use futures_util::{SinkExt, StreamExt};
use http::Uri;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::TcpStream;
use tokio_websockets::upgrade::Error as UpgradeError;
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
        if !is_secure && !is_here(uri.host().unwrap_or_default()) {
            tracing::warn!("{endpoint} is in plain text: whoever is on the way can read the token and all messages");
        }
        Ok(Self { way: Way::Network { uri, is_secure, token: token.to_owned() }, agent })
    }

    pub fn within_process(agent: AgentRef, pipes: Arc<PipeMaker>) -> Self {
        Self { way: Way::Pipe(pipes), agent }
    }
}

/// Whether it names this very machine.
fn is_here(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

pub async fn connect(destination: &Destination, options: &ClientOptions) -> BrokerResult<Link> {
    let connecting = async {
        let limits = Limits::default().max_payload_len(Some(options.max_frame_bytes));
        match &destination.way {
            Way::Network { uri, is_secure, token } => {
                let secure = is_secure.then_some(&options.tls);
                greet(dial(uri, secure, limits).await?, &destination.agent, token, options).await
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

/// Over TLS where there are options for it.
async fn dial(uri: &Uri, secure: Option<&TlsOptions>, limits: Limits) -> BrokerResult<Socket> {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let transport =
        |what: &str, error: &dyn std::fmt::Display| BrokerError::Transport(format!("{what} {uri}: {error}"));
    let usual_port = if secure.is_some() { 443 } else { 80 };
    let socket = TcpStream::connect((host, uri.port_u16().unwrap_or(usual_port)))
        .await
        .map_err(|error| transport("can't reach", &error))?;
    socket.set_nodelay(true).map_err(|error| transport("can't set up", &error))?;
    let socket: Box<dyn Transport> = match secure {
        Some(options) => Box::new(tls::secure(socket, uri, host, options).await?),
        None => Box::new(socket),
    };
    match ClientBuilder::from_uri(uri.clone()).limits(limits).connect_on(socket).await {
        Ok((socket, _)) => Ok(socket),
        Err(WsError::Io(error)) if secure.is_some() => Err(tls::explain(uri, &error)),
        Err(WsError::Upgrade(UpgradeError::DidNotSwitchProtocols(400))) if secure.is_none() => {
            Err(BrokerError::Tls(format!("{uri} does not want plain text; it may want TLS, which is wss://")))
        }
        Err(error) => Err(transport("no WebSocket at", &error)),
    }
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
