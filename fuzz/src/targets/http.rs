//! The MCP endpoint over HTTP: any method, headers and body get a valid answer with the id of the request, and only an
//! authenticated client gets anything but 401. The input is a method, headers, an empty line, and the body, as in HTTP;
//! several requests are separated by a line `---`.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use toolbus_client::BrokerError;
use toolbus_mcp::{Era, HostManifest, HostReply, Message, Outcome, ServerManifest, ServerState, SomeTools, raw};
use toolbus_protocol::Body;
use toolbus_worker::{
    AuthFailure, BoxFuture, Bus, BusCall, BusItem, BusPool, HostEntry, Hosts, HttpBody, HttpOptions, HttpService,
    Principal, Principals, SessionEvent,
};

/// Requests of one input.
const MAX_REQUESTS: usize = 4;
/// Stands for the session that an earlier request of the input opened.
const SESSION: &str = "SESSION";

pub fn http(data: &[u8]) {
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let options = HttpOptions { max_body_bytes: 4096, legacy_quiet: Duration::ZERO, ..HttpOptions::default() };
        let service = HttpService::new(Arc::new(OneToken), Arc::new(OneBus(Arc::new(EchoBus::new()))), options);
        let mut session = String::new();
        for text in split(data).take(MAX_REQUESTS) {
            let Some(request) = request(text, &session) else { continue };
            let (is_known, body) = (OneToken::knows(request.headers().get(AUTHORIZATION)), request.body().clone());
            let answer = Arc::clone(&service).handle(request.map(Full::new)).await;
            if let Some(opened) = answer.headers().get("mcp-session-id").and_then(|id| id.to_str().ok()) {
                session = opened.to_owned();
            }
            check(is_known, &body, answer).await;
        }
    });
}

fn split(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let separator = b"\n---\n";
    let mut rest = Some(data);
    std::iter::from_fn(move || {
        let all = rest?;
        match all.windows(separator.len()).position(|window| window == separator) {
            Some(at) => {
                rest = Some(&all[at + separator.len()..]);
                Some(&all[..at])
            }
            None => rest.take(),
        }
    })
}

fn request(text: &[u8], session: &str) -> Option<Request<Bytes>> {
    let mut input = crate::input::Input(text);
    let method = Method::from_bytes(input.line()).ok()?;
    let mut request = Request::builder().method(method).uri("/mcp");
    loop {
        let line = input.line();
        let Some(at) = line.iter().position(|byte| *byte == b':') else { break };
        let value = line[at + 1..].trim_ascii();
        let value = if value == SESSION.as_bytes() { session.as_bytes() } else { value };
        let (name, value) = (HeaderName::from_bytes(&line[..at]), HeaderValue::from_bytes(value));
        if let (Ok(name), Ok(value)) = (name, value) {
            request = request.header(name, value);
        }
    }
    request.body(Bytes::copy_from_slice(input.0)).ok()
}

async fn check(is_known: bool, request: &[u8], answer: Response<HttpBody>) {
    let status = answer.status();
    assert_eq!(is_known, status != StatusCode::UNAUTHORIZED, "{status}");
    assert!(!status.is_server_error() || status == StatusCode::SERVICE_UNAVAILABLE, "{status}");
    let kind = answer.headers().get(CONTENT_TYPE).cloned();
    if kind.is_none_or(|kind| kind != "application/json") {
        return;
    }
    let body = answer.into_body().collect().await.expect("infallible").to_bytes();
    let text = std::str::from_utf8(&body).expect("UTF-8");
    let Message::Response(response) = Message::parse(text).expect("a JSON-RPC message") else {
        panic!("{text} is not a response");
    };
    let asked = std::str::from_utf8(request).ok().and_then(|text| Message::parse(text).ok());
    if let (Some(Message::Request(asked)), Some(id)) = (asked, response.id) {
        assert_eq!(asked.id, id);
    }
}

struct OneToken;

impl OneToken {
    fn knows(value: Option<&HeaderValue>) -> bool {
        value.is_some_and(|value| value == "Bearer known")
    }
}

