//! Every limit of the client, by name.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;
use toolbus_protocol::{BrokerKey, Framing};

#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Offered to the broker; an original broker speaks JSON whatever we offer.
    pub framing: Framing,
    /// How long making a connection may take, handshake included.
    pub connect_timeout: Duration,
    /// How long `deliver` waits for its receipt.
    pub receipt_timeout: Duration,
    /// Messages without a receipt; past it `deliver` waits.
    pub max_outstanding: usize,
    /// Received messages that nobody has taken yet; past it the client stops reading. A broker pushes no more than its
    /// window at a time, which is less.
    pub max_inbox: usize,
    /// The wait before a reconnect, doubling up to the longest.
    pub backoff: Duration,
    pub longest_backoff: Duration,
    /// Whether a lost connection is made again.
    pub reconnect: bool,
    /// How many attempts in a row may fail before the client closes; without a number it never gives up.
    pub reconnect_attempts: Option<NonZeroU32>,
    pub max_frame_bytes: usize,
    pub tls: TlsOptions,
    /// Where the token may be sent.
    pub token_scope: TokenScope,
}

/// Where a client may send its token. Checked for every connection, before `hello`.
#[derive(Debug, Clone, Default)]
pub enum TokenScope {
    /// To the address that was given, whatever it is; a warning is logged for plain text beyond loopback.
    #[default]
    Anywhere,
    /// Over TLS, or in plain text on loopback.
    EncryptedOrLoopback,
    /// Only to the broker that proves, on a loopback address, that it holds this key.
    Holder(BrokerKey),
}

/// For brokers at `wss://`. Files are read for every connection, so that renewed ones count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Trusted instead of the system's certificates (PEM).
    pub ca_cert: Option<PathBuf>,
    /// Ours, for a broker that knows its clients by certificate; both or none (PEM).
    pub client_cert: Option<PathBuf>,
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
            reconnect: true,
            reconnect_attempts: None,
            max_frame_bytes: 64 << 20,
            tls: TlsOptions::default(),
            token_scope: TokenScope::default(),
        }
    }
}
