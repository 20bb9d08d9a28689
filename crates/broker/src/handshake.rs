//! The handshake of a bus connection: `hello` within the time and size limits, or an error and a close.

use crate::channel::Channel;
use crate::egress::{raw_close_frame, raw_text_frame};
use crate::prefixed::Prefixed;
use crate::presented::PresentedCredentials;
use crate::server::ServerShared;
use crate::shares::AgentConnection;
use bytes::Bytes;
use bytestring::ByteString;
use futures_util::{SinkExt, StreamExt};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_websockets::{CloseCode, Error as WsError, Limits, Message, ServerBuilder, WebSocketStream};
use toolbus_identity::{AuthRefusal, EndReason, Identity};
use toolbus_protocol::{
    BrokerFrame, BrokerLink, ClientFrame, DecodeError, ErrorCode, Framing, Hello, PROTOCOL_VERSION, Refusal, Welcome,
    check_name, json,
};

pub type Socket = WebSocketStream<Prefixed>;

/// Maximum size of a message before the peer is authenticated.
const MAX_HELLO_BYTES: usize = 64 << 10;
/// Maximum number of pings and pongs before `hello`. Each ping queues a pong, which stays in memory if the peer does
/// not read.
const MAX_CONTROL_FRAMES_BEFORE_HELLO: usize = 32;
/// Maximum time to send the close reason and to close the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for credentials that expired, were revoked or were displaced: such a connection must end within a second.
const SHORT_CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Input that is read and discarded while a connection is closed, at most and at a time.
const MAX_DISCARDED: usize = 16 << 20;
const DISCARDED_AT_ONCE: usize = 16 << 10;
/// Pause after each read of input that a peer without an identity sends after its error.
const DISCARD_PAUSE: Duration = Duration::from_millis(5);

/// A connection after a successful handshake.
pub struct Accepted {
    pub channel: Channel,
    pub identity: Identity,
    pub counted: AgentConnection,
    /// The size of messages that was announced to the peer.
    pub largest_message: u64,
    pub framing: Framing,
    pub version: u32,
}

/// Why the broker closes a connection, as reported to the peer.
pub struct CloseReason {
    pub code: ErrorCode,
    pub reason: String,
}

impl CloseReason {
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self { code, reason: detail.into() }
    }

    pub fn frame(&self) -> BrokerFrame {
        BrokerFrame::Error(Refusal { reason: self.reason.clone(), id: None, code: Some(self.code) })
    }
}

impl From<EndReason> for CloseReason {
    fn from(reason: EndReason) -> Self {
        let code = match reason {
            EndReason::Expired => ErrorCode::CredentialExpired,
            EndReason::Revoked => ErrorCode::CredentialRevoked,
        };
        Self::new(code, code.meaning())
    }
}

/// The reason is logged, so it must not quote the peer's input: that can be long, or a secret in the wrong field.
impl From<DecodeError> for CloseReason {
    fn from(error: DecodeError) -> Self {
        let text = error.to_string();
        let reason = match (&error, text.find("invalid "), text.rfind(", expected ")) {
            (DecodeError::Json(_), Some(quote), Some(expected)) => {
                format!("{}invalid value{}", &text[..quote], &text[expected..])
            }
            _ => text,
        };
        Self::new(error.code(), reason)
    }
}

impl From<AuthRefusal> for CloseReason {
    fn from(refusal: AuthRefusal) -> Self {
        Self::new(refusal.code, refusal.reason)
    }
}

