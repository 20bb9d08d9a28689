//! The original system and ours, each against the other, over real sockets on the loopback interface.
//!
//! `brokers`, `original`, `ours`, `tools` and `relay` set the stage. The rest are the scenes: `original_*` put the
//! original's code on our broker, `our_*` put our client on the original's broker, and `mixed_*` have one of each talk
//! over both.

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
mod original_mcp;
mod original_mcp_restart;
mod original_run;
mod our_client;
mod our_client_asks;
mod our_client_restart;

use std::future::Future;
use std::time::Duration;

/// The token of every broker here.
const TOKEN: &str = "interop-token";
/// Nothing here takes a tenth of this, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for something that has to happen.
async fn soon<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(PATIENCE, what).await.expect("it happens in time")
}

/// Asks again and again until the answer is yes, for what no event announces.
async fn eventually(mut check: impl AsyncFnMut() -> bool) {
    let polling = async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(polling).await;
}
