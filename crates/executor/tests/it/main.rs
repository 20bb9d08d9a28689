//! Hosts and workers of the library, over a real broker on the loopback interface.
//!
//! `bus`, `tools` and `peers` are the fixtures: a broker that can be stopped, connections that can be cut, tools with
//! configurable behaviour, and both ends of the protocol in raw JSON.

mod bus;
mod peers;
mod tools;

mod allowlist;
mod cancelling;
mod host;
mod lost_connections;
mod mcp;
mod reconnecting;
mod state;
mod supervisor;
mod worker;

use std::future::Future;
use std::time::Duration;

/// Upper bound for every wait, ten times longer than any of them takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Awaits the future, and panics if it takes longer than the test timeout.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, future).await.unwrap_or_else(|_| panic!("{what}: not within {TEST_TIMEOUT:?}"))
}

/// Polls until the condition holds, for conditions without an event.
async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let polling = async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, polling).await;
}
