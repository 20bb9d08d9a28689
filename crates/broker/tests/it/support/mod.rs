//! Test support: a broker in this process, peers that can violate the protocol, raw HTTP, and log capture.

mod bus;
mod credentials;
mod http;
mod logs;
mod memory;
mod peer;

pub use bus::{Bus, Setup};
pub use credentials::{Credentials, Framing, HOST, OPERATOR, WORKER, hello_as};
pub use http::{HttpResponse, get, request, upgrade_request};
pub use logs::Logs;
pub use memory::{MIB, exclusive, resident_bytes};
pub use peer::{Peer, Seen, deliver, hello, hello_compact, hello_v2, masked_frame};

use std::time::Duration;

/// The shared token of the test brokers. It must appear in no response and in no log line.
pub const TOKEN: &str = "canary-5f81c0d2-token";

/// Longer than any step takes on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(20);

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}
