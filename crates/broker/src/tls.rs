//! TLS on the listener: certificate and key files, reloaded when they change, and client certificates if a client CA is
//! configured.

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
use toolbus_base::read_trusted;
use toolbus_identity::FileMark;

/// How often the files are checked for changes.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// First byte of every TLS connection.
const HANDSHAKE_RECORD: u8 = 0x16;
/// Maximum number of bytes that are read and discarded from a peer that speaks plain HTTP.
const MAX_DISCARDED: u64 = 64 << 10;

/// Files of the broker's TLS configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// The certificate chain (PEM): the certificate and its intermediates.
    pub certificate: PathBuf,
    /// The private key (PEM).
    pub key: PathBuf,
    /// CA certificates (PEM) that client certificates are verified against. Clients without a certificate may still
    /// authenticate with a token.
    pub client_ca: Option<PathBuf>,
}

/// Why TLS can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file can't be read.
    #[error("can't read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file is not valid PEM, or lacks what is expected in it.
    #[error("can't read {}: {source}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: pem::Error,
    },
    /// A PEM file has no certificate.
    #[error("no certificate in {}", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// Certificate and key can't be used together.
    #[error("certificate {} can't be used with key {}: {source}", certificate.display(), key.display())]
    Pair {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
    /// The client CA can't be used.
    #[error("{} can't be used as a client CA: {reason}", path.display())]
    ClientCa {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The crypto provider supports no TLS version.
    #[error("no supported TLS version: {0}")]
    Versions(rustls::Error),
}

impl TlsSettings {
    /// Checks that the files can be loaded and used as they are now.
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
        let unreadable = |source| TlsError::Pem { path: self.key.clone(), source };
        let key = PrivateKeyDer::from_pem_slice(&pem_file(&self.key)?).map_err(unreadable)?;
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

/// The active TLS configuration and the state of its files.
pub struct Tls {
    settings: TlsSettings,
    config: RwLock<Arc<ServerConfig>>,
    watched: Mutex<Watched>,
}

struct Watched {
    /// File marks of the last load, successful or not.
    loaded: Vec<Option<FileMark>>,
    /// File marks of the last check. Files are loaded only when two checks agree, because they may still be being
    /// written.
    seen: Vec<Option<FileMark>>,
}

impl Tls {
    pub fn load(settings: TlsSettings) -> Result<Self, TlsError> {
        let marks = settings.marks();
        let config = RwLock::new(settings.load()?);
        Ok(Self { settings, config, watched: Mutex::new(Watched { loaded: marks.clone(), seen: marks }) })
    }

    /// Reloads the files when they change. Existing connections keep their configuration. Never returns.
    pub async fn follow(self: Arc<Self>) {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let tls = Arc::clone(&self);
            tokio::task::spawn_blocking(move || tls.reload_if_changed()).await.ok();
        }
    }

    fn reload_if_changed(&self) {
        let mut watched = self.watched.lock().expect("no code panics while holding the lock");
        let marks = self.settings.marks();
        let is_stable = std::mem::replace(&mut watched.seen, marks.clone()) == marks;
        if !is_stable || watched.loaded == marks {
            return;
        }
        watched.loaded = marks;
        match self.settings.load() {
            Ok(config) => {
                *self.config.write().expect("no code panics while holding the config lock") = config;
                tracing::info!("reloaded the TLS certificate for new connections");
            }
            Err(error) => tracing::error!("can't reload the TLS certificate, keeping the previous one: {error}"),
        }
    }

    /// Performs the TLS handshake. A peer that speaks plain HTTP gets an error response in plain HTTP.
    pub async fn accept(&self, mut socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let mut first = [0];
        if socket.peek(&mut first).await? == 1 && first[0] != HANDSHAKE_RECORD {
            socket.write_all(PLAIN_HTTP_RESPONSE.as_bytes()).await?;
            socket.shutdown().await?;
            // Unread input would make the kernel reset the connection, and the response could be lost.
            tokio::io::copy(&mut socket.take(MAX_DISCARDED), &mut tokio::io::sink()).await?;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer does not speak TLS"));
        }
        let config = Arc::clone(&self.config.read().expect("no code panics while holding the config lock"));
        TlsAcceptor::from(config).accept(socket).await
    }
}

const PLAIN_HTTP_RESPONSE: &str = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\
     Connection: close\r\n\r\nthis port requires TLS: use wss:// or https://\n";

/// The verified certificate of the client.
pub fn client_certificate(stream: &TlsStream<TcpStream>) -> Option<Bytes> {
    let (_, session) = stream.get_ref();
    session.peer_certificates()?.first().map(|certificate| Bytes::copy_from_slice(certificate))
}

/// All files decide who is on the other end of a connection, so they must not be another user's.
fn pem_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    read_trusted(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |source| TlsError::Pem { path: path.to_owned(), source };
    let found = CertificateDer::pem_slice_iter(&pem_file(path)?).collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
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
    fn a_mismatched_pair_is_not_loaded_and_a_valid_one_is_once_stable() {
        let (folder, first, second) = (TempDir::new().expect("a folder"), pair(), pair());
        let tls = Tls::load(settings(&folder, &first)).expect("a good pair");
        let current = || Arc::clone(&tls.config.read().expect("not poisoned"));
        let original = current();
        fs::write(&tls.settings.key, &second.key).expect("written");
        tls.reload_if_changed();
        tls.reload_if_changed();
        assert!(Arc::ptr_eq(&original, &current()), "a key of another certificate");
        fs::write(&tls.settings.certificate, "").expect("written");
        tls.reload_if_changed();
        tls.reload_if_changed();
        assert!(Arc::ptr_eq(&original, &current()), "an empty file");
        fs::write(&tls.settings.certificate, &second.certificate).expect("written");
        tls.reload_if_changed();
        assert!(Arc::ptr_eq(&original, &current()), "the file may still be being written");
        tls.reload_if_changed();
        assert!(!Arc::ptr_eq(&original, &current()));
    }

    /// Only root can give files away, so other users skip this.
    #[test]
    fn files_of_another_user_are_refused_at_the_start_and_when_they_are_read_again() {
        let (folder, first, second) = (TempDir::new().expect("a folder"), pair(), pair());
        let own = settings(&folder, &first);
        let tls = Tls::load(own.clone()).expect("a good pair");
        let original = Arc::clone(&tls.config.read().expect("not poisoned"));
        settings(&folder, &second);
        for file in [&own.certificate, &own.key] {
            if std::os::unix::fs::chown(file, Some(65_534), None).is_err() {
                return;
            }
            let refused = own.check().expect_err("another user's file");
            assert!(toolbus_base::UnsafePath::in_chain(&refused).is_some(), "{refused}");
            tls.reload_if_changed();
            tls.reload_if_changed();
            assert!(Arc::ptr_eq(&original, &tls.config.read().expect("not poisoned")));
            std::os::unix::fs::chown(file, Some(0), None).expect("taken back");
        }
        let ca = TlsSettings { client_ca: Some(folder.path().join("ca.pem")), ..own.clone() };
        fs::write(folder.path().join("ca.pem"), &first.certificate).expect("written");
        assert!(ca.check().is_ok());
        std::os::unix::fs::chown(folder.path().join("ca.pem"), Some(65_534), None).expect("given away");
        assert!(ca.check().is_err());
    }

    #[test]
    fn unusable_files_are_reported_by_check() {
        let (folder, first, second) = (TempDir::new().expect("a folder"), pair(), pair());
        let good = settings(&folder, &first);
        assert!(good.check().is_ok());
        let check = |settings: TlsSettings, expected: &str| {
            let error = settings.check().expect_err("unusable files").to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(TlsSettings { certificate: folder.path().join("none"), ..good.clone() }, "can't read");
        check(TlsSettings { certificate: good.key.clone(), ..good.clone() }, "no certificate in");
        check(TlsSettings { key: good.certificate.clone(), ..good.clone() }, "can't read");
        check(TlsSettings { client_ca: Some(good.key.clone()), ..good.clone() }, "no certificate in");
        check(settings(&folder, &Pair { certificate: first.certificate, key: second.key }), "can't be used with");
    }
}
