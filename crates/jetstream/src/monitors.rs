//! Asks the NATS servers whether they sync every write. Clients are not told, so the monitoring port of each server is asked.

use crate::requirements::Unmet;
use crate::{ClusterError, connection};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use toolbus_base::BoxFuture;

/// How long a server may take to answer.
const ANSWER: Duration = Duration::from_secs(3);
/// Larger than any answer.
const MAX_ANSWER: u64 = 1 << 20;

/// The part of a server's answer that matters.
#[derive(Deserialize)]
struct Monitored {
    server_id: String,
    #[serde(default)]
    config: Settings,
    #[serde(default)]
    meta_cluster: Option<MetaCluster>,
}

#[derive(Deserialize, Default)]
struct Settings {
    #[serde(default)]
    sync_always: bool,
}

#[derive(Deserialize)]
struct MetaCluster {
    #[serde(default)]
    cluster_size: usize,
}

/// Checks that all servers sync every write before they confirm it. `addresses` are their monitoring ports. A minority of the
/// servers may be away: a broker has to be able to start then.
pub fn check_sync(addresses: &[String]) -> BoxFuture<'_, Result<(), ClusterError>> {
    Box::pin(check(addresses))
}

async fn check(addresses: &[String]) -> Result<(), ClusterError> {
    if addresses.is_empty() {
        return Err(Unmet::SyncUnknown.into());
    }
    let (mut told, mut size, mut failure) = (BTreeSet::new(), 1, None);
    for address in addresses {
        let monitored = match ask(address).await {
            Ok(monitored) => monitored,
            Err(error) => {
                tracing::warn!(%error, "a NATS server does not tell whether it syncs every write");
                failure = failure.or(Some(error));
                continue;
            }
        };
        if !monitored.config.sync_always {
            return Err(Unmet::AsyncSync { server: address.clone() }.into());
        }
        size = monitored.meta_cluster.map_or(size, |meta| size.max(meta.cluster_size));
        told.insert(monitored.server_id);
    }
    match failure {
        Some(failure) if told.len() <= size / 2 => Err(failure),
        None if told.len() < size => Err(Unmet::SyncPartlyKnown { told: told.len(), servers: size }.into()),
        _ => Ok(()),
    }
}

async fn ask(address: &str) -> Result<Monitored, ClusterError> {
    let failed = |reason: String| ClusterError::Request {
        what: "ask a NATS server for its settings",
        reason: format!("{address}: {reason}"),
    };
    let body = timeout(ANSWER, fetch(connection::without_scheme(address))).await;
    let body = body.map_err(|_| failed("timeout".into()))?.map_err(|error| failed(error.to_string()))?;
    serde_json::from_slice(&body).map_err(|_| failed("the answer is not that of a monitoring port".into()))
}

/// The body of the page with the settings. HTTP/1.0, so the connection's end is the answer's.
async fn fetch(address: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /jsz HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    let head = answer.windows(4).position(|window| window == b"\r\n\r\n");
    Ok(head.map(|at| answer.split_off(at + 4)).unwrap_or_default())
}
