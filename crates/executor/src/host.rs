//! The host side: serves the tools of this process to workers over the bus, on one connection or with reconnects.

use crate::allowlist::RoleToolAllowlist;
use crate::calls::Calls;
use crate::executor::ToolExecutor;
use crate::serve::serve;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolbus_base::Backoff;
use toolbus_client::{AgentRef, BrokerClient, BrokerError, BrokerResult, ClientOptions, ErrorCode};

/// A connection that lasted this long resets the backoff.
const STABLE_RUN: Duration = Duration::from_secs(10);

/// The allowlist and the limits of a [`McpProxyHost`].
#[derive(Debug, Clone)]
pub struct McpProxyHostOptions {
    /// The tools that each role may use.
    pub allowlist: Arc<RoleToolAllowlist>,
    /// Maximum concurrent calls. Further calls wait for a permit.
    pub max_concurrent_calls: usize,
    /// Maximum calls that wait for a permit. Beyond it the host takes no requests from its mailbox (backpressure).
    pub max_waiting_calls: usize,
    /// The maximum duration of a call, even if the caller's deadline is later.
    pub longest_call: Duration,
    /// The options of the connection. `reconnect` is overridden, because the host reconnects itself.
    pub client: ClientOptions,
}

impl Default for McpProxyHostOptions {
    fn default() -> Self {
        Self {
            allowlist: Arc::default(),
            max_concurrent_calls: 64,
            max_waiting_calls: 1024,
            longest_call: Duration::from_secs(3600),
            client: ClientOptions::default(),
        }
    }
}

/// A host of tools: answers the `mcp_request` messages in its mailbox, concurrently.
///
/// A request runs once in the lifetime of a host, even if the connection is lost and the broker redelivers the request:
/// the call goes on without a connection, and its reply is sent on the next one. A call is aborted when its caller
/// cancels it or its deadline passes, also while it waits for a permit.
pub struct McpProxyHost {
    endpoint: String,
    me: AgentRef,
    token: String,
    backend: Arc<dyn ToolExecutor>,
    options: McpProxyHostOptions,
}

impl McpProxyHost {
    /// A host that connects to `endpoint` as `me` and serves the tools of `backend`.
    pub fn new(
        endpoint: &str,
        me: AgentRef,
        token: &str,
        backend: Arc<dyn ToolExecutor>,
        options: McpProxyHostOptions,
    ) -> Self {
        Self { endpoint: endpoint.to_owned(), me, token: token.to_owned(), backend, options }
    }

    /// Serves on one connection until it is lost, then aborts the running calls.
    pub async fn serve(&self) -> BrokerResult<()> {
        self.serve_once(&mut self.new_calls()).await
    }

    /// Serves until `shutdown`, which stops it immediately. Reconnects with backoff, unless the credential was revoked
    /// or has expired, or another host with the same credential displaced this one.
    pub async fn serve_supervised(&self, shutdown: CancellationToken) {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => tracing::info!(host = &*self.me.session_id, "host stopped"),
            () = self.serve_with_reconnects() => {}
        }
    }

    async fn serve_with_reconnects(&self) {
        let mut calls = self.new_calls();
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
        loop {
            let started = Instant::now();
            let outcome = self.serve_once(&mut calls).await;
            if started.elapsed() >= STABLE_RUN {
                backoff.reset();
            }
            let delay = backoff.next_delay();
            match outcome {
                Ok(()) => tracing::warn!(?delay, "connection lost; reconnecting"),
                Err(error) if is_final(&error) => {
                    tracing::error!(%error, host = &*self.me.session_id, "host stopped; not reconnecting");
                    return;
                }
                Err(error) => tracing::warn!(%error, ?delay, "serving failed; reconnecting"),
            }
            tokio::time::sleep(delay).await;
        }
    }

    async fn serve_once(&self, calls: &mut Calls) -> BrokerResult<()> {
        let options = ClientOptions { reconnect: false, ..self.options.client.clone() };
        let client = BrokerClient::connect_with(&self.endpoint, self.me.clone(), &self.token, options).await?;
        serve(client, calls).await
    }

    fn new_calls(&self) -> Calls {
        Calls::new(self.me.clone(), Arc::clone(&self.backend), self.options.clone())
    }
}

/// Whether reconnecting is pointless: it would be rejected, or two hosts would keep displacing each other.
fn is_final(error: &BrokerError) -> bool {
    let code = if let BrokerError::Auth { code, .. } = error { *code } else { None };
    matches!(code, Some(ErrorCode::Displaced | ErrorCode::CredentialRevoked | ErrorCode::CredentialExpired))
}

/// Serves the tools of `backend` as `me` until the connection is lost. Use [`McpProxyHost`] to set other options.
pub async fn serve_mcp_proxy(
    endpoint: &str,
    me: AgentRef,
    token: &str,
    backend: Arc<dyn ToolExecutor>,
    allowlist: Arc<RoleToolAllowlist>,
) -> BrokerResult<()> {
    let options = McpProxyHostOptions { allowlist, ..McpProxyHostOptions::default() };
    McpProxyHost::new(endpoint, me, token, backend, options).serve().await
}

/// Like [`serve_mcp_proxy`], but reconnects until `shutdown`: after 500 ms, doubling up to 30 s, and from 500 ms again
/// after a connection that lasted 10 s.
pub async fn serve_mcp_proxy_supervised(
    endpoint: &str,
    me: AgentRef,
    token: &str,
    backend: Arc<dyn ToolExecutor>,
    allowlist: Arc<RoleToolAllowlist>,
    shutdown: CancellationToken,
) {
    let options = McpProxyHostOptions { allowlist, ..McpProxyHostOptions::default() };
    McpProxyHost::new(endpoint, me, token, backend, options).serve_supervised(shutdown).await;
}
