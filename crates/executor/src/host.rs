//! The host side: serves the tools of this process to workers over the bus, on one connection or with reconnects. Calls
//! go through the same host as those to MCP servers, so the same guarantees hold.

use crate::allowlist::RoleToolAllowlist;
use crate::executor::ToolExecutor;
use crate::server::ExecutorServer;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolbus_base::{Backoff, principal_of};
use toolbus_client::{AgentRef, BrokerClient, BrokerError, BrokerResult, ClientOptions, ErrorCode};
use toolbus_host::{HostError, HostLimits, HostOptions, LivePolicy, run_host};
use toolbus_journal::{Journal, JournalError, JournalOptions};
use toolbus_upstream::{HostConfig, ServerConfig};

/// The backoff of a supervised host.
const BACKOFF: Duration = Duration::from_millis(500);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// A connection that lasted this long resets the backoff.
const STABLE_RUN: Duration = Duration::from_secs(10);
/// The same folder as in the state of `toolbus host`.
const JOURNAL_FOLDER: &str = "journal";

/// The allowlist, the state and the limits of a [`McpProxyHost`].
#[derive(Debug, Clone)]
pub struct McpProxyHostOptions {
    /// The tools that each role may use.
    pub allowlist: Arc<RoleToolAllowlist>,
    /// The folder of the call journal, for one process at a time. With it, repeated calls get their stored answers also
    /// after a restart; without it the journal is in memory.
    pub state: Option<PathBuf>,
    /// Maximum concurrent calls. Further calls wait.
    pub max_concurrent_calls: usize,
    /// The maximum duration of a call, even if the caller's deadline is later.
    pub longest_call: Duration,
    /// The options of the connection. Those of reconnects are overridden.
    pub client: ClientOptions,
}

impl Default for McpProxyHostOptions {
    fn default() -> Self {
        Self {
            allowlist: Arc::default(),
            state: None,
            max_concurrent_calls: 64,
            longest_call: Duration::from_secs(3600),
            client: ClientOptions::default(),
        }
    }
}

impl McpProxyHostOptions {
    /// The default options with this allowlist.
    pub fn new(allowlist: Arc<RoleToolAllowlist>) -> Self {
        Self { allowlist, ..Self::default() }
    }

    /// Keeps the call journal in this folder.
    pub fn with_state(self, folder: impl Into<PathBuf>) -> Self {
        Self { state: Some(folder.into()), ..self }
    }
}

