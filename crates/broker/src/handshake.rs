//! The first seconds of a connection: `hello` in time and in size, or an error and the door.

use crate::egress::{raw_close_frame, raw_text_frame};
use crate::prefixed::Prefixed;
use crate::presented::Presented;
use crate::server::ServerShared;
use bytes::Bytes;
use bytestring::ByteString;
use futures_util::{SinkExt, StreamExt};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio_websockets::{CloseCode, Error as WsError, Limits, Message, ServerBuilder, WebSocketStream};
use toolbus_identity::{AuthRefusal, EndReason, Identity};
use toolbus_protocol::{
    BrokerFrame, ClientFrame, DecodeError, ErrorCode, Framing, Hello, PROTOCOL_VERSION, Refusal, Welcome, check_name,
    json,
};

pub type Socket = WebSocketStream<Prefixed>;

/// How much a peer may send before it is known.
const MAX_HELLO_BYTES: usize = 64 << 10;
/// Pings and pongs before `hello`. Each ping is owed a pong, which waits in memory if the peer takes none.
const MAX_SIGNS_BEFORE_HELLO: usize = 32;
/// The longest wait for a peer to take a goodbye.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);
/// The same for those who may not stay: whoever's credential is taken back is gone within a second.
const SHORT_GOODBYE_LIMIT: Duration = Duration::from_millis(500);

/// A peer that was let in.
pub struct Greeted {
    pub socket: Socket,
    pub identity: Identity,
    pub framing: Framing,
    pub version: u32,
}

/// Why a connection ended before or after the handshake, as told to the peer.
pub struct Goodbye {
    pub code: ErrorCode,
    pub reason: String,
}

impl Goodbye {
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self { code, reason: detail.into() }
    }
}

impl From<EndReason> for Goodbye {
    fn from(reason: EndReason) -> Self {
        let code = match reason {
            EndReason::Expired => ErrorCode::CredentialExpired,
            EndReason::Revoked => ErrorCode::CredentialRevoked,
        };
        Self::new(code, code.meaning())
    }
}

/// The reason ends up in the log, so it quotes nothing of what the peer sent: that may be long, or a secret in the
/// wrong place.
impl From<DecodeError> for Goodbye {
    fn from(error: DecodeError) -> Self {
        let text = error.to_string();
        let reason = match (&error, text.find("invalid "), text.rfind(", expected ")) {
            (DecodeError::Json(_), Some(quote), Some(expected)) => {
                format!("{}a wrong value{}", &text[..quote], &text[expected..])
            }
            _ => text,
        };
        Self::new(error.code(), reason)
    }
}

impl From<AuthRefusal> for Goodbye {
    fn from(refusal: AuthRefusal) -> Self {
        Self::new(refusal.code, refusal.reason)
    }
}

pub async fn greet(stream: Prefixed, presented: Presented, server: &ServerShared) -> Option<Greeted> {
    let limits = Limits::default().max_payload_len(Some(MAX_HELLO_BYTES));
    let mut socket = ServerBuilder::new().limits(limits).serve(stream);
    let outcome = tokio::select! {
        outcome = tokio::time::timeout(server.options.hello_timeout, admit(&mut socket, presented, server)) => {
            outcome.unwrap_or_else(|_| Err(Goodbye::new(ErrorCode::HelloTimeout, ErrorCode::HelloTimeout.meaning())))
        }
        () = server.stop.cancelled() => {
            Err(Goodbye::new(ErrorCode::ShuttingDown, ErrorCode::ShuttingDown.meaning()))
        }
    };
    let goodbye = match outcome {
        Ok(Some((identity, hello))) => return welcome(socket, identity, &hello, server).await,
        Ok(None) => {
            part(&mut socket).await;
            return None;
        }
        Err(goodbye) => goodbye,
    };
    tracing::warn!(code = goodbye.code.code(), reason = goodbye.reason, "a connection was refused");
    if let Some(audit) = &server.options.audit {
        audit.connection_refused(goodbye.code.code());
    }
    dismiss(&mut socket, &goodbye).await;
    None
}

