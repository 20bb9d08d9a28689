//! The tokio shell around the engine: listener, authentication, transport, and the threads for disk I/O.
//!
//! - [`BrokerCore`] is the embedded implementation of [`toolbus_engine::Mailboxes`]: the engine, the store, and one
//!   thread each for writes and reads.
//! - [`BrokerServer`] accepts connections on one port and serves the bus, the health endpoints and mounted HTTP
//!   applications (`app`).
//! - [`Links`] are connections to the brokers of the same cluster that own other partitions.
//! - `tls` encrypts connections if a certificate is configured; `presented` holds the credentials that a peer presents
//!   before `hello`.
//! - `handshake` authenticates a peer, `connection` serves it over a `channel` (WebSocket or in-process link), `wire` converts between wire frames and the
//!   engine's commands.

mod agent_ends;
mod app;
mod auditing;
mod backend;
mod budget;
mod channel;
mod claims;
mod clock;
mod clustered;
mod connection;
mod core;
mod directory;
mod directory_state;
mod dispatch;
mod egress;
mod error;
#[cfg(feature = "fuzzing")]
mod fuzzing;
mod generations;
mod handover;
mod handshake;
mod host_registration;
mod host_storage;
mod http;
mod links;
mod manifest_files;
mod moved_state;
mod name_owners;
mod name_spaces;
mod names;
mod offers;
mod outbox;
mod prefixed;
mod presented;
mod refusal_log;
mod server;
mod shares;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
mod state_file;
mod store_threads;
mod stored_directory;
mod subscription;
mod tls;
mod token;
mod web_origin;
mod wire;

pub use app::{AppBody, AppFuture, BODY_PATIENCE, BodyReadError, HttpApp, PeerAddress, PeerCertificate, read_body};
pub use backend::Backend;
pub use clustered::{ClusterMailboxes, ClusterMailboxesOptions};
pub use core::{BrokerCore, CoreOptions, PartitionOptions};
pub use directory::{
    AnnounceFuture, HostDirectory, KEPT_WHILE_AWAY, MAX_HOSTS, MAX_MANIFEST_BYTES, MAX_ROLES_PER_HOST, ManifestRefusal,
};
pub use error::{BrokerError, BrokerResult, code_of_mark};
pub use host_storage::{HostChange, HostStorage, StoredManifests, StoredOwners, decode_manifests, encode_manifests};
pub use http::{HttpWork, PeerConnection};
pub use links::{Link, LinkError, LinkOptions, Links, LocalPartition, LocalPartitions};
pub use manifest_files::{DAMAGED_SUFFIX, ManifestFiles};
pub use moved_state::{MovedState, StatePlace};
pub use name_owners::{HeldBack, HoldReason, MAX_NAMES_PER_HOST, NameOwners};
pub use name_spaces::{Covering, NameKind};
pub use names::{DenyAll, SendRules};
pub use server::{BrokerServer, ServerOptions};
pub use stored_directory::StoredDirectory;
pub use tls::{TlsError, TlsSettings};
pub use token::{TokenError, read_private_token, read_token};
pub use toolbus_engine::Share;
pub use toolbus_identity::{
    AuthRefusal, Authenticator, Credential, EndReason, Identity, OWN_NAME, Rights, SharedToken, Standing,
};
pub use toolbus_store::{Disk, FolderDisk, Identity as StoreIdentity};
pub use web_origin::is_local_request;
pub use wire::purpose_of_sealed;
