//! A worker's connection to the broker, and the manifest of its host, which is fetched again after every reconnect.

use crate::tool::ToolSchema;
use crate::wire::{McpReply, McpRequest};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use toolbus_client::{
    AgentRef, Body, BrokerClient, BrokerError, BrokerResult, ClientOptions, InboxKind, InboxMessage, MultiplexedClient,
};

/// Delay before a failed fetch of the manifest is retried.
const MANIFEST_RETRY: Duration = Duration::from_secs(2);

/// The broker, the credential and the host of an executor.
pub struct Destination {
    pub endpoint: String,
    pub me: AgentRef,
    pub token: String,
    pub host: String,
    /// Limit for a reply of the host.
    pub timeout: Duration,
    pub client: ClientOptions,
}

/// The tools of the host, as of the last fetch.
#[derive(Default)]
pub struct Manifest(Mutex<Arc<[ToolSchema]>>);

impl Manifest {
    pub fn tools(&self) -> Arc<[ToolSchema]> {
        Arc::clone(&self.0.lock().expect("no code panics while it holds the lock"))
    }

    fn replace(&self, tools: Vec<ToolSchema>) {
        *self.0.lock().expect("no code panics while it holds the lock") = tools.into();
    }
}

/// A connection that the client re-establishes until it runs out of attempts. Once closed, it stays closed.
pub struct HostConnection {
    client: Arc<MultiplexedClient>,
    manifest_task: JoinHandle<()>,
}

impl HostConnection {
    /// Connects and fetches the manifest; fails if either fails.
    pub async fn open(destination: &Arc<Destination>, manifest: &Arc<Manifest>) -> BrokerResult<Self> {
        let client = connect(destination).await?;
        let connection = client.client().next_connection(0).await.ok_or(BrokerError::Closed)?;
        manifest.replace(fetch_manifest(&client, destination).await?);
        Ok(Self::new(client, destination, manifest, connection))
    }

    /// Replaces a closed connection. The manifest is fetched in the background; the old one is used until then.
    pub async fn reopen(destination: &Arc<Destination>, manifest: &Arc<Manifest>) -> BrokerResult<Self> {
        Ok(Self::new(connect(destination).await?, destination, manifest, 0))
    }

    /// `seen` is the number of the connection on which the manifest was fetched; 0 if on none.
    fn new(client: MultiplexedClient, destination: &Arc<Destination>, manifest: &Arc<Manifest>, seen: u64) -> Self {
        let client = Arc::new(client);
        let refresh = refresh_manifest(Arc::clone(&client), Arc::clone(destination), Arc::clone(manifest), seen);
        Self { client, manifest_task: tokio::spawn(refresh) }
    }

    pub fn is_closed(&self) -> bool {
        self.client.client().is_closed()
    }

    /// Sends a request and waits for its reply, also across reconnects, over which the request keeps its id.
    pub async fn request(&self, host: &str, request: InboxMessage, timeout: Duration) -> BrokerResult<InboxMessage> {
        self.client.request_message(host, request, timeout).await
    }
}

impl Drop for HostConnection {
    fn drop(&mut self) {
        // The task holds the client and would keep the connection open.
        self.manifest_task.abort();
    }
}

async fn connect(destination: &Destination) -> BrokerResult<MultiplexedClient> {
    let Destination { endpoint, me, token, client, .. } = destination;
    let client = BrokerClient::connect_with(endpoint, me.clone(), token, client.clone()).await?;
    Ok(client.into_multiplexed())
}

async fn refresh_manifest(
    client: Arc<MultiplexedClient>,
    destination: Arc<Destination>,
    manifest: Arc<Manifest>,
    mut seen: u64,
) {
    while let Some(connection) = client.client().next_connection(seen).await {
        match fetch_manifest(&client, &destination).await {
            Ok(tools) => {
                manifest.replace(tools);
                seen = connection;
            }
            Err(error) => {
                // The host may be away; the last manifest stays in use.
                tracing::warn!(%error, host = destination.host, "fetching the manifest failed; retrying");
                tokio::time::sleep(MANIFEST_RETRY).await;
            }
        }
    }
}

async fn fetch_manifest(client: &MultiplexedClient, destination: &Destination) -> BrokerResult<Vec<ToolSchema>> {
    let body = Body::of(&McpRequest::Manifest)?;
    let reply = client.request(&destination.host, InboxKind::McpRequest, body, destination.timeout).await?;
    let reply: McpReply =
        reply.body.to().map_err(|error| BrokerError::Protocol(format!("invalid manifest: {error}")))?;
    match reply.error {
        Some(reason) => Err(BrokerError::Rejected { code: None, reason, id: None }),
        None => Ok(reply.manifest.unwrap_or_default()),
    }
}