/// Reads frames until `hello`; `None` if the peer left.
async fn admit(
    socket: &mut Socket,
    mut presented: Presented,
    server: &ServerShared,
) -> Result<Option<(Identity, Hello)>, Goodbye> {
    let mut signs = 0;
    let text = loop {
        match socket.next().await {
            None => return Ok(None),
            Some(Err(error)) => return ws_goodbye(error).map_or(Ok(None), Err),
            Some(Ok(message)) if message.is_text() => break Bytes::from(message.into_payload()),
            Some(Ok(message)) if message.is_binary() => {
                return Err(Goodbye::new(ErrorCode::ExpectedHello, "expected a `hello` frame, got a binary message"));
            }
            Some(Ok(message)) if message.is_close() => return Ok(None),
            Some(Ok(_)) if signs == MAX_SIGNS_BEFORE_HELLO => {
                return Err(Goodbye::new(ErrorCode::ExpectedHello, "expected a `hello` frame, got ping after ping"));
            }
            Some(Ok(_)) => signs += 1,
        }
    };
    let frame = json::read_client(&text)?;
    let ClientFrame::Hello(hello) = frame else {
        return Err(Goodbye::new(ErrorCode::ExpectedHello, "expected hello"));
    };
    let identity = match presented.known_as.take() {
        Some(identity) => identity,
        None => server.authenticate(&presented.credential(&hello.token, &hello.agent)?)?,
    };
    // A name from the credential and a suffix from the peer can be too long together.
    check_name(&identity.agent.session_id).map_err(DecodeError::BadName)?;
    Ok(Some((identity, hello)))
}

async fn welcome(mut socket: Socket, identity: Identity, hello: &Hello, server: &ServerShared) -> Option<Greeted> {
    let version = hello.version.unwrap_or(1).min(PROTOCOL_VERSION);
    let framing = if version >= 2 { hello.framing.unwrap_or_default() } else { Framing::Json };
    let welcome = BrokerFrame::Welcome(Welcome {
        version: Some(PROTOCOL_VERSION),
        framing: Some(framing),
        limits: Some(server.announced_limits(identity.rights)),
        heartbeat_ms: Some(server.options.heartbeat.as_millis() as u64),
        agent: Some(identity.agent.clone()),
    });
    let namespace = BrokerFrame::BrokerIdentity { id: ByteString::from(server.core.identity()) };
    for frame in [welcome, namespace] {
        let text = json::write_broker(&frame).expect("handshake frames have no bodies");
        socket.feed(Message::text(text)).await.ok()?;
    }
    let flushed = tokio::time::timeout(server.options.hello_timeout, socket.flush()).await;
    flushed.ok()?.ok()?;
    // A message a little over the limit is still read, so that its sender can be told which one it was.
    socket.limits_mut().set_max_payload_len(Some(server.options.max_frame_bytes * 2));
    Some(Greeted { socket, identity, framing, version })
}

/// What to tell a peer that broke the WebSocket protocol; `None` if the connection is simply gone.
pub fn ws_goodbye(error: WsError) -> Option<Goodbye> {
    match error {
        WsError::PayloadTooLong { len, max_len } => {
            Some(Goodbye::new(ErrorCode::FrameTooLarge, format!("a frame of {len} bytes; the limit is {max_len}")))
        }
        WsError::Protocol(error) => Some(Goodbye::new(ErrorCode::BadFrame, format!("not WebSocket: {error}"))),
        _ => None,
    }
}

/// Says why, and closes. Bounded: a peer that doesn't listen is left.
pub async fn dismiss(socket: &mut Socket, goodbye: &Goodbye) {
    let frame = BrokerFrame::Error(Refusal { reason: goodbye.reason.clone(), id: None, code: Some(goodbye.code) });
    let text = json::write_broker(&frame).expect("an error frame has no body");
    let farewell = async {
        if let Err(WsError::AlreadyClosed) = socket.feed(Message::text(text.clone())).await {
            // The library has queued a close frame with words of its own and takes no more messages. Ours go instead.
            socket.get_mut().write_all(&raw_text_frame(&text)).await.ok();
            socket.get_mut().write_all(&raw_close_frame(CloseCode::POLICY_VIOLATION, goodbye.code.code())).await.ok();
        } else {
            socket.feed(Message::close(Some(CloseCode::POLICY_VIOLATION), goodbye.code.code())).await.ok();
            socket.flush().await.ok();
        }
        drain(socket).await;
    };
    let limit = match goodbye.code {
        ErrorCode::CredentialExpired | ErrorCode::CredentialRevoked | ErrorCode::Displaced => SHORT_GOODBYE_LIMIT,
        _ => GOODBYE_LIMIT,
    };
    tokio::time::timeout(limit, farewell).await.ok();
}

/// Answers a peer's close with ours. Bounded like every goodbye.
pub async fn part(socket: &mut Socket) {
    tokio::time::timeout(GOODBYE_LIMIT, socket.close()).await.ok();
}

/// Ends our side and reads what is still on its way: bytes that nobody read would turn our goodbye into a reset.
pub async fn drain(socket: &mut Socket) {
    use tokio::io::AsyncReadExt;
    let stream = socket.get_mut();
    stream.shutdown().await.ok();
    let mut scratch = [0u8; 4096];
    let mut left: usize = 16 << 20;
    while let Ok(count) = stream.read(&mut scratch).await {
        left = left.saturating_sub(count);
        if count == 0 || left == 0 {
            return;
        }
    }
}
