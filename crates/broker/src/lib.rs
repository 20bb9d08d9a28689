//! The tokio shell around the engine: it listens, authenticates, moves bytes, and keeps the disk's time.
//!
//! - [`BrokerCore`] is the embedded implementation of [`toolbus_engine::Mailboxes`]: engine, store and the two threads
//!   that write and read.
//! - [`BrokerServer`] accepts connections on one port and serves the bus, the health pages and mounted
//!   applications (`app`).
//! - `tls` wraps connections where the operator has a certificate; `presented` is what a peer shows before `hello`.
//! - `connection` is the life of one WebSocket; `wire` translates between frames and the engine's words.

mod app;
mod auditing;
mod budget;
mod clock;
mod connection;
mod core;
mod directory;
mod dispatch;
mod egress;
mod error;
mod handshake;
mod host_registration;
mod http;
mod manifest_files;
mod names;
mod outbox;
mod prefixed;
mod presented;
mod server;
mod store_threads;
mod tls;
mod token;
mod web_origin;
mod wire;

pub use app::{AppBody, AppFuture, BODY_PATIENCE, BodyReadError, HttpApp, PeerAddress, PeerCertificate, read_body};
pub use core::{BrokerCore, CoreOptions};
pub use directory::{
    AnnounceFuture, HostDirectory, KEPT_WHILE_AWAY, MAX_HOSTS, MAX_MANIFEST_BYTES, MAX_ROLES_PER_HOST, ManifestRefusal,
};
pub use error::{BrokerError, BrokerResult};
pub use names::{DenyAll, SendRules};
pub use server::{BrokerServer, ServerOptions};
pub use tls::{TlsError, TlsSettings};
pub use token::{TokenError, read_token};
pub use toolbus_identity::{
    AuthRefusal, Authenticator, Credential, EndReason, Identity, OWN_NAME, Rights, SharedToken, Standing,
};
