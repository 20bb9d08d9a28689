//! The original system and ours, each against the other, over real sockets on the loopback interface.
//!
//! `brokers`, `original`, `ours`, `tools` and `relay` are fixtures. The tests are in the other modules: `original_*`
//! run the original's code on our broker, `our_*` run our client on the original's broker, and `mixed_*` connect one of
//! each over both brokers.

mod brokers;
mod original;
mod ours;
mod relay;
mod tools;

mod mixed_library;
mod mixed_mcp;
mod original_acks;
mod original_ask;
mod original_client;
mod original_extras;
mod original_mcp;
mod original_mcp_restart;
mod original_run;
mod original_tls;
mod our_client;
mod our_client_asks;
mod our_client_restart;

use std::future::Future;
use std::time::Duration;

/// The token of every broker here.
const TOKEN: &str = "interop-token";
/// Far longer than any step takes, unless it hangs.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// Awaits a future with a timeout.
async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(STEP_TIMEOUT, future).await.expect("no timeout")
}

/// Polls a condition until it is true, for changes without an event.
async fn eventually(mut check: impl AsyncFnMut() -> bool) {
    let polling = async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(polling).await;
}
