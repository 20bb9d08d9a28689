//! A worker's connection to its host, and the manifest that is fetched anew whenever the connection was made again.

use crate::tool::ToolSchema;
use crate::wire::{McpReply, McpRequest};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use toolbus_client::{
    AgentRef, Body, BrokerClient, BrokerError, BrokerResult, ClientOptions, InboxKind, InboxMessage, MultiplexedClient,
};

/// The wait before a manifest is asked for again that the host did not give.
const MANIFEST_RETRY: Duration = Duration::from_secs(2);

/// Where the tools are and how to get there.
pub struct Destination {
    pub endpoint: String,
    pub me: AgentRef,
    pub token: String,
    pub host: String,
    /// How long the host may take for an answer.
    pub timeout: Duration,
    pub client: ClientOptions,
}

/// The tools of the host as they were when it was last asked.
#[derive(Default)]
pub struct Manifest(Mutex<Arc<[ToolSchema]>>);

impl Manifest {
    pub fn tools(&self) -> Arc<[ToolSchema]> {
        Arc::clone(&self.0.lock().expect("no code panics while it holds the manifest"))
    }

    fn replace(&self, tools: Vec<ToolSchema>) {
        *self.0.lock().expect("no code panics while it holds the manifest") = tools.into();
    }
}

/// Mends itself while the client does not give up; a closed link stays closed.
pub struct Link {
    client: Arc<MultiplexedClient>,
    keeping_manifest: JoinHandle<()>,
}

impl Link {
    /// Connects and fetches the manifest; fails without one.
    pub async fn open(destination: &Arc<Destination>, manifest: &Arc<Manifest>) -> BrokerResult<Self> {
        let client = connect(destination).await?;
        let connection = client.client().next_connection(0).await.ok_or(BrokerError::Closed)?;
        manifest.replace(fetch_manifest(&client, destination).await?);
        Ok(Self::new(client, destination, manifest, connection))
    }

    /// Connects in place of a link that is closed. The manifest follows; the old one is good until then.
    pub async fn reopen(destination: &Arc<Destination>, manifest: &Arc<Manifest>) -> BrokerResult<Self> {
        Ok(Self::new(connect(destination).await?, destination, manifest, 0))
    }

    /// `seen` is the connection on which the manifest was fetched.
    fn new(client: MultiplexedClient, destination: &Arc<Destination>, manifest: &Arc<Manifest>, seen: u64) -> Self {
        let client = Arc::new(client);
        let keeping = keep_manifest(Arc::clone(&client), Arc::clone(destination), Arc::clone(manifest), seen);
        Self { client, keeping_manifest: tokio::spawn(keeping) }
    }

    pub fn is_closed(&self) -> bool {
        self.client.client().is_closed()
    }

    /// Sends a request and waits for its answer, across lost connections: the request keeps its id and waits on.
    pub async fn request(&self, host: &str, request: InboxMessage, timeout: Duration) -> BrokerResult<InboxMessage> {
        self.client.request_message(host, request, timeout).await
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The task holds the client, and with it the connection.
        self.keeping_manifest.abort();
    }
}

async fn connect(destination: &Destination) -> BrokerResult<MultiplexedClient> {
    let Destination { endpoint, me, token, client, .. } = destination;
    let client = BrokerClient::connect_with(endpoint, me.clone(), token, client.clone()).await?;
    Ok(client.into_multiplexed())
}

async fn keep_manifest(
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
                // The host may be away: what it last said stays good meanwhile.
                tracing::warn!(%error, host = destination.host, "no new manifest yet");
                tokio::time::sleep(MANIFEST_RETRY).await;
            }
        }
    }
}

async fn fetch_manifest(client: &MultiplexedClient, destination: &Destination) -> BrokerResult<Vec<ToolSchema>> {
    let body = Body::of(&McpRequest::Manifest)?;
    let reply = client.request(&destination.host, InboxKind::McpRequest, body, destination.timeout).await?;
    let reply: McpReply =
        reply.body.to().map_err(|error| BrokerError::Protocol(format!("a manifest that can't be read: {error}")))?;
    match reply.error {
        Some(reason) => Err(BrokerError::Rejected { code: None, reason, id: None }),
        None => Ok(reply.manifest.unwrap_or_default()),
    }
}
