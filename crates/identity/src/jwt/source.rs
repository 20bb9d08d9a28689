//! Loads the keys of an issuer and keeps them up to date: PEM files are read once, a JWKS file when it changes, a JWKS
//! URL periodically and when a token names an unknown key.

use super::keys::KeySet;
use super::{JwtError, KeysFrom};
use crate::files::FileMark;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Uri;
use hyper::body::Bytes;
use hyper_rustls::{ConfigBuilderExt, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::ClientConfig;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use toolbus_base::read_trusted_text;

const MAX_JWKS_BYTES: usize = 256 << 10;
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum time between two fetches; limits fetches triggered by tokens with unknown keys.
const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(30);
/// How often a JWKS file is checked for changes.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The current keys. Dropping it stops the refresh task.
pub struct KeySource {
    shared: Arc<Shared>,
    _refresh_task: Option<DropGuard>,
}

struct Shared {
    keys: RwLock<Arc<KeySet>>,
    /// Requests an early fetch.
    refresh_requested: Notify,
    /// When the last fetch ended, successfully or not.
    fetched: watch::Sender<Option<Instant>>,
    is_remote: bool,
    last_fetch_succeeded: AtomicBool,
}

impl KeySource {
    /// Must be called within a tokio runtime for a JWKS file or URL.
    pub fn open(from: &KeysFrom) -> Result<Self, JwtError> {
        let (keys, refresh_from) = match from {
            KeysFrom::Pem(files) => {
                let keys = files.iter().map(|path| KeySet::read_pem(path)).collect::<Result<_, _>>()?;
                (KeySet::of(keys), None)
            }
            KeysFrom::JwksFile(file) => {
                let mark = FileMark::of(file);
                (read_file(file)?, Some(Refresh::File(file.clone(), mark)))
            }
            KeysFrom::JwksUrl { url, refresh } => (KeySet::default(), Some(Refresh::Url(url.clone(), *refresh))),
        };
        let is_remote = matches!(refresh_from, Some(Refresh::Url(..)));
        let shared = Arc::new(Shared {
            keys: RwLock::new(Arc::new(keys)),
            refresh_requested: Notify::new(),
            fetched: watch::Sender::new(None),
            is_remote,
            last_fetch_succeeded: AtomicBool::new(false),
        });
        let refreshing = refresh_from.map(|refresh_from| refresh_from.start(Arc::clone(&shared)));
        Ok(Self { shared, _refresh_task: refreshing })
    }

    pub fn current(&self) -> Arc<KeySet> {
        Arc::clone(&self.shared.keys.read().expect("no code panics while it holds the keys"))
    }

    /// Requests a fetch because a key is unknown. Returns `false` if no newer keys can be expected.
    pub fn request_refresh(&self) -> bool {
        let last = *self.shared.fetched.borrow();
        if !self.shared.is_remote {
            return false;
        }
        if last.is_some_and(|at| at.elapsed() < MIN_FETCH_INTERVAL) {
            // While the issuer is unreachable, the key may be valid and must not be rejected.
            return !self.shared.last_fetch_succeeded.load(Ordering::Relaxed);
        }
        self.shared.refresh_requested.notify_one();
        true
    }

    /// Waits until the first fetch from a URL has ended, successfully or not.
    pub async fn fetched(&self) {
        if self.shared.is_remote {
            self.shared.fetched.subscribe().wait_for(Option::is_some).await.ok();
        }
    }
}

impl Shared {
    fn replace(&self, keys: KeySet) {
        *self.keys.write().expect("no code panics while it holds the keys") = Arc::new(keys);
    }
}

enum Refresh {
    File(PathBuf, Option<FileMark>),
    Url(Uri, Duration),
}

impl Refresh {
    fn start(self, shared: Arc<Shared>) -> DropGuard {
        let end = CancellationToken::new();
        let ended = end.clone();
        tokio::spawn(async move {
            let refreshing = async {
                match self {
                    Self::File(path, mark) => watch_file(&path, mark, &shared).await,
                    Self::Url(url, refresh) => poll_url(&url, refresh, &shared).await,
                }
            };
            tokio::select! {
                () = refreshing => {}
                () = ended.cancelled() => {}
            }
        });
        end.drop_guard()
    }
}

async fn watch_file(path: &Path, mut seen: Option<FileMark>, shared: &Shared) {
    // The version of which a failure to read it was logged.
    let mut failed = None;
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let mark = FileMark::of(path);
        if mark == seen {
            continue;
        }
        match read_file(path) {
            Ok(keys) => {
                shared.replace(keys);
                tracing::info!("{} reloaded", path.display());
            }
            Err(error) => {
                if failed != Some(mark) {
                    tracing::error!("{error}; keeping the previous keys");
                    failed = Some(mark);
                }
                // Possibly transient, so the next poll tries again.
                if matches!(error, JwtError::Read { .. }) && mark.is_some() {
                    continue;
                }
            }
        }
        seen = mark;
    }
}

async fn poll_url(url: &Uri, refresh: Duration, shared: &Shared) {
    loop {
        let fetched = fetch(url).await;
        shared.last_fetch_succeeded.store(fetched.is_ok(), Ordering::Relaxed);
        match fetched {
            Ok(keys) => shared.replace(keys),
            Err(reason) => tracing::error!("can't fetch keys from {url}: {reason}; keeping the previous keys"),
        }
        shared.fetched.send_replace(Some(Instant::now()));
        tokio::time::sleep(MIN_FETCH_INTERVAL).await;
        tokio::time::timeout(refresh.saturating_sub(MIN_FETCH_INTERVAL), shared.refresh_requested.notified())
            .await
            .ok();
    }
}

fn read_file(path: &Path) -> Result<KeySet, JwtError> {
    let text = read_trusted_text(path).map_err(|source| JwtError::Read { path: path.to_owned(), source })?;
    KeySet::read_jwks(&text).map_err(|reason| JwtError::Key { path: path.to_owned(), reason })
}

async fn fetch(url: &Uri) -> Result<KeySet, String> {
    let fetching = async {
        let tls = system_tls_config()?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new()).build::<_, Empty<Bytes>>(connector.wrap_connector(tcp));
        let answer = client.get(url.clone()).await.map_err(|error| error.to_string())?;
        if !answer.status().is_success() {
            return Err(format!("HTTP status {}", answer.status()));
        }
        let body = Limited::new(answer.into_body(), MAX_JWKS_BYTES).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        KeySet::read_jwks(std::str::from_utf8(&body).map_err(|error| error.to_string())?)
    };
    let timed_out = Err(format!("no answer within {FETCH_TIMEOUT:?}"));
    tokio::time::timeout(FETCH_TIMEOUT, fetching).await.unwrap_or(timed_out)
}

/// Loaded once per process, because reading the system's certificates is slow.
fn system_tls_config() -> Result<ClientConfig, String> {
    static SYSTEM: OnceLock<ClientConfig> = OnceLock::new();
    if let Some(config) = SYSTEM.get() {
        return Ok(config.clone());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?.with_native_roots().map_err(|error| error.to_string())?;
    Ok(SYSTEM.get_or_init(|| builder.with_no_client_auth()).clone())
}
