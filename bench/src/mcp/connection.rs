//! A client's connection to an MCP server over stdio or HTTP, with only the features that a measurement needs.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, http::request};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::{Mutex as AsyncMutex, oneshot},
};

use super::Era;

/// Timeout of a request; the measurement fails if it is exceeded.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

pub struct Connection {
    era: Era,
    ids: AtomicU64,
    transport: Transport,
}

enum Transport {
    Stdio(Box<Stdio>),
    Http(Box<Http>),
}

impl Connection {
    pub fn stdio(command: Command, era: Era, log: &Path) -> anyhow::Result<Self> {
        Ok(Self { era, ids: AtomicU64::new(1), transport: Transport::Stdio(Box::new(Stdio::spawn(command, log)?)) })
    }

    pub fn http(url: &str, token: Option<String>, era: Era) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let http = Http { client, url: url.to_owned(), token, session: Mutex::new(None) };
        Self { era, ids: AtomicU64::new(1), transport: Transport::Http(Box::new(http)) }
    }

    /// Performs the handshake of the era.
    pub async fn open(&self) -> anyhow::Result<()> {
        match self.era {
            Era::Modern => {
                self.request("server/discover", json!({})).await?;
            }
            Era::Legacy => {
                let client = json!({"name": "toolbus-bench", "version": "1.0.0"});
                let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
                self.request("initialize", params).await?;
                self.notify("notifications/initialized").await?;
            }
        }
        Ok(())
    }

    /// Ends a client over stdio in order: its server reads EOF and exits.
    pub async fn close(self) -> anyhow::Result<()> {
        let Transport::Stdio(stdio) = self.transport else { return Ok(()) };
        let Stdio { mut child, input, .. } = *stdio;
        drop(input);
        tokio::time::timeout(ANSWER_LIMIT, child.wait()).await.context("timed out waiting for an exit")??;
        Ok(())
    }

    /// Ends the session of a legacy client over HTTP.
    pub async fn end_session(&self) -> anyhow::Result<()> {
        let Transport::Http(http) = &self.transport else { return Ok(()) };
        http.send(http.head("DELETE"), Bytes::new()).await.map(drop)
    }

    /// Another session of the same client over HTTP, on the same pool of connections.
    pub fn another_session(&self) -> Option<Self> {
        let Transport::Http(http) = &self.transport else { return None };
        let http = Http {
            client: http.client.clone(),
            url: http.url.clone(),
            token: http.token.clone(),
            session: Mutex::new(None),
        };
        Some(Self { era: self.era, ids: AtomicU64::new(1), transport: Transport::Http(Box::new(http)) })
    }

    /// Calls the tool `echo` and checks its answer.
    pub async fn echo(&self, text: &str) -> anyhow::Result<()> {
        self.echo_by("echo", text).await
    }

    /// Calls a tool that returns its text, and checks its answer.
    pub async fn echo_by(&self, tool: &str, text: &str) -> anyhow::Result<()> {
        let result = self.request("tools/call", json!({"name": tool, "arguments": {"text": text}})).await?;
        if result["content"][0]["text"] != text {
            bail!("the result is not an echo: {result}");
        }
        Ok(())
    }

    /// Sends a request and returns its result.
    pub async fn request(&self, method: &str, mut params: Value) -> anyhow::Result<Value> {
        if self.era == Era::Modern {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": {"name": "toolbus-bench", "version": "1.0.0"},
            });
        }
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let answer = async {
            match &self.transport {
                Transport::Stdio(stdio) => stdio.request(id, &message).await,
                Transport::Http(http) => http.request(self.era, method, &message).await,
            }
        };
        let mut answer =
            tokio::time::timeout(ANSWER_LIMIT, answer).await.context("timed out waiting for an answer")??;
        if answer.get("error").is_some() {
            bail!("{method} failed: {}", answer["error"]);
        }
        Ok(answer["result"].take())
    }

    async fn notify(&self, method: &str) -> anyhow::Result<()> {
        let message = json!({"jsonrpc": "2.0", "method": method});
        match &self.transport {
            Transport::Stdio(stdio) => stdio.write(&message).await,
            Transport::Http(http) => http.post(self.era, method, &message).await.map(drop),
        }
    }
}