/// Why a [`McpProxyHost`] stopped.
#[derive(Debug, Clone, thiserror::Error)]
pub enum McpProxyError {
    /// The broker can't be used, or another host took over the mailbox.
    #[error(transparent)]
    Bus(#[from] BrokerError),
    /// The call journal in the state folder can't be opened.
    #[error("can't open the call journal in {}: {source}", folder.display())]
    State {
        /// The folder of the journal.
        folder: PathBuf,
        /// The reason.
        source: JournalError,
    },
}

/// A host of tools: answers the requests in its mailbox, concurrently.
///
/// A call has at most one effect: it is journaled before it runs, and a repeated call gets the stored answer. Calls go on
/// while a supervised host has no connection, and their replies are sent on the next one. A call is aborted when its
/// caller cancels it or its deadline passes, also while it waits. A call that was running when its host ended is answered
/// with an error: whether it had an effect is unknown.
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
    pub async fn serve(&self) -> Result<(), McpProxyError> {
        let options = self.host_options().await?;
        let client = self.connect(false).await?;
        match run(client, options, &CancellationToken::new()).await {
            // A lost connection is not an error.
            Ok(()) | Err(BrokerError::Transport(_) | BrokerError::Busy { .. } | BrokerError::Closed) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Serves until `shutdown`, which stops it immediately. Reconnects with backoff, unless the credential was revoked
    /// or has expired, or another host displaced this one.
    pub async fn serve_supervised(&self, shutdown: CancellationToken) -> Result<(), McpProxyError> {
        let options = self.host_options().await?;
        let mut backoff = Backoff::new(BACKOFF, LONGEST_BACKOFF);
        while let Some(connected) = shutdown.run_until_cancelled(self.connect(true)).await {
            let started = Instant::now();
            let outcome = match connected {
                Ok(client) => run(client, options.clone(), &shutdown).await,
                Err(error) => Err(error),
            };
            let Err(error) = outcome else { break };
            if is_final(&error) {
                return Err(error.into());
            }
            if started.elapsed() >= STABLE_RUN {
                backoff.reset();
            }
            let delay = backoff.next_delay();
            tracing::warn!(%error, ?delay, "serving failed; reconnecting");
            shutdown.run_until_cancelled(tokio::time::sleep(delay)).await;
        }
        Ok(())
    }

    async fn connect(&self, reconnect: bool) -> BrokerResult<BrokerClient> {
        let (backoff, longest_backoff, stable_after) = (BACKOFF, LONGEST_BACKOFF, STABLE_RUN);
        let client = self.options.client.clone();
        let reconnect_attempts = None;
        let client = ClientOptions { reconnect, reconnect_attempts, backoff, longest_backoff, stable_after, ..client };
        BrokerClient::connect_with(&self.endpoint, self.me.clone(), &self.token, client).await
    }

    /// The options are the same for all connections, because they hold the journal.
    async fn host_options(&self) -> Result<HostOptions, McpProxyError> {
        let McpProxyHostOptions { allowlist, state, max_concurrent_calls, longest_call, .. } = &self.options;
        let backend = Arc::new(ExecutorServer(Arc::clone(&self.backend)));
        let mut server = ServerConfig::in_process(principal_of(&self.me.session_id), backend);
        (server.max_concurrency, server.timeout) = (*max_concurrent_calls, Some(*longest_call));
        let mut options = HostOptions::new(HostConfig { servers: vec![server] });
        options.policy = LivePolicy::new(allowlist.policy());
        options.limits = HostLimits { drain: Duration::ZERO, ..HostLimits::default() };
        if let Some(state) = state {
            options.journal = open_journal(state.join(JOURNAL_FOLDER)).await?;
        }
        Ok(options)
    }
}

/// Opening a journal reads it, which may take a while.
async fn open_journal(folder: PathBuf) -> Result<Arc<Journal>, McpProxyError> {
    let opening = tokio::task::spawn_blocking(move || {
        let journal = Journal::open(&folder, JournalOptions::default());
        journal.map(Arc::new).map_err(|source| McpProxyError::State { folder, source })
    });
    opening.await.unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))
}

/// Runs a host until it loses its mailbox or `shutdown`. It has a task of its own, so that its calls are also ended in
/// order if this future is dropped.
async fn run(client: BrokerClient, options: HostOptions, shutdown: &CancellationToken) -> BrokerResult<()> {
    let stop = shutdown.child_token();
    let _stop_if_dropped = stop.clone().drop_guard();
    match tokio::spawn(run_host(client, options, stop)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(HostError::Bus(error))) => Err(error),
        Ok(Err(HostError::MailboxLost)) => Err(BrokerError::Closed),
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(BrokerError::Closed),
        },
    }
}

/// Whether reconnecting is pointless: it would be rejected, or two hosts would keep displacing each other.
fn is_final(error: &BrokerError) -> bool {
    matches!(error.code(), Some(ErrorCode::Displaced | ErrorCode::CredentialRevoked | ErrorCode::CredentialExpired))
}

/// Serves the tools of `backend` as `me` until the connection is lost. Use [`McpProxyHost`] to set other options.
pub async fn serve_mcp_proxy(
    endpoint: &str,
    me: AgentRef,
    token: &str,
    backend: Arc<dyn ToolExecutor>,
    allowlist: Arc<RoleToolAllowlist>,
) -> BrokerResult<()> {
    let host = McpProxyHost::new(endpoint, me, token, backend, McpProxyHostOptions::new(allowlist));
    match host.serve().await {
        Err(McpProxyError::Bus(error)) => Err(error),
        // Without a state folder, no journal is opened.
        Ok(()) | Err(McpProxyError::State { .. }) => Ok(()),
    }
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
    let host = McpProxyHost::new(endpoint, me, token, backend, McpProxyHostOptions::new(allowlist));
    if let Err(error) = host.serve_supervised(shutdown).await {
        tracing::error!(%error, host = &*host.me.session_id, "host stopped; not reconnecting");
    }
}
