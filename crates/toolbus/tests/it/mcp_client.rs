//! Minimal MCP clients on raw JSON text, over stdio and HTTP, so that tests control and see every byte.

use crate::mcp_process::UpProcess;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::http::request::Builder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// The response, and the notifications before it.
pub struct Answered {
    pub response: String,
    pub notifications: Vec<String>,
}

pub trait McpClient {
    async fn request(&mut self, method: &str, params: &str) -> Answered;
    async fn notify(&mut self, method: &str, params: &str);
}

/// A client of `toolbus connect`.
pub struct StdioClient {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    ids: u64,
}

impl StdioClient {
    pub async fn start(up: &UpProcess) -> Self {
        Self::connect(&up.bus_url(), &up.token_file())
    }

    pub fn connect(broker: &str, token_file: &Path) -> Self {
        Self::with_args(broker, token_file, &[])
    }

    pub fn with_args(broker: &str, token_file: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
        command.args(["connect", "--broker", broker, "--token-file"]).arg(token_file).args(args);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .expect("the binary starts");
        let input = child.stdin.take().expect("a pipe");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, input, lines, ids: 0 }
    }

    pub fn process(&self) -> &Child {
        &self.child
    }

    pub async fn kill(&mut self) {
        self.child.kill().await.expect("it was running");
    }

    /// Waits until the process ends.
    pub async fn wait(&mut self) {
        self.child.wait().await.expect("it can be waited for");
    }

    pub async fn send(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).await.expect("it reads its input");
    }

    pub async fn next_line(&mut self) -> String {
        self.lines.next_line().await.expect("its output is text").expect("a line")
    }
}

impl McpClient for StdioClient {
    async fn request(&mut self, method: &str, params: &str) -> Answered {
        self.ids += 1;
        let id = self.ids;
        self.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)).await;
        let mut notifications = Vec::new();
        loop {
            let line = self.next_line().await;
            match is_response_to(&line, id) {
                true => return Answered { response: line, notifications },
                false => notifications.push(line),
            }
        }
    }

    async fn notify(&mut self, method: &str, params: &str) {
        self.send(&format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)).await;
    }
}

/// A client of `/mcp`.
pub struct HttpClient {
    client: Client<HttpConnector, Full<Bytes>>,
    url: String,
    token: String,
    session: Option<String>,
    ids: u64,
}

impl HttpClient {
    pub fn new(up: &UpProcess) -> Self {
        Self::to(&up.mcp_url(), &up.token())
    }

    pub fn to(url: &str, token: &str) -> Self {
        let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        Self { client, url: url.to_owned(), token: token.to_owned(), session: None, ids: 0 }
    }

    pub fn session(&self) -> &str {
        self.session.as_deref().expect("a session was opened")
    }

    /// Posts a raw body with these headers in addition to the default ones.
    pub async fn send(&self, headers: &[(&str, &str)], body: String) -> (u16, String) {
        let request = headers.iter().fold(self.post_builder(), |request, (name, value)| request.header(*name, *value));
        let response = self.client.request(request.body(Full::from(body)).expect("a request")).await;
        let response = response.expect("the server answers");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a whole body").to_bytes();
        (status, String::from_utf8(body.to_vec()).expect("text"))
    }

    fn post_builder(&self) -> Builder {
        Request::post(&self.url)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("authorization", format!("Bearer {}", self.token))
    }

    async fn post(&mut self, method: &str, params: &str, body: String) -> String {
        let mut request = self.post_builder();
        let params: RoutedParams = serde_json::from_str(params).unwrap_or_default();
        if params.meta.contains_key("io.modelcontextprotocol/protocolVersion") {
            request = request.header("mcp-protocol-version", "2026-07-28").header("mcp-method", method);
            let named = matches!(method, "tools/call" | "prompts/get" | "resources/read");
            if let Some(name) = params.name.or(params.uri).filter(|_| named) {
                request = request.header("mcp-name", name);
            }
        } else if method != "initialize" {
            request = request.header("mcp-protocol-version", "2025-11-25");
        }
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session);
        }
        let request = request.body(Full::from(body)).expect("a request");
        let response = self.client.request(request).await.expect("the server answers");
        if let Some(session) = response.headers().get("mcp-session-id") {
            self.session = Some(session.to_str().expect("visible ASCII").to_owned());
        }
        let body = response.into_body().collect().await.expect("a whole body").to_bytes();
        String::from_utf8(body.to_vec()).expect("text")
    }
}

impl McpClient for HttpClient {
    async fn request(&mut self, method: &str, params: &str) -> Answered {
        self.ids += 1;
        let id = self.ids;
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        let text = self.post(method, params, body).await;
        if is_response_to(&text, id) {
            return Answered { response: text, notifications: Vec::new() };
        }
        let data = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
        let mut messages: Vec<String> = data.filter(|data| !data.is_empty()).map(ToOwned::to_owned).collect();
        let response = messages.pop().unwrap_or_else(|| panic!("no answer in {text:?}"));
        assert!(is_response_to(&response, id), "the last event is the response: {response}");
        Answered { response, notifications: messages }
    }

    async fn notify(&mut self, method: &str, params: &str) {
        let body = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
        self.post(method, params, body).await;
    }
}

/// Only the members that the clients need; everything else stays text, so that numbers are not changed.
#[derive(Deserialize)]
struct Envelope {
    id: Option<Box<RawValue>>,
    method: Option<Box<RawValue>>,
}

fn is_response_to(text: &str, id: u64) -> bool {
    let envelope = serde_json::from_str::<Envelope>(text);
    envelope.is_ok_and(|it| it.method.is_none() && it.id.is_some_and(|own| own.get() == id.to_string()))
}

/// The params that modern HTTP clients repeat in headers.
#[derive(Deserialize, Default)]
struct RoutedParams {
    name: Option<String>,
    uri: Option<String>,
    #[serde(rename = "_meta", default)]
    meta: BTreeMap<String, Box<RawValue>>,
}
