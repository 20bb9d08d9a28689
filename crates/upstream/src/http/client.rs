//! The HTTP client of one server: one URL, the configured headers, and no redirects to another origin.

use super::connector::{Connections, Counting};
use super::headers::{PROTOCOL_VERSION, SESSION_ID, ToolHeaders};
use crate::config::{ServerConfig, TransportConfig, shown_url};
use crate::error::ServerError;
use crate::secrets::{self, Resolved};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use hyper::{Method, Response, Uri};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How much of an error response is kept.
const MAX_DETAIL_CHARS: usize = 300;
const JSON_OR_EVENT_STREAM: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

pub(super) struct HttpClient {
    server: String,
    client: Client<Counting<Connector>, Full<Bytes>>,
    pub connections: Arc<Connections>,
    uri: Mutex<Uri>,
    /// The headers are built from it.
    config: ServerConfig,
    configured: Mutex<Configured>,
    pub session: Mutex<Session>,
    pub tools: Mutex<ToolHeaders>,
}

/// The configured headers, and when they expire.
#[derive(Clone)]
struct Configured {
    /// Marked as sensitive, so that they are not printed.
    headers: HeaderMap,
    expires: Option<Instant>,
}

/// The session of a legacy server, from its `initialize` response.
#[derive(Default, Clone)]
pub(super) struct Session {
    pub id: Option<HeaderValue>,
    pub version: Option<HeaderValue>,
}

impl HttpClient {
    pub fn new(config: &ServerConfig, resolved: &Resolved) -> Result<Self, ServerError> {
        let failed = |reason: String| ServerError::Start { server: config.name.clone(), reason };
        let (TransportConfig::Http { url, .. } | TransportConfig::Sse { url, .. }) = &resolved.transport else {
            return Err(failed("the server is configured for stdio".into()));
        };
        let uri: Uri = url.parse().map_err(|_| failed(format!("{} is not a valid url", shown_url(url))))?;
        if uri.authority().is_none_or(|authority| authority.as_str().contains('@')) {
            return Err(failed("the url must not contain a user name; credentials belong in headers".into()));
        }
        let tls = uri.scheme_str() == Some("https");
        let connections = Arc::default();
        Ok(Self {
            server: config.name.clone(),
            client: build_client(tls, &connections)
                .map_err(|error| failed(format!("TLS is not available: {error}")))?,
            connections,
            uri: Mutex::new(uri),
            config: config.clone(),
            configured: Mutex::new(Configured::new(config, resolved)?),
            session: Mutex::default(),
            tools: Mutex::default(),
        })
    }