impl Principals for OneToken {
    fn authenticate<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Result<Principal, AuthFailure>> {
        let known = Self::knows(head.headers.get(AUTHORIZATION));
        let principal = Principal { name: "agent".into(), role: None, incarnation: 0 };
        Box::pin(async move { known.then_some(principal).ok_or(AuthFailure::Invalid) })
    }
}

struct OneBus(Arc<EchoBus>);

impl BusPool for OneBus {
    fn bus<'a>(&'a self, _principal: &'a Principal) -> BoxFuture<'a, Result<Arc<dyn Bus>, BrokerError>> {
        Box::pin(async { Ok(Arc::clone(&self.0) as Arc<dyn Bus>) })
    }
}

/// A bus with one host that answers every request at once.
struct EchoBus {
    hosts: watch::Sender<Hosts>,
    /// Keeps the channels of sessions open.
    sessions: Mutex<Vec<mpsc::Sender<SessionEvent>>>,
}

impl EchoBus {
    fn new() -> Self {
        let tool = json!({"name": "where", "inputSchema": {"type": "object", "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "count": {"type": "integer", "x-mcp-header": "Count"}}}});
        let capabilities = json!({"tools": {"listChanged": true}, "logging": {}, "resources": {"subscribe": true}});
        let info = json!({"name": "files", "version": "1"});
        let initialize = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info});
        let discover = json!({"resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 5,
            "cacheScope": "public", "capabilities": capabilities,
            "_meta": {"io.modelcontextprotocol/serverInfo": info}});
        let server = ServerManifest {
            name: "files".into(),
            state: ServerState::Up,
            down: None,
            eras: vec![Era::Legacy, Era::Modern],
            initialize: Some(raw(&initialize)),
            discover: Some(raw(&discover)),
            tools: vec![raw(&tool)],
            resources: Vec::new(),
            resource_templates: Vec::new(),
            prompts: Vec::new(),
            withheld: Vec::new(),
            fail_fast: SomeTools::default(),
            shared: false,
            replay_safe: SomeTools::default(),
            alone: SomeTools::default(),
        };
        let manifest = Arc::new(HostManifest { servers: vec![server], ..HostManifest::default() });
        let host = HostEntry { name: "host".into(), away_since_ms: None, manifest };
        Self { hosts: watch::channel(Arc::new(vec![host])).0, sessions: Mutex::default() }
    }
}

impl Bus for EchoBus {
    fn start_call<'a>(
        &'a self,
        _host: &'a str,
        body: Body,
        _limit: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn BusCall>, BrokerError>> {
        let request: Value = body.to().expect("a request of the worker is valid");
        let reply = HostReply::Rpc(Outcome::Result(raw(&json!({"asked": request["method"]}))));
        let call = EchoCall(Some(Body::from_trusted(reply.to_json().into_bytes())));
        Box::pin(async move { Ok(Box::new(call) as Box<dyn BusCall>) })
    }

    fn send<'a>(&'a self, _host: &'a str, body: Body, _limit: Duration) -> BoxFuture<'a, Result<(), BrokerError>> {
        body.check().expect("a message of the worker is valid");
        Box::pin(async { Ok(()) })
    }

    fn hosts(&self) -> watch::Receiver<Hosts> {
        self.hosts.subscribe()
    }

    fn open_session(&self, _key: &str) -> mpsc::Receiver<SessionEvent> {
        let (sender, receiver) = mpsc::channel(1);
        self.sessions.lock().expect("no code panics while holding the lock").push(sender);
        receiver
    }
}

struct EchoCall(Option<Body>);

impl BusCall for EchoCall {
    fn id(&self) -> &str {
        "call"
    }

    fn next(&mut self) -> BoxFuture<'_, BusItem> {
        match self.0.take() {
            Some(reply) => Box::pin(async { BusItem::Reply(Ok(reply)) }),
            None => Box::pin(std::future::pending()),
        }
    }

    fn detach(&mut self) {}

    fn leave(self: Box<Self>) -> BoxFuture<'static, Result<(), BrokerError>> {
        Box::pin(async { Ok(()) })
    }
}