/// Performs the handshake. Returns `None` after the connection was refused or closed by the peer.
pub async fn handshake(stream: Prefixed, presented: PresentedCredentials, server: &ServerShared) -> Option<Accepted> {
    let limits = Limits::default().max_payload_len(Some(MAX_HELLO_BYTES));
    let mut socket = ServerBuilder::new().limits(limits).serve(stream);
    let outcome = tokio::select! {
        outcome = tokio::time::timeout(server.options.hello_timeout, authenticate(&mut socket, presented, server)) => {
            outcome.unwrap_or_else(|_| {
                Err(CloseReason::new(ErrorCode::HelloTimeout, ErrorCode::HelloTimeout.meaning()))
            })
        }
        () = server.stop.cancelled() => Err(shutting_down()),
    };
    let close = match outcome {
        Ok(Some((authenticated, hello))) => return welcome(socket, authenticated, &hello, server).await,
        Ok(None) => {
            answer_close(&mut socket).await;
            return None;
        }
        Err(close) => close,
    };
    server.refusal_log.line(|suppressed| {
        tracing::warn!(code = close.code.code(), reason = close.reason, suppressed, "refused a connection");
    });
    if let Some(audit) = &server.options.audit {
        audit.connection_refused(close.code.code());
    }
    close_with_error(&mut socket, &close, |_| DISCARD_PAUSE).await;
    None
}

fn shutting_down() -> CloseReason {
    CloseReason::new(ErrorCode::ShuttingDown, ErrorCode::ShuttingDown.meaning())
}

/// Reads messages until `hello`, authenticates the peer and counts its connection; `None` if the peer closed the connection.
async fn authenticate(
    socket: &mut Socket,
    presented: PresentedCredentials,
    server: &ServerShared,
) -> Result<Option<((Identity, AgentConnection), Hello)>, CloseReason> {
    let mut control_frames = 0;
    let text = loop {
        match socket.next().await {
            None => return Ok(None),
            Some(Err(error)) => return close_reason(error).map_or(Ok(None), Err),
            Some(Ok(message)) if message.is_text() => break Bytes::from(message.into_payload()),
            Some(Ok(message)) if message.is_binary() => {
                let reason = "expected a `hello` frame, got a binary message";
                return Err(CloseReason::new(ErrorCode::ExpectedHello, reason));
            }
            Some(Ok(message)) if message.is_close() => return Ok(None),
            Some(Ok(_)) if control_frames == MAX_CONTROL_FRAMES_BEFORE_HELLO => {
                let reason = "expected a `hello` frame, got too many pings";
                return Err(CloseReason::new(ErrorCode::ExpectedHello, reason));
            }
            Some(Ok(_)) => control_frames += 1,
        }
    };
    let frame = json::read_client(&text)?;
    let ClientFrame::Hello(hello) = frame else {
        return Err(CloseReason::new(ErrorCode::ExpectedHello, "expected a `hello` frame, got another frame"));
    };
    // Connections in the broker's own process are still opened: a stop may need them to end running calls.
    if server.is_draining() {
        return Err(shutting_down());
    }
    let identity = server.authenticate(&presented.credential(&hello.token, &hello.agent)?)?;
    // The credential's name and the peer's suffix can exceed the length limit together.
    check_name(&identity.agent.session_id).map_err(DecodeError::BadName)?;
    let counted = server.shares.connect(&identity).ok_or_else(|| {
        let reason = format!("agent {:?} has used up its share of the broker's connections", identity.principal());
        CloseReason::new(ErrorCode::TooManyConnections, reason)
    })?;
    Ok(Some(((identity, counted), hello)))
}

async fn welcome(
    mut socket: Socket,
    (identity, counted): (Identity, AgentConnection),
    hello: &Hello,
    server: &ServerShared,
) -> Option<Accepted> {
    let version = hello.version.unwrap_or(1).min(PROTOCOL_VERSION);
    let framing = if version >= 2 { hello.framing.unwrap_or_default() } else { Framing::Json };
    let (frames, largest_message) = welcome_frames(&identity, &counted, framing, server);
    for frame in frames {
        let text = json::write_broker(&frame).expect("handshake frames have no bodies");
        socket.feed(Message::text(text)).await.ok()?;
    }
    let flushed = tokio::time::timeout(server.options.hello_timeout, socket.flush()).await;
    flushed.ok()?.ok()?;
    Some(Accepted { channel: Channel::Socket(Box::new(socket)), identity, counted, largest_message, framing, version })
}

