//! Options and limits of the client.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;
use toolbus_protocol::{BrokerKey, Framing};

/// Options of a [`crate::BrokerClient`].
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// The framing offered to the broker; a version 1 broker always uses JSON.
    pub framing: Framing,
    /// Timeout for establishing a connection, handshake included.
    pub connect_timeout: Duration,
    /// Timeout for receipts and for answers to queries.
    pub receipt_timeout: Duration,
    /// Maximum number of messages without a receipt; beyond it `deliver` waits (backpressure).
    pub max_outstanding: usize,
    /// Maximum number of received messages that the application has not taken; beyond it the client stops reading from
    /// the socket. The broker's window is smaller.
    pub max_inbox: usize,
    /// Delay before the first reconnect; doubles with each attempt.
    pub backoff: Duration,
    /// Upper limit of the reconnect delay.
    pub longest_backoff: Duration,
    /// A connection that lasted this long resets the delay to `backoff`.
    pub stable_after: Duration,
    /// Whether the client reconnects after a lost connection.
    pub reconnect: bool,
    /// Consecutive failed attempts after which the client closes; `None` retries forever.
    pub reconnect_attempts: Option<NonZeroU32>,
    /// Maximum size of a WebSocket message from the broker.
    pub max_frame_bytes: usize,
    /// Certificates for `wss://` connections.
    pub tls: TlsOptions,
    /// Destinations that the token may be sent to.
    pub token_scope: TokenScope,
}

/// Options for sending one message.
#[derive(Debug, Clone, Copy, Default)]
pub struct SendOptions {
    /// Time until the message expires.
    pub deadline: Option<Duration>,
}

/// When a reply that has no receipt is sent again after a reconnect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resend {
    /// At once. Its request is acknowledged once it has a receipt, so a crash may leave the reply without the
    /// acknowledgement: the next process must be able to give the same reply.
    Immediately,
    /// When the broker has delivered the request again, in one frame with its acknowledgement: a crash keeps both or
    /// neither.
    WithRequest,
}

/// Destinations that a client may send its token to. Checked for every connection, before `hello`.
#[derive(Debug, Clone, Default)]
pub enum TokenScope {
    /// Any address; plain text to a non-loopback address logs a warning.
    #[default]
    Anywhere,
    /// Any address over TLS, loopback addresses also in plain text.
    EncryptedOrLoopback,
    /// Only a broker on a loopback address that proves possession of this key.
    Holder(BrokerKey),
}

/// TLS options for `wss://` brokers. Files are read for every connection, so renewed certificates take effect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// CA certificates to trust instead of the system's (PEM).
    pub ca_cert: Option<PathBuf>,
    /// Client certificate chain, for a broker that authenticates clients by certificate (PEM); requires `client_key`.
    pub client_cert: Option<PathBuf>,
    /// Private key of `client_cert` (PEM).
    pub client_key: Option<PathBuf>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            framing: Framing::Compact,
            connect_timeout: Duration::from_secs(10),
            receipt_timeout: Duration::from_secs(30),
            max_outstanding: 4096,
            max_inbox: 16 << 10,
            backoff: Duration::from_millis(200),
            longest_backoff: Duration::from_secs(2),
            stable_after: Duration::from_secs(1),
            reconnect: true,
            reconnect_attempts: None,
            max_frame_bytes: 64 << 20,
            tls: TlsOptions::default(),
            token_scope: TokenScope::default(),
        }
    }
}
