//! The host side: tools of this process, served to workers over the bus, on one connection or on one after another.

use crate::allowlist::RoleToolAllowlist;
use crate::calls::Calls;
use crate::executor::ToolExecutor;
use crate::restarts::Restarts;
use crate::serve::serve;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolbus_client::{AgentRef, BrokerClient, BrokerError, BrokerResult, ClientOptions, ErrorCode};

/// Who may use the tools, and every limit of a host, by name.
#[derive(Debug, Clone)]
pub struct McpProxyHostOptions {
    pub allowlist: Arc<RoleToolAllowlist>,
    /// Calls that run at the same time; others wait for their turn.
    pub max_concurrent_calls: usize,
    /// Calls that wait for their turn; past it the host takes no more from its mailbox.
    pub max_waiting_calls: usize,
    /// How long a call may run, whatever its caller allows.
    pub longest_call: Duration,
    /// The connection's own options. Whether it reconnects by itself is not among them: the host decides that.
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

/// A host of tools: answers the `mcp_request`s in its mailbox, many at a time.
///
/// A request runs once in the life of a host, also when its connection is lost and the broker pushes the request again:
/// the call goes on meanwhile, and its answer goes out on the next connection. A call is abandoned when its caller
/// cancels it or its deadline passes, also while it waits for its turn.
pub struct McpProxyHost {
    endpoint: String,
    me: AgentRef,
    token: String,
    backend: Arc<dyn ToolExecutor>,
    options: McpProxyHostOptions,
}

impl McpProxyHost {
    pub fn new(
        endpoint: &str,
        me: AgentRef,
        token: &str,
        backend: Arc<dyn ToolExecutor>,
        options: McpProxyHostOptions,
    ) -> Self {
        Self { endpoint: endpoint.to_owned(), me, token: token.to_owned(), backend, options }
    }

    /// Serves on one connection, until it is lost. Calls that run then are abandoned.
    pub async fn serve(&self) -> BrokerResult<()> {
        self.serve_once(&mut self.no_calls()).await
    }

    /// Serves until `shutdown`, which stops it at once. A lost connection is made again after a while, longer each time;
    /// unless the credential was taken back, or the broker gave the mailbox to another host of the same credential.
    pub async fn serve_supervised(&self, shutdown: CancellationToken) {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => tracing::info!(host = &*self.me.session_id, "the host stops"),
            () = self.serve_for_ever() => {}
        }
    }

    async fn serve_for_ever(&self) {
        let mut calls = self.no_calls();
        let mut restarts = Restarts::default();
        loop {
            let started = Instant::now();
            let outcome = self.serve_once(&mut calls).await;
            let wait = restarts.wait_after(started.elapsed());
            match outcome {
                Ok(()) => tracing::warn!(?wait, "the host's connection was lost; it will be made again"),
                Err(error) if is_final(&error) => {
                    tracing::error!(%error, host = &*self.me.session_id, "the host ends: its credential is of no more use");
                    return;
                }
                Err(error) => tracing::warn!(%error, ?wait, "the host can't serve; it will try again"),
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn serve_once(&self, calls: &mut Calls) -> BrokerResult<()> {
        let options = ClientOptions { reconnect: false, ..self.options.client.clone() };
        let client = BrokerClient::connect_with(&self.endpoint, self.me.clone(), &self.token, options).await?;
        serve(client, calls).await
    }

    fn no_calls(&self) -> Calls {
        Calls::new(self.me.clone(), Arc::clone(&self.backend), self.options.clone())
    }
}

/// The broker has closed the connection for a reason that stays: to come back would be refused, or a fight for the mailbox.
fn is_final(error: &BrokerError) -> bool {
    let code = if let BrokerError::Auth { code, .. } = error { *code } else { None };
    matches!(code, Some(ErrorCode::Displaced | ErrorCode::CredentialRevoked | ErrorCode::CredentialExpired))
}

/// Serves the tools of `backend` as `me` until the connection is lost. See [`McpProxyHost`] for the options.
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

/// Like [`serve_mcp_proxy`], until `shutdown`: a lost connection is made again after 500 ms, doubling to 30 s, and from
/// the start after a run of 10 s.
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
