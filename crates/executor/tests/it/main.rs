//! Hosts and workers of the library, over a real broker on the loopback interface.
//!
//! `bus`, `tools` and `peers` set the stage: a broker that can be stopped, links that can be cut, tools that do as they
//! are told, and both ends of the protocol in raw JSON.

mod bus;
mod peers;
mod tools;

mod allowlist;
mod cancelling;
mod host;
mod lost_links;
mod reconnecting;
mod supervisor;
mod worker;

use std::future::Future;
use std::time::Duration;

/// Nothing here takes a tenth of this, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for something that has to happen.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what}: not within {PATIENCE:?}"))
}

/// Asks again and again until the answer is yes, for what no event announces.
async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let polling = async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, polling).await;
}
