//! The test rig: broker, host and workers in this process, MCP servers as child processes.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use toolbus_broker::{BrokerCore, BrokerServer, CoreOptions, ServerOptions, SharedToken};
use toolbus_client::{AgentRef, BrokerClient, Call, CallItem, InboxKind, InboxMessage, MsgId, MultiplexedClient};
use toolbus_host::{HostError, HostOptions, LivePolicy, run_host};
use toolbus_mcp::{
    ClientHello, HostEvent, HostManifest, HostReply, HostRequest, Id, Notify, Outcome, Raw, Rpc, TaskWish, raw,
};
use toolbus_protocol::Body;
use toolbus_upstream::{HostConfig, ServerConfig};

const TOKEN: &str = "a token for tests";
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Awaits a future with the test timeout; `event` names it in the panic message.
pub async fn within<T>(event: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.unwrap_or_else(|_| panic!("timed out waiting for {event}"))
}

/// An stdio server that runs `fake_server.py` in this era.
pub fn fake(name: &str, era: &str) -> ServerConfig {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fake_server.py");
    ServerConfig::stdio(name, "python3", &[script, era, name])
}

/// Options of a host whose policy allows everything to every role.
pub fn open_host(config: HostConfig) -> HostOptions {
    HostOptions { policy: LivePolicy::everyone(), ..HostOptions::new(config) }
}

pub struct Rig {
    address: SocketAddr,
    _folder: TempDir,
    options: HostOptions,
    shutdown: CancellationToken,
    host: JoinHandle<Result<(), HostError>>,
}

impl Rig {
    pub async fn start(servers: Vec<ServerConfig>) -> Self {
        Self::with(open_host(HostConfig { servers })).await
    }

    pub async fn with(options: HostOptions) -> Self {
        Self::on(options, ServerOptions::default()).await
    }

    /// A broker without a host.
    pub async fn without_host() -> Self {
        Self::without_host_on(ServerOptions::default()).await
    }

    pub async fn without_host_on(broker: ServerOptions) -> Self {
        Self::on_core(broker, CoreOptions::default()).await
    }

    /// A broker without a host that refuses every `follow`.
    pub async fn without_follows() -> Self {
        let mut core = CoreOptions::default();
        core.engine.followed_items = 0;
        Self::on_core(ServerOptions::default(), core).await
    }

