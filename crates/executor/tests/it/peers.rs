//! Hosts and workers: those of the library with options for tests, and raw ones that send JSON.

use crate::bus::{Bus, TOKEN};
use crate::soon;
use crate::tools::{Toolbox, schema};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use toolbus_client::{AgentRef, Body, BrokerClient, ClientOptions, InboxKind, MultiplexedClient};
use toolbus_executor::{
    CancellationToken, McpProxyExecutor, McpProxyExecutorOptions, McpProxyHost, McpProxyHostOptions, RoleToolAllowlist,
};

/// The mailbox of all hosts in these tests.
pub const HOST: &str = "desktop#mcp";

/// A call timeout longer than any test.
const LONG: Duration = Duration::from_secs(60);

/// A supervised host in the background, which stops when this handle is dropped.
pub struct Host {
    pub shutdown: CancellationToken,
    pub serving: JoinHandle<()>,
}

impl Host {
    pub fn start(url: &str, toolbox: &Arc<Toolbox>) -> Self {
        Self::start_with(url, toolbox, McpProxyHostOptions::default())
    }

    pub fn start_with_list(url: &str, toolbox: &Arc<Toolbox>, allowlist: RoleToolAllowlist) -> Self {
        let options = McpProxyHostOptions { allowlist: Arc::new(allowlist), ..McpProxyHostOptions::default() };
        Self::start_with(url, toolbox, options)
    }

    pub fn start_with(url: &str, toolbox: &Arc<Toolbox>, options: McpProxyHostOptions) -> Self {
        let host = McpProxyHost::new(url, AgentRef::new(HOST), TOKEN, Arc::clone(toolbox) as _, options);
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let serving = tokio::spawn(async move { host.serve_supervised(stop).await.expect("it ends by its shutdown") });
        Self { shutdown, serving }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

pub async fn worker(url: &str, name: &str, role: Option<&str>) -> McpProxyExecutor {
    let role = role.map(str::to_owned);
    let connecting = McpProxyExecutor::connect(url, name, role, TOKEN, HOST, LONG);
    soon("a worker", connecting).await.expect("a manifest")
}

/// A worker with a short reconnect backoff.
pub async fn quick_worker(url: &str, name: &str) -> McpProxyExecutor {
    let quick = Duration::from_millis(10);
    let client = ClientOptions { backoff: quick, longest_backoff: quick, ..ClientOptions::default() };
    let options = McpProxyExecutorOptions { timeout: LONG, client, ..Default::default() };
    let connecting = McpProxyExecutor::connect_with(url, AgentRef::new(name.to_owned()), TOKEN, HOST, options);
    soon("a worker", connecting).await.expect("a manifest")
}

/// A worker that sends arbitrary JSON.
pub struct RawWorker(pub MultiplexedClient);

impl RawWorker {
    pub async fn connect(bus: &Bus, agent: AgentRef) -> Self {
        Self(bus.client(agent).await.into_multiplexed())
    }

    pub async fn request(&self, body: Value) -> Value {
        let pending = self.0.request(HOST, InboxKind::McpRequest, json_body(&body), LONG);
        let reply = pending.await.expect("a reply");
        assert_eq!(reply.kind, InboxKind::McpReply);
        reply.body.to().expect("JSON")
    }
}

pub fn json_body(value: &Value) -> Body {
    Body::of(value).expect("JSON")
}

/// A host that counts requests and answers them immediately.
#[derive(Default)]
pub struct RawHost {
    pub manifests: AtomicU32,
    pub calls: AtomicU32,
}

impl RawHost {
    pub async fn serve(bus: &Bus) -> Arc<Self> {
        let client = bus.client(AgentRef::new(HOST)).await;
        client.subscribe().await.expect("open");
        let host = Arc::new(Self::default());
        tokio::spawn(Arc::clone(&host).answer(client));
        host
    }

    async fn answer(self: Arc<Self>, client: BrokerClient) {
        while let Some(request) = client.next_message().await {
            let operation: Value = request.body.to().expect("JSON");
            let reply = match operation["op"].as_str() {
                Some("manifest") => {
                    self.manifests.fetch_add(1, Ordering::SeqCst);
                    json!({ "manifest": [schema("nova_click")] })
                }
                _ => {
                    self.calls.fetch_add(1, Ordering::SeqCst);
                    json!({ "result": { "success": true, "result": operation["arguments"], "unheard_of": 1 } })
                }
            };
            client.reply_nowait(&request, InboxKind::McpReply, json_body(&reply)).await.expect("open");
        }
    }
}
