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
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A timeout of an hour elapses only in a test that moves the clock with [`skip`], however slow the machine is.
pub const HOUR: Duration = Duration::from_secs(3600);

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}

/// Moves the broker's clock forward, so that timeouts don't depend on the speed of the machine.
pub async fn skip(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}