struct Stdio {
    child: Child,
    input: AsyncMutex<ChildStdin>,
    pending: Arc<Mutex<HashMap<u64, oneshot::Sender<Value>>>>,
}

impl Stdio {
    fn spawn(mut command: Command, log: &Path) -> anyhow::Result<Self> {
        let stderr = std::fs::File::create(log).context("create a log file")?;
        let mut child = command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        let input = AsyncMutex::new(child.stdin.take().context("stdin is piped")?);
        let mut lines = BufReader::new(child.stdout.take().context("stdout is piped")?).lines();
        let pending: Arc<Mutex<HashMap<u64, oneshot::Sender<Value>>>> = Arc::default();
        let answers = Arc::clone(&pending);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
                let waiter = message["id"].as_u64().and_then(|id| answers.lock().ok()?.remove(&id));
                if let Some(waiter) = waiter {
                    waiter.send(message).ok();
                }
            }
            if let Ok(mut answers) = answers.lock() {
                answers.clear();
            }
        });
        Ok(Self { child, input, pending })
    }

    async fn request(&self, id: u64, message: &Value) -> anyhow::Result<Value> {
        let (sender, answer) = oneshot::channel();
        if let Ok(mut pending) = self.pending.lock() {
            pending.insert(id, sender);
        }
        self.write(message).await?;
        answer.await.context("the server exited")
    }

    async fn write(&self, message: &Value) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.input.lock().await.write_all(&line).await.context("write to the server")
    }
}

struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
    url: String,
    token: Option<String>,
    session: Mutex<Option<String>>,
}

impl Http {
    async fn request(&self, era: Era, method: &str, message: &Value) -> anyhow::Result<Value> {
        let text = self.post(era, method, message).await?;
        // Either the answer itself, or an SSE stream that contains it.
        let mut candidates = std::iter::once(text.as_str()).chain(text.lines().filter_map(|l| l.strip_prefix("data:")));
        candidates
            .find_map(|text| {
                let answer: Value = serde_json::from_str(text).ok()?;
                (answer["id"] == message["id"]).then_some(answer)
            })
            .with_context(|| format!("no answer in {text:?}"))
    }

    async fn post(&self, era: Era, method: &str, message: &Value) -> anyhow::Result<String> {
        let mut request = self
            .head("POST")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        match era {
            Era::Modern => {
                request = request.header("mcp-protocol-version", "2026-07-28").header("mcp-method", method);
                if let Some(name) = message["params"]["name"].as_str() {
                    request = request.header("mcp-name", name);
                }
            }
            Era::Legacy if method != "initialize" => request = request.header("mcp-protocol-version", "2025-11-25"),
            Era::Legacy => {}
        }
        self.send(request, Bytes::from(serde_json::to_vec(message)?)).await
    }

    /// The headers of all requests.
    fn head(&self, method: &str) -> request::Builder {
        let mut request = Request::builder().method(method).uri(&self.url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(session) = self.session.lock().ok().and_then(|session| session.clone()) {
            request = request.header("mcp-session-id", session);
        }
        request
    }

    async fn send(&self, request: request::Builder, body: Bytes) -> anyhow::Result<String> {
        let response = self.client.request(request.body(Full::new(body))?).await.context("send a request")?;
        if let Some(id) = response.headers().get("mcp-session-id").and_then(|id| id.to_str().ok())
            && let Ok(mut session) = self.session.lock()
        {
            *session = Some(id.to_owned());
        }
        let status = response.status();
        let body = response.into_body().collect().await.context("read the answer")?.to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        if !status.is_success() {
            bail!("{status}: {text}");
        }
        Ok(text)
    }
}