/// A connection within this process, whose peer is known.
pub fn accept_link(link: BrokerLink, identity: Identity, counted: AgentConnection, server: &ServerShared) -> Accepted {
    let framing = Framing::Compact;
    let (frames, largest_message) = welcome_frames(&identity, &counted, framing, server);
    frames.into_iter().for_each(|frame| link.send(frame));
    Accepted { channel: Channel::Link(link), identity, counted, largest_message, framing, version: PROTOCOL_VERSION }
}

/// The answer to `hello`, and the size of messages that it announces.
fn welcome_frames(
    identity: &Identity,
    counted: &AgentConnection,
    framing: Framing,
    server: &ServerShared,
) -> ([BrokerFrame; 2], u64) {
    let mut limits = server.announced_limits(identity.rights);
    limits.max_frame_bytes = limits.max_frame_bytes.min(counted.largest_input());
    let welcome = BrokerFrame::Welcome(Welcome {
        version: Some(PROTOCOL_VERSION),
        framing: Some(framing),
        limits: Some(limits),
        heartbeat_ms: Some(server.options.heartbeat.as_millis() as u64),
        agent: Some(identity.agent.clone()),
    });
    let namespace = BrokerFrame::BrokerIdentity { id: ByteString::from(server.core.identity()) };
    ([welcome, namespace], limits.max_frame_bytes)
}

/// The close reason for a violation of the WebSocket protocol; `None` if the connection is lost.
pub fn close_reason(error: WsError) -> Option<CloseReason> {
    match error {
        WsError::PayloadTooLong { len, max_len } => {
            let reason = format!("the frame has {len} bytes; the limit is {max_len}");
            Some(CloseReason::new(ErrorCode::FrameTooLarge, reason))
        }
        WsError::Protocol(error) => {
            Some(CloseReason::new(ErrorCode::BadFrame, format!("WebSocket protocol error: {error}")))
        }
        _ => None,
    }
}

/// Sends an error frame and a close frame, and closes. A timeout bounds it, in case the peer does not read. See
/// [`shutdown_and_discard`] for `discarded`.
pub async fn close_with_error(socket: &mut Socket, close: &CloseReason, discarded: impl Fn(usize) -> Duration) {
    let text = json::write_broker(&close.frame()).expect("an error frame has no body");
    let closing = async {
        if let Err(WsError::AlreadyClosed) = socket.feed(Message::text(text.clone())).await {
            // The library has queued a close frame of its own and accepts no more messages: bypass it.
            socket.get_mut().write_all(&raw_text_frame(&text)).await.ok();
            socket.get_mut().write_all(&raw_close_frame(CloseCode::POLICY_VIOLATION, close.code.code())).await.ok();
        } else {
            socket.feed(Message::close(Some(CloseCode::POLICY_VIOLATION), close.code.code())).await.ok();
            socket.flush().await.ok();
        }
        shutdown_and_discard(socket.get_mut(), discarded).await;
    };
    let limit = match close.code {
        ErrorCode::CredentialExpired | ErrorCode::CredentialRevoked | ErrorCode::Displaced => SHORT_CLOSE_TIMEOUT,
        _ => CLOSE_TIMEOUT,
    };
    tokio::time::timeout(limit, closing).await.ok();
}

/// Answers the peer's close frame.
pub async fn answer_close(socket: &mut Socket) {
    tokio::time::timeout(CLOSE_TIMEOUT, socket.close()).await.ok();
}

/// Shuts down the write side and discards input that is still in transit: unread bytes would make the kernel send a
/// reset, and the peer could lose the close reason. `discarded` gets the size of each read and returns how long to wait before
/// the next one: reading a large message only to refuse it must not cost more than the peer's share of work.
pub async fn shutdown_and_discard(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    discarded: impl Fn(usize) -> Duration,
) {
    stream.shutdown().await.ok();
    let mut scratch = vec![0; DISCARDED_AT_ONCE];
    let mut left = MAX_DISCARDED;
    while let Ok(count) = stream.read(&mut scratch).await {
        left = left.saturating_sub(count);
        if count == 0 || left == 0 {
            return;
        }
        let pause = discarded(count);
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
}
