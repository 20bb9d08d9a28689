//! Posts lines as OpenTelemetry log records, OTLP/HTTP in JSON.

use crate::error::ShipError;
use crate::target::Sink;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Request, Uri};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::ClientConfig;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

const TIMEOUT: Duration = Duration::from_secs(10);
/// How much of a response is read.
const MAX_RESPONSE: usize = 64 << 10;
const PATH: &str = "/v1/logs";
/// Severity INFO.
const SEVERITY: u8 = 9;

type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

pub struct OtlpSink {
    url: String,
    source: String,
    /// Opened by the first batch. The runtime drives the connection between batches.
    client: Option<(Runtime, HttpClient)>,
}

impl OtlpSink {
    pub fn new(url: &Uri, source: &str) -> Self {
        let base = url.to_string();
        let base = base.trim_end_matches('/');
        let url = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
        Self { url, source: source.to_owned(), client: None }
    }

    fn post(&mut self, lines: &[String]) -> Result<(), String> {
        let request = Request::post(&self.url).header(CONTENT_TYPE, "application/json");
        let request = request.body(Full::from(export(lines, &self.source).to_string()));
        let request = request.map_err(|error| error.to_string())?;
        let (runtime, client) = match &mut self.client {
            Some(open) => open,
            closed => closed.insert(open()?),
        };
        let posting = async {
            let answer = client.request(request).await.map_err(|error| error.to_string())?;
            if !answer.status().is_success() {
                return Err(format!("HTTP status {}", answer.status()));
            }
            let body = Limited::new(answer.into_body(), MAX_RESPONSE).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
            match &answer["partialSuccess"]["rejectedLogRecords"] {
                Value::Null => Ok(()),
                // The protocol writes 64-bit numbers as text.
                count if count == &json!(0) || count == &json!("0") => Ok(()),
                count => Err(format!("{count} lines were rejected: {}", answer["partialSuccess"]["errorMessage"])),
            }
        };
        let timed_out = Err(format!("no answer within {TIMEOUT:?}"));
        runtime.block_on(async { tokio::time::timeout(TIMEOUT, posting).await.unwrap_or(timed_out) })
    }
}

impl Sink for OtlpSink {
    fn send(&mut self, lines: &[String]) -> Result<(), ShipError> {
        self.post(lines).map_err(|reason| ShipError::Otlp { url: self.url.clone(), reason })
    }
}

fn open() -> Result<(Runtime, HttpClient), String> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let tls = tls.map_err(|error| error.to_string())?.with_native_roots().map_err(|error| error.to_string())?;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls.with_no_client_auth()).https_or_http();
    let client = Client::builder(TokioExecutor::new()).build(connector.enable_http1().wrap_connector(tcp));
    Ok((runtime, client))
}

/// The body of a request. Lines are unchanged in `body`, so that their hashes can be verified.
fn export(lines: &[String], source: &str) -> Value {
    let attribute = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let records: Vec<Value> = lines.iter().map(|line| log_record(line, attribute)).collect();
    let resource =
        json!({"attributes": [attribute("service.name", "toolbus"), attribute("toolbus.audit.log", source)]});
    json!({"resourceLogs": [{
        "resource": resource,
        "scopeLogs": [{"scope": {"name": "toolbus.audit"}, "logRecords": records}],
    }]})
}

fn log_record(line: &str, attribute: impl Fn(&str, &str) -> Value) -> Value {
    let fields: Value = serde_json::from_str(line).unwrap_or_default();
    let event = fields["event"].as_str().unwrap_or_default();
    let time = fields["time"].as_str().and_then(|time| time.parse::<jiff::Timestamp>().ok()).unwrap_or_default();
    let mut record = json!({
        "timeUnixNano": time.as_nanosecond().to_string(),
        "severityNumber": SEVERITY,
        "severityText": "INFO",
        "body": {"stringValue": line},
        "attributes": [attribute("event", event)],
    });
    if let Some(trace) = fields["trace"].as_str().filter(|trace| trace.len() == 32) {
        record["traceId"] = json!(trace);
    }
    record
}
