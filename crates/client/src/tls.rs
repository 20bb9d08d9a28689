//! TLS to a broker: trusted roots, the client certificate, and readable reasons for failures.

use crate::options::TlsOptions;
use crate::{BrokerError, BrokerResult};
use http::Uri;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, Error as TlsError, RootCertStore};
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use toolbus_base::read_trusted;

pub async fn connect(
    socket: TcpStream,
    uri: &Uri,
    host: &str,
    options: &TlsOptions,
) -> BrokerResult<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| BrokerError::Address(format!("{uri}: the host is not a valid TLS server name")))?;
    let config = Arc::new(config(options)?);
    TlsConnector::from(config).connect(name, socket).await.map_err(|error| explain(uri, &error))
}

/// Turns an I/O error of a TLS connection into a readable error.
pub fn explain(uri: &Uri, error: &io::Error) -> BrokerError {
    match reason(error) {
        Some(reason) => BrokerError::Tls(format!("{uri}: {reason}")),
        None if error.kind() == io::ErrorKind::UnexpectedEof => BrokerError::Tls(format!(
            "{uri}: the connection was closed during the TLS handshake; if the broker has no TLS, use ws://"
        )),
        None => BrokerError::Transport(format!("can't reach {uri}: {error}")),
    }
}

/// A readable reason, if TLS caused the error.
pub fn reason(error: &io::Error) -> Option<String> {
    let tls = error.get_ref()?.downcast_ref::<TlsError>()?;
    Some(match tls {
        TlsError::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "its certificate is signed by an untrusted issuer; pass the CA certificate with --ca-cert".into()
        }
        TlsError::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "its certificate is for another name; connect with the name in the certificate".into(),
        TlsError::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "its certificate has expired".into()
        }
        TlsError::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            "its certificate is not valid yet; check the clock".into()
        }
        // The error has no variant of its own.
        TlsError::InvalidCertificate(other @ CertificateError::Other(_))
            if format!("{other:?}").contains("CaUsedAsEndEntity") =>
        {
            "its certificate is marked as a CA, which a server's certificate must not be; make one with \
             `-addext basicConstraints=critical,CA:FALSE` (docs/credentials.md has the whole command)"
                .into()
        }
        TlsError::InvalidMessage(_) => "the server does not speak TLS; use ws://".into(),
        TlsError::AlertReceived(alert) if rejects_client_certificate(*alert) => {
            format!("it rejected the client certificate ({alert:?}); check --client-cert")
        }
        other => other.to_string(),
    })
}

fn rejects_client_certificate(alert: AlertDescription) -> bool {
    use AlertDescription as A;
    matches!(
        alert,
        A::BadCertificate
            | A::UnsupportedCertificate
            | A::CertificateRevoked
            | A::CertificateExpired
            | A::CertificateUnknown
            | A::CertificateRequired
            | A::UnknownCA
            | A::AccessDenied
            | A::DecryptError
    )
}

fn config(options: &TlsOptions) -> BrokerResult<ClientConfig> {
    let unusable = |error: TlsError| BrokerError::Tls(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(unusable)?.with_root_certificates(roots(options.ca_cert.as_deref())?);
    let mut config = match (&options.client_cert, &options.client_key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(certificate), Some(key)) => {
            let chain = certificates(certificate)?;
            let secret = PrivateKeyDer::from_pem_slice(&pem_file(key)?).map_err(|error| unreadable(key, &error))?;
            builder.with_client_auth_cert(chain, secret).map_err(|error| unreadable(certificate, &error))?
        }
        _ => return Err(BrokerError::Tls("--client-cert and --client-key must be given together".into())),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn roots(ca: Option<&Path>) -> BrokerResult<Arc<RootCertStore>> {
    let Some(path) = ca else { return system_roots() };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| unreadable(path, &error))?;
    }
    Ok(Arc::new(roots))
}

/// Loaded once per process, because reading them is slow.
fn system_roots() -> BrokerResult<Arc<RootCertStore>> {
    static SYSTEM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if let Some(roots) = SYSTEM.get() {
        return Ok(Arc::clone(roots));
    }
    let mut roots = RootCertStore::empty();
    // System stores often contain certificates that can't be parsed; they are skipped.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(BrokerError::Tls(
            "this system has no trusted root certificates; pass a CA certificate with --ca-cert".into(),
        ));
    }
    Ok(Arc::clone(SYSTEM.get_or_init(|| Arc::new(roots))))
}

fn certificates(path: &Path) -> BrokerResult<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_slice_iter(&pem_file(path)?).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| unreadable(path, &error))?;
    if found.is_empty() {
        return Err(unreadable(path, &"it contains no certificate"));
    }
    Ok(found)
}

/// The files decide which broker is trusted and who this client is, so they must not be another user's.
fn pem_file(path: &Path) -> BrokerResult<Vec<u8>> {
    read_trusted(path).map_err(|source| BrokerError::TlsFile { path: path.to_owned(), source: Arc::new(source) })
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> BrokerError {
    BrokerError::Tls(format!("{} can't be used: {error}", path.display()))
}
