//! Making a connection: address, socket, WebSocket, `hello` and `welcome`.

use crate::error::{BrokerError, BrokerResult};
use crate::options::ClientOptions;
use crate::session::Terms;
use futures_util::{SinkExt, StreamExt};
use http::Uri;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_websockets::{ClientBuilder, Limits, Message, WebSocketStream};
use toolbus_protocol::{
    AgentRef, BrokerFrame, ClientFrame, ErrorCode, Framing, Hello, PROTOCOL_VERSION, Refusal, Welcome, json,
};

pub struct Link {
    pub socket: WebSocketStream<TcpStream>,
    pub terms: Terms,
    /// A broker that is silent for longer than this is asked for a sign of life.
    pub heartbeat: Duration,
}

/// Where to connect and as whom.
#[derive(Clone)]
pub struct Destination {
    pub uri: Uri,
    pub agent: AgentRef,
    pub token: String,
}

impl Destination {
    pub fn new(endpoint: &str, agent: AgentRef, token: &str) -> BrokerResult<Self> {
        let uri: Uri = endpoint.parse().map_err(|error| BrokerError::Address(format!("{endpoint}: {error}")))?;
        match uri.scheme_str() {
            Some("ws") => {}
            _ => return Err(BrokerError::Address(format!("{endpoint}: it has to begin with ws://"))),
        }
        if uri.host().is_none() {
            return Err(BrokerError::Address(format!("{endpoint}: it names no host")));
        }
        Ok(Self { uri, agent, token: token.to_owned() })
    }
}

pub async fn connect(destination: &Destination, options: &ClientOptions) -> BrokerResult<Link> {
    tokio::time::timeout(options.connect_timeout, open(destination, options))
        .await
        .unwrap_or(Err(BrokerError::Timeout(options.connect_timeout)))
}

async fn open(destination: &Destination, options: &ClientOptions) -> BrokerResult<Link> {
    let uri = &destination.uri;
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let transport =
        |what: &str, error: &dyn std::fmt::Display| BrokerError::Transport(format!("{what} {uri}: {error}"));
    let socket = TcpStream::connect((host, uri.port_u16().unwrap_or(80)))
        .await
        .map_err(|error| transport("can't reach", &error))?;
    socket.set_nodelay(true).map_err(|error| transport("can't set up", &error))?;
    let limits = Limits::default().max_payload_len(Some(options.max_frame_bytes));
    let (mut socket, _) = ClientBuilder::from_uri(uri.clone())
        .limits(limits)
        .connect_on(socket)
        .await
        .map_err(|error| transport("no WebSocket at", &error))?;

    let hello = ClientFrame::Hello(Hello {
        agent: destination.agent.clone(),
        token: destination.token.clone(),
        version: Some(PROTOCOL_VERSION),
        framing: Some(options.framing),
    });
    let text = json::write_client(&hello, &destination.agent);
    socket.send(Message::text(text)).await.map_err(|error| transport("can't greet", &error))?;
    let welcome = await_welcome(&mut socket).await?;
    let version = welcome.version.unwrap_or(1).min(PROTOCOL_VERSION);
    let framing = if version >= 2 { welcome.framing.unwrap_or_default() } else { Framing::Json };
    let heartbeat = Duration::from_millis(welcome.heartbeat_ms.unwrap_or(10_000).clamp(50, 600_000));
    let max_frame_bytes = welcome.limits.map(|limits| limits.max_frame_bytes);
    Ok(Link { socket, terms: Terms { version, framing, max_frame_bytes }, heartbeat })
}

async fn await_welcome(socket: &mut WebSocketStream<TcpStream>) -> BrokerResult<Welcome> {
    while let Some(message) = socket.next().await {
        let message = message.map_err(|error| BrokerError::Transport(error.to_string()))?;
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

/// A broker that is busy or on its way out says so for now; everything else is about who we are, and stays.
fn refused(Refusal { code, reason, .. }: Refusal) -> BrokerError {
    match code {
        Some(ErrorCode::HelloTimeout | ErrorCode::ShuttingDown | ErrorCode::TooManyConnections) => {
            BrokerError::Transport(reason)
        }
        code => BrokerError::Auth { code, reason },
    }
}
