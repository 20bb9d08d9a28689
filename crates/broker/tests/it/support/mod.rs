//! What the attacks share: a bus in this process, peers that can misbehave, plain HTTP, and the log.

mod bus;
mod credentials;
mod http;
mod logs;
mod memory;
mod peer;

pub use bus::{Bus, Setup};
pub use credentials::{Credentials, Framing, HOST, OPERATOR, WORKER, greeting};
pub use http::{Answer, get, request, upgrade_request};
pub use logs::Logs;
pub use memory::{MIB, alone, resident_bytes};
pub use peer::{Peer, Seen, deliver, hello, hello_compact, hello_v2, masked_frame};

use std::time::Duration;

/// The secret of every bus here. It must show up in no answer and in no line of the log.
pub const TOKEN: &str = "canary-5f81c0d2-token";

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}
