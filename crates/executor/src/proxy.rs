//! The worker side: a `ToolExecutor` that calls the tools of a host over the bus.

use crate::connection::{Destination, HostConnection, Manifest};
use crate::executor::ToolExecutor;
use crate::tool::{ToolCall, ToolError, ToolResult, ToolSchema};
use crate::wire::{McpReply, McpRequest};
use async_trait::async_trait;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use toolbus_base::Backoff;
use toolbus_client::{AgentRef, Body, BrokerError, BrokerResult, ClientOptions, InboxKind, InboxMessage};

/// The limits of a [`McpProxyExecutor`].
#[derive(Debug, Clone)]
pub struct McpProxyExecutorOptions {
    /// The maximum duration of a call, from `execute` to its result.
    pub timeout: Duration,
    /// Consecutive reconnect attempts before waiting calls fail. A later call starts over. The delays between attempts
    /// are `backoff` to `longest_backoff` of the client.
    pub reconnect_attempts: NonZeroU32,
    /// The options of the connection. `reconnect` and `reconnect_attempts` are overridden.
    pub client: ClientOptions,
}

impl Default for McpProxyExecutorOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            reconnect_attempts: NonZeroU32::new(5).expect("5 is not zero"),
            client: ClientOptions::default(),
        }
    }
}

/// Calls a host's tools over the bus. Concurrent calls share one connection.
///
/// When the connection is lost, running calls wait for the next one. Their requests keep their ids, so that no call
/// runs twice and no reply is lost. The manifest is fetched again on every new connection.
pub struct McpProxyExecutor {
    destination: Arc<Destination>,
    manifest: Arc<Manifest>,
    connection: Mutex<Arc<HostConnection>>,
    /// Held by the caller that replaces a closed connection, so that only one does. Stores the last failure.
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

    /// Connects as `me` and fetches the manifest of the host whose mailbox is `host`.
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
        let connection = Mutex::new(Arc::new(HostConnection::open(&destination, &manifest).await?));
        Ok(Self { destination, manifest, connection, renewal: tokio::sync::Mutex::new(None), attempts })
    }

    /// The number of tools in the manifest.
    pub fn tool_count(&self) -> usize {
        self.manifest.tools().len()
    }

    async fn call(&self, call: &ToolCall, deadline: Instant) -> BrokerResult<McpReply> {
        let connection = self.open_connection().await?;
        let operation =
            McpRequest::Call { tool: call.function.name.clone(), arguments: call.function.arguments.clone() };
        let Destination { me, host, .. } = &*self.destination;
        let request = InboxMessage::new(me.clone(), InboxKind::McpRequest, Body::of(&operation)?);
        let left = deadline.saturating_duration_since(Instant::now());
        let reply = connection.request(host, request, left).await?;
        reply.body.to().map_err(|error| BrokerError::Protocol(format!("invalid reply: {error}")))
    }

    /// The connection, or a new one if the client has given up. Concurrent callers share one attempt to replace it.
    async fn open_connection(&self) -> BrokerResult<Arc<HostConnection>> {
        let requested_at = Instant::now();
        if let Some(connection) = self.connection_unless_closed() {
            return Ok(connection);
        }
        let mut last_failure = self.renewal.lock().await;
        if let Some(connection) = self.connection_unless_closed() {
            return Ok(connection);
        }
        // A caller that waited for an attempt which failed shares the failure, instead of retrying for as long again.
        if let Some(failed) = last_failure.as_ref().filter(|failed| failed.at >= requested_at) {
            return Err(failed.error.clone());
        }
        match self.renew().await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                *self.lock_connection() = Arc::clone(&connection);
                Ok(connection)
            }
            Err(error) => {
                *last_failure = Some(FailedRenewal { at: Instant::now(), error: error.clone() });
                Err(error)
            }
        }
    }

    async fn renew(&self) -> BrokerResult<HostConnection> {
        let client = &self.destination.client;
        let mut backoff = Backoff::new(client.backoff, client.longest_backoff);
        let mut attempt = 1;
        loop {
            match HostConnection::reopen(&self.destination, &self.manifest).await {
                Err(error) if attempt < self.attempts.get() && !matches!(error, BrokerError::Auth { .. }) => {
                    tracing::debug!(%error, attempt, "reconnect attempt failed");
                }
                outcome => return outcome,
            }
            attempt += 1;
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    fn connection_unless_closed(&self) -> Option<Arc<HostConnection>> {
        let connection = Arc::clone(&*self.lock_connection());
        (!connection.is_closed()).then_some(connection)
    }

    fn lock_connection(&self) -> std::sync::MutexGuard<'_, Arc<HostConnection>> {
        self.connection.lock().expect("no code panics while it holds the lock")
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
        let result =
            reply.result.ok_or_else(|| ToolError::Execution("the reply has neither a result nor an error".into()))?;
        Ok(result.into())
    }

    fn list_tools(&self) -> Vec<ToolSchema> {
        self.manifest.tools().to_vec()
    }

    fn owns_exact_tool(&self, tool_name: &str) -> bool {
        self.manifest.tools().iter().any(|tool| tool.function.name == tool_name)
    }
}