    async fn on_core(broker: ServerOptions, core: CoreOptions) -> Self {
        let (address, folder) = serve_broker(broker, core).await;
        let options = open_host(HostConfig::default());
        Self {
            address,
            _folder: folder,
            options,
            shutdown: CancellationToken::new(),
            host: tokio::spawn(async { Ok(()) }),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub async fn on(options: HostOptions, broker: ServerOptions) -> Self {
        let (address, folder) = serve_broker(broker, CoreOptions::default()).await;
        let shutdown = CancellationToken::new();
        let host = Self::run(address, &options, &shutdown).await;
        Self { address, _folder: folder, options, shutdown, host }
    }

    async fn run(
        address: SocketAddr,
        options: &HostOptions,
        shutdown: &CancellationToken,
    ) -> JoinHandle<Result<(), HostError>> {
        let client = connect(address, AgentRef::new("host")).await;
        tokio::spawn(run_host(client, options.clone(), shutdown.clone()))
    }

    /// Stops the host and starts another with the same options.
    pub async fn restart_host(&mut self) {
        self.stop_host().await;
        self.restart_after_stop().await;
    }

    pub async fn restart_after_stop(&mut self) {
        self.shutdown = CancellationToken::new();
        self.host = Self::run(self.address, &self.options, &self.shutdown).await;
    }

    /// Starts a host with other options on the same broker; the first one must be stopped.
    pub async fn with_other_host(mut self, options: HostOptions) -> Self {
        (self.options, self.shutdown) = (options, CancellationToken::new());
        self.host = Self::run(self.address, &self.options, &self.shutdown).await;
        self
    }

    /// The host's journal, for the next host.
    pub fn journal(&self) -> Arc<toolbus_journal::Journal> {
        Arc::clone(&self.options.journal)
    }

    pub fn policy(&self) -> &LivePolicy {
        &self.options.policy
    }

    pub async fn stop_host(&mut self) {
        self.shutdown.cancel();
        within("the host to end", &mut self.host).await.expect("no panic").expect("a clean shutdown");
    }

    pub async fn client(&self, agent: AgentRef) -> BrokerClient {
        connect(self.address, agent).await
    }

    pub async fn legacy(&self, name: &str) -> Worker {
        let capabilities = json!({"elicitation": {}});
        let info = json!({"name": name, "version": "9"});
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": capabilities, "clientInfo": info});
        self.worker(AgentRef::new(name), ClientHello::legacy(raw(&hello))).await
    }

    pub async fn modern(&self, name: &str) -> Worker {
        self.worker(AgentRef::new(name), ClientHello::modern()).await
    }

    pub async fn worker(&self, agent: AgentRef, hello: ClientHello) -> Worker {
        let client = self.client(agent).await;
        client.subscribe().await.expect("a mailbox");
        Worker { bus: client.into_multiplexed(), session: "s1".to_owned(), hello }
    }

    /// Polls the host's manifest, as this worker sees it, until it satisfies the condition.
    pub async fn manifest(&self, worker: &Worker, condition: impl Fn(&HostManifest) -> bool) -> HostManifest {
        let mut last = String::new();
        let poll = async {
            loop {
                let hosts = worker.bus.client().hosts(&BTreeMap::new()).await.expect("the directory");
                if let Some(manifest) = hosts.iter().find_map(|host| host.manifest.as_ref()) {
                    let manifest: HostManifest = manifest.to().expect("a manifest");
                    last = format!("{manifest:?}");
                    if condition(&manifest) {
                        return manifest;
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, poll)
            .await
            .unwrap_or_else(|_| panic!("timed out waiting for a manifest; last: {last}"))
    }
}

async fn serve_broker(broker: ServerOptions, core: CoreOptions) -> (SocketAddr, TempDir) {
    let folder = TempDir::new().expect("a folder");
    let core = BrokerCore::open(folder.path(), core).expect("the folder opens");
    let server = BrokerServer::with_options(core, Box::new(SharedToken::new(TOKEN)), broker);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound address");
    tokio::spawn(Arc::clone(&server).serve(listener));
    (address, folder)
}

pub async fn connect(address: SocketAddr, agent: AgentRef) -> BrokerClient {
    let endpoint = format!("ws://{address}/bus");
    let client = BrokerClient::connect(&endpoint, agent, TOKEN);
    within("a connection", client).await.expect("an accepted handshake")
}

pub struct Worker {
    pub bus: MultiplexedClient,
    pub session: String,
    pub hello: ClientHello,
}

/// The events and the reply of one request.
#[derive(Debug)]
pub struct Reply {
    pub events: Vec<HostEvent>,
    pub end: HostReply,
}

impl Reply {
    #[track_caller]
    pub fn result(&self) -> Value {
        match &self.end {
            HostReply::Rpc(Outcome::Result(result)) => serde_json::from_str(result.get()).expect("JSON"),
            other => panic!("expected a result, got {other:?}"),
        }
    }

    #[track_caller]
    pub fn error(&self) -> Value {
        match &self.end {
            HostReply::Rpc(Outcome::Error(error)) => serde_json::from_str(error.get()).expect("JSON"),
            other => panic!("expected an error, got {other:?}"),
        }
    }

    pub fn refused(&self) -> bool {
        matches!(self.end, HostReply::Rpc(Outcome::Error(_)))
    }

    /// The text of a tool's result.
    #[track_caller]
    pub fn text(&self) -> String {
        self.result()["content"][0]["text"].as_str().expect("a text").to_owned()
    }

    /// The text of a tool's result, read as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text()).expect("JSON")
    }
}

impl Worker {
    /// Adds the `_meta` members that modern clients send.
    fn params(&self, params: Value) -> Value {
        if self.hello.initialize.is_some() {
            return params;
        }
        let mut params = params;
        let meta = &mut params["_meta"];
        for (name, value) in [
            ("protocolVersion", json!("2026-07-28")),
            ("clientCapabilities", json!({"elicitation": {}})),
            ("clientInfo", json!({"name": "modern", "version": "9"})),
        ] {
            let member = &mut meta[format!("io.modelcontextprotocol/{name}")];
            if member.is_null() {
                *member = value;
            }
        }
        params
    }

    pub async fn start(&self, server: &str, method: &str, params: Value) -> Call {
        self.start_raw(server, method, raw(&self.params(params))).await
    }

    /// Starts a request with raw params, which may be invalid.
    pub async fn start_raw(&self, server: &str, method: &str, params: Raw) -> Call {
        let message = self.request_raw(server, method, params);
        self.bus.start_call("host", message, TIMEOUT).await.expect("a call")
    }

    /// Builds the message of a request without sending it.
    pub fn request(&self, server: &str, method: &str, params: Value) -> InboxMessage {
        self.request_raw(server, method, raw(&self.params(params)))
    }

    fn request_raw(&self, server: &str, method: &str, params: Raw) -> InboxMessage {
        self.message(HostRequest::Rpc(Rpc {
            server: server.to_owned(),
            session: self.session.clone(),
            client: self.hello.clone(),
            method: method.to_owned(),
            params: Some(params),
            task: None,
            hand_back: false,
        }))
    }

    pub async fn rpc(&self, server: &str, method: &str, params: Value) -> Reply {
        finish(self.start(server, method, params).await).await
    }

    pub async fn tool(&self, server: &str, name: &str, arguments: Value) -> Reply {
        self.rpc(server, "tools/call", json!({"name": name, "arguments": arguments})).await
    }

    /// Sends an admin query, or any other request with a reply.
    pub async fn ask(&self, request: HostRequest) -> Reply {
        let message = self.message(request);
        finish(self.bus.start_call("host", message, TIMEOUT).await.expect("a call")).await
    }

    /// Requests a tool call as a task.
    pub async fn task(&self, server: &str, name: &str, arguments: Value, ttl_ms: Option<u64>) -> Reply {
        self.ask(self.task_request(server, name, arguments, ttl_ms)).await
    }

    /// Builds the message of a task request without sending it.
    pub fn task_message(&self, server: &str, name: &str, arguments: Value) -> InboxMessage {
        self.message(self.task_request(server, name, arguments, None))
    }

    fn task_request(&self, server: &str, name: &str, arguments: Value, ttl_ms: Option<u64>) -> HostRequest {
        let params = self.params(json!({"name": name, "arguments": arguments, "_meta": {"progressToken": 1}}));
        let (session, client, task) = (self.session.clone(), self.hello.clone(), Some(TaskWish { ttl_ms }));
        let (server, method, params) = (server.to_owned(), "tools/call".to_owned(), Some(raw(&params)));
        HostRequest::Rpc(Rpc { server, session, client, method, params, task, hand_back: false })
    }

    pub async fn notify(&self, server: &str, method: &str, params: Value) {
        self.send(HostRequest::Notify(Notify {
            server: server.to_owned(),
            session: self.session.clone(),
            client: self.hello.clone(),
            method: method.to_owned(),
            params: Some(raw(&params)),
        }))
        .await;
    }

    pub async fn cancel(&self, server: &str, call: &MsgId) {
        self.notify(server, "notifications/cancelled", json!({"requestId": call.as_str(), "reason": "enough"})).await;
    }

    pub async fn answer(&self, server: &str, id: Id, result: Value) {
        let (server, session) = (server.to_owned(), self.session.clone());
        let outcome = Outcome::Result(raw(&result));
        self.send(HostRequest::Answer(toolbus_mcp::Answer { server, session, id, outcome })).await;
    }

    pub async fn send(&self, request: HostRequest) {
        self.bus.client().deliver("host", self.message(request)).await.expect("a receipt");
    }

    fn message(&self, request: HostRequest) -> InboxMessage {
        let body = Body::parse(request.to_json().into_bytes()).expect("JSON");
        InboxMessage::new(self.bus.client().me(), InboxKind::McpRequest, body)
    }

    /// The next event of the session that belongs to no call.
    pub async fn next_session_event(&self) -> HostEvent {
        let event = within("an event of the session", self.bus.client().next_event()).await.expect("an open client");
        assert_eq!(event.correlation_id.as_str(), self.session);
        event_of(&event.body)
    }
}

pub fn event_of(body: &Body) -> HostEvent {
    HostEvent::parse(body.text().expect("UTF-8")).expect("an event")
}

/// The next event of a call; panics if the reply comes first.
pub async fn next_event(call: &mut Call) -> HostEvent {
    match within("an event", call.next()).await {
        Some(CallItem::Event(body)) => event_of(&body),
        other => panic!("expected an event, got {other:?}"),
    }
}

pub async fn finish(mut call: Call) -> Reply {
    let mut events = Vec::new();
    loop {
        match within("a reply", call.next()).await.expect("a reply comes last") {
            CallItem::Event(body) => events.push(event_of(&body)),
            CallItem::Reply(reply) => {
                let body = reply.expect("a reply").body;
                let end = HostReply::parse(body.text().expect("UTF-8")).expect("a reply of a host");
                return Reply { events, end };
            }
        }
    }
}

/// The method and the params of a notification.
pub fn parts(event: &HostEvent) -> (String, Value) {
    match event {
        HostEvent::Notification { method, params, .. } => {
            let params = params.as_ref().map_or("null", |params| params.get());
            (method.clone(), serde_json::from_str(params).expect("JSON"))
        }
        other => panic!("expected a notification, got {other:?}"),
    }
}
