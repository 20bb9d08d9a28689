//! The worker's HTTP endpoint on a loopback port, and a client with access to the raw event stream.

use super::bus::FakeBus;
use super::{TEST_TIMEOUT, eventually, initialize, soon};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::{TcpListener, TcpStream};
use toolbus_base::Share;
use toolbus_client::BrokerError;
use toolbus_worker::{AuthFailure, BoxFuture, Bus, BusPool, HttpOptions, HttpService, Principal, Principals};

pub struct Endpoint {
    pub service: Arc<HttpService>,
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

/// Uses the token as the principal's name; `wrong` is invalid, and `powerless` may do nothing.
struct NamedByToken;

impl Principals for NamedByToken {
    fn authenticate<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Result<Principal, AuthFailure>> {
        let token = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let outcome = match token {
            None => Err(AuthFailure::Missing),
            Some("wrong") => Err(AuthFailure::Invalid),
            Some(name) => Ok(Principal { name: name.into(), role: None, incarnation: 0 }),
        };
        Box::pin(async { outcome })
    }

    fn share(&self, principal: &Principal) -> Share {
        if principal.name == "powerless" { Share::LEAST } else { Share::DEFAULT }
    }
}

struct OneBus(Arc<FakeBus>);

impl BusPool for OneBus {
    fn bus<'a>(&'a self, _principal: &'a Principal) -> BoxFuture<'a, Result<Arc<dyn Bus>, BrokerError>> {
        Box::pin(async { Ok(Arc::clone(&self.0) as Arc<dyn Bus>) })
    }
}

impl Endpoint {
    pub async fn start(bus: &Arc<FakeBus>, options: HttpOptions) -> Self {
        let service = HttpService::new(Arc::new(NamedByToken), Arc::new(OneBus(Arc::clone(bus))), options);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let open = Arc::clone(&connections);
        let served = Arc::clone(&service);
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let service = Arc::clone(&served);
                let answer = move |request: Request<Incoming>| {
                    let service = Arc::clone(&service);
                    async move { Ok::<_, Infallible>(service.handle(request).await) }
                };
                let serving = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(socket), hyper::service::service_fn(answer));
                let open = Arc::clone(&open);
                open.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    serving.await.ok();
                    open.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        Self { service, address, connections }
    }

    /// Waits until the endpoint has noticed that all clients are disconnected.
    pub async fn all_disconnected(&self) {
        eventually("the end of all connections", || self.connections.load(Ordering::Relaxed) == 0).await;
    }

    /// Sends a request on a connection of its own.
    pub async fn send(&self, method: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri("/mcp").header("host", "localhost");
        if !headers.iter().any(|(name, _)| *name == "authorization") {
            request = request.header("authorization", "Bearer ann");
        }
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let response = soon("an answer", sender.send_request(request)).await.unwrap();
        Answer { response, text: String::new() }
    }

    pub async fn post(&self, headers: &[(&str, &str)], body: &Value) -> Answer {
        let mut all = vec![("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
        all.extend_from_slice(headers);
        self.send("POST", &all, body.to_string()).await
    }

    /// Sends a modern request with matching headers.
    pub async fn post_modern(&self, body: &Value) -> Answer {
        let params = &body["params"];
        let name = params["name"].as_str().or(params["uri"].as_str()).or(params["taskId"].as_str()).unwrap_or_default();
        let method = body["method"].as_str().unwrap();
        self.post(&[("mcp-protocol-version", "2026-07-28"), ("mcp-method", method), ("mcp-name", name)], body).await
    }

    /// Opens a legacy session and returns its id.
    pub async fn open(&self) -> String {
        let answer = self.post(&[], &initialize(0)).await;
        let session = answer.header("mcp-session-id");
        assert_eq!(answer.status(), StatusCode::OK, "{}", answer.text().await);
        session.expect("a session id")
    }

    pub async fn in_session(&self, session: &str, body: &Value) -> Answer {
        self.post(&[("mcp-session-id", session), ("mcp-protocol-version", "2025-11-25")], body).await
    }
}

pub struct Answer {
    response: Response<Incoming>,
    text: String,
}

impl Answer {
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub fn header(&self, name: &str) -> Option<String> {
        self.response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
    }

    pub fn is_stream(&self) -> bool {
        self.header("content-type").as_deref() == Some("text/event-stream")
    }

    pub async fn text(self) -> String {
        let body = soon("the body", self.response.into_body().collect()).await.unwrap();
        self.text + std::str::from_utf8(&body.to_bytes()).unwrap()
    }

    pub async fn json(self) -> Value {
        let text = self.text().await;
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("not JSON: {text:?}"))
    }

    /// The next block of the event stream, including comments; `None` at the end.
    pub async fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                return Some(block);
            }
            let frame = tokio::time::timeout(TEST_TIMEOUT, self.response.body_mut().frame()).await.expect("a block");
            let frame = frame?.ok()?;
            self.text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
        }
    }

    /// The id and message of the next event that has data.
    pub async fn event(&mut self) -> Option<(Option<String>, Value)> {
        loop {
            let block = self.block().await?;
            let field =
                |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(|text| text.trim().to_owned());
            if let Some(data) = field("data:").filter(|data| !data.is_empty()) {
                return Some((field("id:"), serde_json::from_str(&data).unwrap()));
            }
        }
    }

    pub async fn message(&mut self) -> Value {
        self.event().await.expect("the stream has another event").1
    }
}
