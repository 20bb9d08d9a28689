//! Where an issuer's keys come from, and how they are kept up to date: PEM files once, a JWKS file when it changes, a
//! JWKS URL from time to time and when a token names a key that is not known.

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

const MAX_JWKS_BYTES: usize = 256 << 10;
const FETCH_LIMIT: Duration = Duration::from_secs(10);
/// The shortest time between two fetches, whoever asks for one.
const BETWEEN_FETCHES: Duration = Duration::from_secs(30);
/// How often a JWKS file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The keys in force. Following them ends when this is dropped.
pub struct KeySource {
    shared: Arc<Shared>,
    _following: Option<DropGuard>,
}

struct Shared {
    keys: RwLock<Arc<KeySet>>,
    /// Asks for a fetch.
    wanted: Notify,
    /// When the last fetch ended, well or badly.
    fetched: watch::Sender<Option<Instant>>,
    is_remote: bool,
    /// Whether the last fetch went well.
    reached: AtomicBool,
}

impl KeySource {
    /// Has to be called within a tokio runtime if keys are to be followed.
    pub fn open(from: &KeysFrom) -> Result<Self, JwtError> {
        let (keys, follow) = match from {
            KeysFrom::Pem(files) => {
                let keys = files.iter().map(|path| KeySet::read_pem(path)).collect::<Result<_, _>>()?;
                (KeySet::of(keys), None)
            }
            KeysFrom::JwksFile(file) => {
                let mark = FileMark::of(file);
                (read_file(file)?, Some(Follow::File(file.clone(), mark)))
            }
            KeysFrom::JwksUrl { url, refresh } => (KeySet::default(), Some(Follow::Url(url.clone(), *refresh))),
        };
        let is_remote = matches!(follow, Some(Follow::Url(..)));
        let shared = Arc::new(Shared {
            keys: RwLock::new(Arc::new(keys)),
            wanted: Notify::new(),
            fetched: watch::Sender::new(None),
            is_remote,
            reached: AtomicBool::new(false),
        });
        let following = follow.map(|follow| follow.start(Arc::clone(&shared)));
        Ok(Self { shared, _following: following })
    }

    pub fn current(&self) -> Arc<KeySet> {
        Arc::clone(&self.shared.keys.read().expect("no code panics while it holds the keys"))
    }

    /// Asks for newer keys because one is missing. False if there can be none by now.
    pub fn ask_for_newer(&self) -> bool {
        let last = *self.shared.fetched.borrow();
        if !self.shared.is_remote {
            return false;
        }
        if last.is_some_and(|at| at.elapsed() < BETWEEN_FETCHES) {
            // While the issuer can't be reached, nothing can be said against anybody's key.
            return !self.shared.reached.load(Ordering::Relaxed);
        }
        self.shared.wanted.notify_one();
        true
    }

    /// Waits until keys that come from elsewhere were fetched once, well or badly.
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

enum Follow {
    File(PathBuf, Option<FileMark>),
    Url(Uri, Duration),
}

impl Follow {
    fn start(self, shared: Arc<Shared>) -> DropGuard {
        let end = CancellationToken::new();
        let ended = end.clone();
        tokio::spawn(async move {
            let following = async {
                match self {
                    Self::File(path, mark) => follow_file(&path, mark, &shared).await,
                    Self::Url(url, refresh) => follow_url(&url, refresh, &shared).await,
                }
            };
            tokio::select! {
                () = following => {}
                () = ended.cancelled() => {}
            }
        });
        end.drop_guard()
    }
}

async fn follow_file(path: &Path, mut seen: Option<FileMark>, shared: &Shared) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let mark = FileMark::of(path);
        if mark == seen {
            continue;
        }
        match read_file(path) {
            Ok(keys) => {
                shared.replace(keys);
                tracing::info!("{} was read again", path.display());
            }
            // It may be readable in a moment.
            Err(JwtError::Read { .. }) if mark.is_some() => continue,
            Err(error) => tracing::error!("{error}; the keys from before stay"),
        }
        seen = mark;
    }
}

async fn follow_url(url: &Uri, refresh: Duration, shared: &Shared) {
    loop {
        let fetched = fetch(url).await;
        shared.reached.store(fetched.is_ok(), Ordering::Relaxed);
        match fetched {
            Ok(keys) => shared.replace(keys),
            Err(reason) => tracing::error!("no keys from {url}: {reason}; the keys from before stay"),
        }
        shared.fetched.send_replace(Some(Instant::now()));
        tokio::time::sleep(BETWEEN_FETCHES).await;
        tokio::time::timeout(refresh.saturating_sub(BETWEEN_FETCHES), shared.wanted.notified()).await.ok();
    }
}

fn read_file(path: &Path) -> Result<KeySet, JwtError> {
    let text = std::fs::read_to_string(path).map_err(|source| JwtError::Read { path: path.to_owned(), source })?;
    KeySet::read_jwks(&text).map_err(|reason| JwtError::Key { path: path.to_owned(), reason })
}

async fn fetch(url: &Uri) -> Result<KeySet, String> {
    let fetching = async {
        let tls = trusting_the_system()?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new()).build::<_, Empty<Bytes>>(connector.wrap_connector(tcp));
        let answer = client.get(url.clone()).await.map_err(|error| error.to_string())?;
        if !answer.status().is_success() {
            return Err(format!("the answer was {}", answer.status()));
        }
        let body = Limited::new(answer.into_body(), MAX_JWKS_BYTES).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        KeySet::read_jwks(std::str::from_utf8(&body).map_err(|error| error.to_string())?)
    };
    let slow = Err(format!("no answer within {FETCH_LIMIT:?}"));
    tokio::time::timeout(FETCH_LIMIT, fetching).await.unwrap_or(slow)
}

/// Reading the system's certificates takes a while, so it is done once.
fn trusting_the_system() -> Result<ClientConfig, String> {
    static SYSTEM: OnceLock<ClientConfig> = OnceLock::new();
    if let Some(config) = SYSTEM.get() {
        return Ok(config.clone());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?.with_native_roots().map_err(|error| error.to_string())?;
    Ok(SYSTEM.get_or_init(|| builder.with_no_client_auth()).clone())
}
