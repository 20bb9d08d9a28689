//! The worker side: a host's tools across the bus, as a `ToolExecutor`.

use crate::executor::ToolExecutor;
use crate::link::{Destination, Link, Manifest};
use crate::tool::{ToolCall, ToolError, ToolResult, ToolSchema};
use crate::wire::{McpReply, McpRequest};
use async_trait::async_trait;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use toolbus_client::{AgentRef, Body, BrokerError, BrokerResult, ClientOptions, InboxKind, InboxMessage};

/// Every limit of an executor, by name.
#[derive(Debug, Clone)]
pub struct McpProxyExecutorOptions {
    /// How long a call may take, from `execute` to its result.
    pub timeout: Duration,
    /// How often in a row a lost connection is tried to be made again before waiting calls fail. A later call begins
    /// anew. The waits between are `backoff` to `longest_backoff` of the client.
    pub reconnect_attempts: NonZeroU32,
    pub client: ClientOptions,
}

impl Default for McpProxyExecutorOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            reconnect_attempts: NonZeroU32::new(5).expect("five is not zero"),
            client: ClientOptions::default(),
        }
    }
}

/// Calls a host's tools over the bus. Many calls share one connection and overlap.
///
/// When the connection is lost, running calls wait for the next one: their requests keep their ids, so none is run twice
/// and no answer is missed. The manifest is fetched again on every new connection.
pub struct McpProxyExecutor {
    destination: Arc<Destination>,
    manifest: Arc<Manifest>,
    link: Mutex<Arc<Link>>,
    /// Held by the one who replaces a closed link, for all who need it. Keeps how the last attempt failed.
    renewal: tokio::sync::Mutex<Option<FailedRenewal>>,
    attempts: NonZeroU32,
}

struct FailedRenewal {
    at: Instant,
    error: BrokerError,
}

impl McpProxyExecutor {
    /// Connects as `proxy_id`, a mailbox of its own such as `worker-7#mcp`, and fetches the manifest of the host whose
    /// mailbox is `orchestrator`.
    pub async fn connect(
        endpoint: &str,
        proxy_id: impl Into<String>,
        role: Option<String>,
        token: &str,
        orchestrator: impl Into<String>,
        timeout: Duration,
    ) -> BrokerResult<Self> {
        let me = AgentRef { session_id: proxy_id.into().into(), role: role.map(Into::into) };
        let options = McpProxyExecutorOptions { timeout, ..McpProxyExecutorOptions::default() };
        Self::connect_with(endpoint, me, token, orchestrator, options).await
    }

    pub async fn connect_with(
        endpoint: &str,
        me: AgentRef,
        token: &str,
        host: impl Into<String>,
        options: McpProxyExecutorOptions,
    ) -> BrokerResult<Self> {
        let McpProxyExecutorOptions { timeout, reconnect_attempts: attempts, client } = options;
        let client = ClientOptions { reconnect: true, reconnect_attempts: Some(attempts), ..client };
        let (endpoint, token, host) = (endpoint.to_owned(), token.to_owned(), host.into());
        let destination = Arc::new(Destination { endpoint, me, token, host, timeout, client });
        let manifest = Arc::new(Manifest::default());
        let link = Mutex::new(Arc::new(Link::open(&destination, &manifest).await?));
        Ok(Self { destination, manifest, link, renewal: tokio::sync::Mutex::new(None), attempts })
    }

    /// How many tools the manifest lists.
    pub fn tool_count(&self) -> usize {
        self.manifest.tools().len()
    }

    async fn call(&self, call: &ToolCall, deadline: Instant) -> BrokerResult<McpReply> {
        let link = self.open_link().await?;
        let operation =
            McpRequest::Call { tool: call.function.name.clone(), arguments: call.function.arguments.clone() };
        let Destination { me, host, .. } = &*self.destination;
        let request = InboxMessage::new(me.clone(), InboxKind::McpRequest, Body::of(&operation)?);
        let left = deadline.saturating_duration_since(Instant::now());
        let reply = link.request(host, request, left).await?;
        reply.body.to().map_err(|error| BrokerError::Protocol(format!("a reply that can't be read: {error}")))
    }

    /// The link, or a new one where the client has given up. However many callers need a new one, one makes it.
    async fn open_link(&self) -> BrokerResult<Arc<Link>> {
        let asked_at = Instant::now();
        if let Some(link) = self.link_unless_closed() {
            return Ok(link);
        }
        let mut last_failure = self.renewal.lock().await;
        if let Some(link) = self.link_unless_closed() {
            return Ok(link);
        }
        // Whoever waited for an attempt that failed shares its failure, instead of trying for as long once more.
        if let Some(failed) = last_failure.as_ref().filter(|failed| failed.at >= asked_at) {
            return Err(failed.error.clone());
        }
        match self.renew().await {
            Ok(link) => {
                let link = Arc::new(link);
                *self.lock_link() = Arc::clone(&link);
                Ok(link)
            }
            Err(error) => {
                *last_failure = Some(FailedRenewal { at: Instant::now(), error: error.clone() });
                Err(error)
            }
        }
    }

    async fn renew(&self) -> BrokerResult<Link> {
        let mut backoff = self.destination.client.backoff;
        let mut attempt = 1;
        loop {
            match Link::reopen(&self.destination, &self.manifest).await {
                Err(error) if attempt < self.attempts.get() && !matches!(error, BrokerError::Auth { .. }) => {
                    tracing::debug!(%error, attempt, "no connection yet");
                }
                outcome => return outcome,
            }
            attempt += 1;
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(self.destination.client.longest_backoff);
        }
    }

    fn link_unless_closed(&self) -> Option<Arc<Link>> {
        let link = Arc::clone(&*self.lock_link());
        (!link.is_closed()).then_some(link)
    }

    fn lock_link(&self) -> std::sync::MutexGuard<'_, Arc<Link>> {
        self.link.lock().expect("no code panics while it holds the link")
    }
}

#[async_trait]
impl ToolExecutor for McpProxyExecutor {
    async fn execute(&self, call: &ToolCall) -> Result<ToolResult, ToolError> {
        let name = &call.function.name;
        if !self.owns_exact_tool(name) {
            return Err(ToolError::NotFound(name.clone()));
        }
        let limit = self.destination.timeout;
        let deadline = Instant::now() + limit;
        let reply = timeout_at(deadline, self.call(call, deadline))
            .await
            .unwrap_or(Err(BrokerError::Timeout(limit)))
            .map_err(|error| ToolError::Execution(format!("mcp proxy: {error}")))?;
        if let Some(reason) = reply.error {
            return Err(ToolError::Execution(reason));
        }
        let result = reply.result.ok_or_else(|| ToolError::Execution("the reply has no result".into()))?;
        Ok(result.into())
    }

    fn list_tools(&self) -> Vec<ToolSchema> {
        self.manifest.tools().to_vec()
    }

    fn owns_exact_tool(&self, tool_name: &str) -> bool {
        self.manifest.tools().iter().any(|tool| tool.function.name == tool_name)
    }
}
