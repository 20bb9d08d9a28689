//! TLS on the listener: certificate and key from files, read again when they change, and the certificates of clients
//! where the operator names a CA for them.

use bytes::Bytes;
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use toolbus_identity::FileMark;

/// How often the files are looked at.
const EVERY: Duration = Duration::from_millis(500);
/// How every TLS connection begins.
const HANDSHAKE_RECORD: u8 = 0x16;
/// Read of a peer that is only told to use TLS.
const MAX_UNREAD: u64 = 64 << 10;

/// What to present to clients, and whom to ask for a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// The certificate and those between it and its root (PEM).
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Those who may issue certificates to clients. A client without one is let in as far as its token lets it.
    pub client_ca: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("can't read {}: {source}", path.display())]
    Read { path: PathBuf, source: pem::Error },
    #[error("there is no certificate in {}", path.display())]
    NoCertificate { path: PathBuf },
    #[error("{} can't be used with {}: {source}", certificate.display(), key.display())]
    Pair { certificate: PathBuf, key: PathBuf, source: rustls::Error },
    #[error("{} is not usable as a CA for clients: {reason}", path.display())]
    ClientCa { path: PathBuf, reason: String },
    #[error("no usable version of TLS: {0}")]
    Versions(rustls::Error),
}

impl TlsSettings {
    /// Whether connections could be served with what the files hold now.
    pub fn check(&self) -> Result<(), TlsError> {
        self.load().map(drop)
    }

    fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Versions)?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let unusable = |reason: String| TlsError::ClientCa { path: path.clone(), reason };
                let mut roots = rustls::RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier.allow_unauthenticated().build().map_err(|error| unusable(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let unreadable = |source| TlsError::Read { path: self.key.clone(), source };
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(unreadable)?;
        let (certificate, key_path) = (self.certificate.clone(), self.key.clone());
        let pair = |source| TlsError::Pair { certificate, key: key_path, source };
        let mut config = builder.with_single_cert(certificates(&self.certificate)?, key).map_err(pair)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    fn marks(&self) -> Vec<Option<FileMark>> {
        let files = [&self.certificate, &self.key].into_iter().chain(&self.client_ca);
        files.map(|file| FileMark::of(file)).collect()
    }
}

/// The settings in force.
pub struct Tls {
    settings: TlsSettings,
    config: RwLock<Arc<ServerConfig>>,
    watched: Mutex<Watched>,
}

struct Watched {
    /// Of what was loaded last, or could not be.
    loaded: Vec<Option<FileMark>>,
    /// As seen at the last look: files that are just being replaced are left alone until they rest.
    seen: Vec<Option<FileMark>>,
}

impl Tls {
    pub fn load(settings: TlsSettings) -> Result<Self, TlsError> {
        let marks = settings.marks();
        let config = RwLock::new(settings.load()?);
        Ok(Self { settings, config, watched: Mutex::new(Watched { loaded: marks.clone(), seen: marks }) })
    }

    /// Follows the files for as long as it is polled. Connections keep what they began with.
    pub async fn follow(self: Arc<Self>) {
        loop {
            tokio::time::sleep(EVERY).await;
            let tls = Arc::clone(&self);
            // Off the thread of the connections: a disk may be slow.
            tokio::task::spawn_blocking(move || tls.inspect()).await.ok();
        }
    }

    fn inspect(&self) {
        let mut watched = self.watched.lock().expect("no code panics while it looks at the files");
        let marks = self.settings.marks();
        let is_at_rest = std::mem::replace(&mut watched.seen, marks.clone()) == marks;
        if !is_at_rest || watched.loaded == marks {
            return;
        }
        watched.loaded = marks;
        match self.settings.load() {
            Ok(config) => {
                *self.config.write().expect("no code panics while it holds the settings") = config;
                tracing::info!("the TLS certificate was read again; new connections get it");
            }
            Err(error) => tracing::error!("{error}; the TLS certificate from before stays in use"),
        }
    }

    /// Takes a connection over TLS. Whoever speaks plain HTTP is told so, in plain HTTP.
    pub async fn accept(&self, mut socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let mut first = [0];
        if socket.peek(&mut first).await? == 1 && first[0] != HANDSHAKE_RECORD {
            socket.write_all(PLAIN_TEXT_ANSWER.as_bytes()).await?;
            socket.shutdown().await?;
            // What nobody reads would turn the answer into a reset.
            tokio::io::copy(&mut socket.take(MAX_UNREAD), &mut tokio::io::sink()).await?;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer does not speak TLS"));
        }
        let config = Arc::clone(&self.config.read().expect("no code panics while it holds the settings"));
        TlsAcceptor::from(config).accept(socket).await
    }
}

const PLAIN_TEXT_ANSWER: &str = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\
     Connection: close\r\n\r\nthis port speaks TLS: use wss:// or https:// for it\n";

/// The certificate that the client proved to have.
pub fn client_certificate(stream: &TlsStream<TcpStream>) -> Option<Bytes> {
    let (_, session) = stream.get_ref();
    session.peer_certificates()?.first().map(|certificate| Bytes::copy_from_slice(certificate))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = |source| TlsError::Read { path: path.to_owned(), source };
    let found: Vec<_> = CertificateDer::pem_file_iter(path).map_err(read)?.collect::<Result<_, _>>().map_err(read)?;
    if found.is_empty() {
        return Err(TlsError::NoCertificate { path: path.to_owned() });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    struct Pair {
        certificate: String,
        key: String,
    }

    fn pair() -> Pair {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
        Pair { certificate: made.cert.pem(), key: made.signing_key.serialize_pem() }
    }

    fn settings(folder: &TempDir, pair: &Pair) -> TlsSettings {
        let (certificate, key) = (folder.path().join("c.pem"), folder.path().join("k.pem"));
        fs::write(&certificate, &pair.certificate).expect("written");
        fs::write(&key, &pair.key).expect("written");
        TlsSettings { certificate, key, client_ca: None }
    }

    #[test]
    fn a_pair_that_does_not_fit_changes_nothing_and_a_good_one_counts_once_it_rests() {
        let (folder, first, second) = (TempDir::new().expect("a folder"), pair(), pair());
        let tls = Tls::load(settings(&folder, &first)).expect("a good pair");
        let current = || Arc::clone(&tls.config.read().expect("not poisoned"));
        let begun_with = current();
        fs::write(&tls.settings.key, &second.key).expect("written");
        tls.inspect();
        tls.inspect();
        assert!(Arc::ptr_eq(&begun_with, &current()), "a key of another certificate");
        fs::write(&tls.settings.certificate, "").expect("written");
        tls.inspect();
        tls.inspect();
        assert!(Arc::ptr_eq(&begun_with, &current()), "an empty file");
        fs::write(&tls.settings.certificate, &second.certificate).expect("written");
        tls.inspect();
        assert!(Arc::ptr_eq(&begun_with, &current()), "it may still be written to");
        tls.inspect();
        assert!(!Arc::ptr_eq(&begun_with, &current()));
    }

    #[test]
    fn what_is_wrong_with_the_files_is_said_at_the_start() {
        let (folder, first, second) = (TempDir::new().expect("a folder"), pair(), pair());
        let good = settings(&folder, &first);
        assert!(good.check().is_ok());
        let check = |settings: TlsSettings, words: &str| {
            let said = settings.check().expect_err("it is wrong").to_string();
            assert!(said.contains(words), "{said}");
        };
        check(TlsSettings { certificate: folder.path().join("none"), ..good.clone() }, "can't read");
        check(TlsSettings { certificate: good.key.clone(), ..good.clone() }, "there is no certificate in");
        check(TlsSettings { key: good.certificate.clone(), ..good.clone() }, "can't read");
        check(TlsSettings { client_ca: Some(good.key.clone()), ..good.clone() }, "there is no certificate in");
        check(settings(&folder, &Pair { certificate: first.certificate, key: second.key }), "can't be used with");
    }
}