    pub async fn post(&self, body: String, extra: HeaderMap) -> Result<Response<Incoming>, ServerError> {
        let mut headers = extra;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, JSON_OR_EVENT_STREAM);
        self.send(Method::POST, headers, body.into()).await
    }

    pub async fn get_stream(&self, last_event_id: Option<&str>) -> Result<Response<Incoming>, ServerError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, EVENT_STREAM);
        if let Some(id) = last_event_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            headers.insert(LAST_EVENT_ID, id);
        }
        self.send(Method::GET, headers, Bytes::new()).await
    }

    pub async fn delete(&self) -> Result<Response<Incoming>, ServerError> {
        self.send(Method::DELETE, HeaderMap::new(), Bytes::new()).await
    }

    /// Sends all further requests to this endpoint. Returns false if it is not of the same origin: the configured headers
    /// are for that one only.
    pub fn set_endpoint(&self, endpoint: &str) -> bool {
        let mut uri = self.uri.lock().unwrap_or_else(PoisonError::into_inner);
        let target = same_origin_target(&uri, &absolute_path(uri.path(), endpoint.trim()));
        let is_valid = target.is_some();
        *uri = target.unwrap_or_else(|| uri.clone());
        is_valid
    }

    pub fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn tools(&self) -> MutexGuard<'_, ToolHeaders> {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request, and repeats it once if the server redirects within the same origin (`/mcp` to `/mcp/`).
    async fn send(&self, method: Method, headers: HeaderMap, body: Bytes) -> Result<Response<Incoming>, ServerError> {
        let uri = self.uri();
        if self.configured().expires.is_some_and(|expires| expires <= Instant::now()) {
            self.refresh(false).await?;
        }
        let mut response = self.send_to(&uri, method.clone(), headers.clone(), body.clone()).await?;
        // The credentials may have been rotated before their TTL. A request rejected with 401 has not been run.
        if response.status().as_u16() == 401 && self.refresh(true).await? {
            response = self.send_to(&uri, method.clone(), headers.clone(), body.clone()).await?;
        }
        if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(response);
        }
        let target =
            response.headers().get(LOCATION).and_then(|target| same_origin_target(&uri, target.to_str().ok()?));
        let Some(target) = target.filter(|_| matches!(response.status().as_u16(), 307 | 308)) else {
            let detail = "the server redirects, which is followed only within the same host".to_owned();
            return Err(ServerError::HttpStatus {
                server: self.server.clone(),
                status: response.status().into(),
                detail,
            });
        };
        *self.uri.lock().unwrap_or_else(PoisonError::into_inner) = target.clone();
        self.send_to(&target, method, headers, body).await
    }

    /// Rebuilds the headers. Returns whether they changed; without fetched secrets they never do.
    async fn refresh(&self, force: bool) -> Result<bool, ServerError> {
        let before = self.configured();
        if before.expires.is_none() {
            return Ok(false);
        }
        let resolved = secrets::resolve(&self.config, force).await?;
        let now = Configured::new(&self.config, &resolved)?;
        let changed = now.headers != before.headers;
        *self.configured.lock().unwrap_or_else(PoisonError::into_inner) = now;
        Ok(changed)
    }

    async fn send_to(
        &self,
        uri: &Uri,
        method: Method,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, ServerError> {
        let mut request = hyper::Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = self.configured().headers;
        let session = self.session().clone();
        let session_headers = [(SESSION_ID, session.id), (PROTOCOL_VERSION, session.version)];
        for (name, value) in session_headers.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            request.headers_mut().insert(name, value);
        }
        for (name, value) in &headers {
            request.headers_mut().insert(name, value.clone());
        }
        self.client.request(request).await.map_err(|error| self.failed(uri, &error))
    }

    /// The error has the URL without its query, and the innermost cause.
    fn failed(&self, uri: &Uri, error: &hyper_util::client::legacy::Error) -> ServerError {
        let mut reason = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            reason = error.to_string();
            cause = error.source();
        }
        let server = self.server.clone();
        if error.is_connect() {
            ServerError::Unreachable { server, place: shown_url(&uri.to_string()), reason }
        } else {
            ServerError::BrokenOff { server, reason }
        }
    }

    /// The error for a response without a JSON-RPC message. Servers may echo requests, so secrets are redacted before
    /// the text is truncated.
    pub fn status_error(&self, status: u16, body: &[u8]) -> ServerError {
        let body = String::from_utf8_lossy(body);
        let detail = self.config.secrets.redactor().redact(body.trim()).chars().take(MAX_DETAIL_CHARS).collect();
        ServerError::HttpStatus { server: self.server.clone(), status, detail }
    }

    fn configured(&self) -> Configured {
        self.configured.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn uri(&self) -> Uri {
        self.uri.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Configured {
    fn new(config: &ServerConfig, resolved: &Resolved) -> Result<Self, ServerError> {
        let failed = |reason: String| ServerError::Start { server: config.name.clone(), reason };
        let mut headers = HeaderMap::new();
        let (TransportConfig::Http { headers: configured, .. } | TransportConfig::Sse { headers: configured, .. }) =
            &resolved.transport
        else {
            return Ok(Self { headers, expires: None });
        };
        for (name, value) in configured {
            let header = HeaderName::try_from(name).map_err(|_| failed(format!("{name:?} is not a header name")))?;
            let mut value = HeaderValue::try_from(value)
                .map_err(|_| failed(format!("the header {name:?} has an invalid value")))?;
            value.set_sensitive(true);
            headers.insert(header, value);
        }
        Ok(Self { headers, expires: resolved.expires })
    }
}

/// Reads a whole body, up to the limit.
pub(super) async fn read_body(mut body: Incoming, limit: usize) -> Result<Vec<u8>, BodyError> {
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(BodyError::Broken)?;
        let Some(data) = frame.data_ref() else { continue };
        if whole.len() + data.len() > limit {
            return Err(BodyError::TooLarge((whole.len() + data.len()) as u64));
        }
        whole.extend_from_slice(data);
    }
    Ok(whole)
}

pub(super) enum BodyError {
    Broken(hyper::Error),
    TooLarge(u64),
}

/// A reference without scheme and leading slash, from the path of the page that it is on.
fn absolute_path(base: &str, reference: &str) -> String {
    let folder = base.rsplit_once('/').map_or("", |(folder, _)| folder);
    match reference.as_bytes().first() {
        _ if reference.contains("://") => reference.to_owned(),
        Some(b'/') => reference.to_owned(),
        Some(b'?') => format!("{base}{reference}"),
        _ => format!("{folder}/{reference}"),
    }
}

/// The target of a redirect, if scheme, host and port are the same.
fn same_origin_target(from: &Uri, target: &str) -> Option<Uri> {
    let target: Uri = target.parse().ok()?;
    let mut parts = target.into_parts();
    if parts.authority.is_some()
        && (parts.authority.as_ref() != from.authority() || parts.scheme.as_ref() != from.scheme())
    {
        return None;
    }
    parts.authority = from.authority().cloned();
    parts.scheme = from.scheme().cloned();
    Uri::from_parts(parts).ok()
}

type Connector = HttpsConnector<HttpConnector>;

fn build_client(
    tls: bool,
    connections: &Arc<Connections>,
) -> std::io::Result<Client<Counting<Connector>, Full<Bytes>>> {
    let mut tcp = HttpConnector::new();
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_nodelay(true);
    tcp.enforce_http(false);
    let config = if tls { system_roots()? } else { no_roots()? };
    let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1();
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(POOL_IDLE_TIMEOUT);
    let (inner, connections) = (connector.wrap_connector(tcp), Arc::clone(connections));
    Ok(builder.build(Counting { inner, connections }))
}

/// Cached: loading the system's certificates is slow.
fn system_roots() -> std::io::Result<rustls::ClientConfig> {
    static SYSTEM: OnceLock<rustls::ClientConfig> = OnceLock::new();
    if let Some(config) = SYSTEM.get() {
        return Ok(config.clone());
    }
    let config = match tls_builder()?.with_native_roots() {
        Ok(builder) => builder,
        // Fallback for containers without certificates.
        Err(_) => tls_builder()?.with_webpki_roots(),
    };
    Ok(SYSTEM.get_or_init(|| config.with_no_client_auth()).clone())
}

fn no_roots() -> std::io::Result<rustls::ClientConfig> {
    Ok(tls_builder()?.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth())
}

fn tls_builder() -> std::io::Result<rustls::ConfigBuilder<rustls::ClientConfig, rustls::WantsVerifier>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider);
    builder.with_safe_default_protocol_versions().map_err(std::io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_found_from_the_event_stream_and_must_be_of_its_origin() {
        let from: Uri = "https://h:1/api/sse?x".parse().expect("a URI");
        let check = |endpoint: &str, expected: Option<&str>| {
            let target = same_origin_target(&from, &absolute_path(from.path(), endpoint));
            assert_eq!(target.map(|uri| uri.to_string()).as_deref(), expected, "{endpoint}");
        };
        check("/messages?id=1", Some("https://h:1/messages?id=1"));
        check("messages?id=1", Some("https://h:1/api/messages?id=1"));
        check("?id=1", Some("https://h:1/api/sse?id=1"));
        check("https://h:1/m", Some("https://h:1/m"));
        for other in ["https://evil/m", "http://h:1/m", "https://h:2/m", "https://h:1@evil/m", "file:///etc/passwd"] {
            check(other, None);
        }
    }
}
