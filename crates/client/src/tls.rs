//! TLS towards a broker: whom to trust, who we are, and in plain words why it did not come about.

use crate::error::{BrokerError, BrokerResult};
use crate::options::TlsOptions;
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

pub async fn secure(
    socket: TcpStream,
    uri: &Uri,
    host: &str,
    options: &TlsOptions,
) -> BrokerResult<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| BrokerError::Address(format!("{uri}: no certificate can be for a host of that name")))?;
    let config = Arc::new(config(options)?);
    TlsConnector::from(config).connect(name, socket).await.map_err(|error| explain(uri, &error))
}

/// Why there is no secure connection.
pub fn explain(uri: &Uri, error: &io::Error) -> BrokerError {
    match reason(error) {
        Some(reason) => BrokerError::Tls(format!("{uri}: {reason}")),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            BrokerError::Tls(format!("{uri}: it hung up during the TLS handshake; if it has no TLS, use ws://"))
        }
        None => BrokerError::Transport(format!("can't reach {uri}: {error}")),
    }
}

/// In words, if TLS is the reason.
pub fn reason(error: &io::Error) -> Option<String> {
    let tls = error.get_ref()?.downcast_ref::<TlsError>()?;
    Some(match tls {
        TlsError::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "its certificate comes from an issuer that is not trusted here; name the issuer with --ca-cert".into()
        }
        TlsError::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "its certificate is for another name; use the name that it is for".into(),
        TlsError::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "its certificate has expired".into()
        }
        TlsError::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            "its certificate is not valid yet; is the clock right?".into()
        }
        TlsError::InvalidMessage(_) => "it does not speak TLS there; use ws://".into(),
        TlsError::AlertReceived(alert) if is_about_us(*alert) => {
            format!("it does not accept our certificate ({alert:?}); check --client-cert")
        }
        other => other.to_string(),
    })
}

fn is_about_us(alert: AlertDescription) -> bool {
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
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
            builder.with_client_auth_cert(chain, secret).map_err(|error| unreadable(certificate, &error))?
        }
        _ => return Err(BrokerError::Tls("a client certificate and its key belong together; name both".into())),
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

/// Reading them takes a while, so it is done once.
fn system_roots() -> BrokerResult<Arc<RootCertStore>> {
    static SYSTEM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if let Some(roots) = SYSTEM.get() {
        return Ok(Arc::clone(roots));
    }
    let mut roots = RootCertStore::empty();
    // Some that can't be used are usual in the stores of systems.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(BrokerError::Tls("this system has no certificates to trust; name one with --ca-cert".into()));
    }
    Ok(Arc::clone(SYSTEM.get_or_init(|| Arc::new(roots))))
}

fn certificates(path: &Path) -> BrokerResult<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|error| unreadable(path, &error))?;
    if found.is_empty() {
        return Err(unreadable(path, &"there is no certificate in it"));
    }
    Ok(found)
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> BrokerError {
    BrokerError::Tls(format!("{} can't be used: {error}", path.display()))
}
