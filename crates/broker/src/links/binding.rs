//! The TLS connection that a handshake is bound to.
//!
//! Brokers don't verify each other's certificates: these are made for the names that clients use, while brokers reach each
//! other at addresses, and a private CA would be one more thing to distribute beside the cluster's secret. Instead, the
//! proofs of both ends cover keying material of the TLS connection (RFC 5705, RFC 9266), which only its two ends know. A man
//! in the middle has two TLS connections with different material: the proofs of one are worthless on the other, and it
//! can't make proofs of its own without the secret.

use bytes::BufMut;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, Resumption};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ConnectionCommon, DigitallySignedStruct, ProtocolVersion, SignatureScheme};
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const LABEL: &[u8] = b"EXPORTER-toolbus-link";
/// Not sent and not verified.
const SERVER_NAME: &str = "link.toolbus.invalid";

/// Keying material of a TLS connection, or none of a connection in plain text.
pub struct Binding(Option<[u8; 32]>);

impl Binding {
    /// A connection without TLS, on which nothing is protected after the handshake.
    pub fn plain() -> Self {
        Self(None)
    }

    #[cfg(test)]
    pub fn for_test(material: [u8; 32]) -> Self {
        Self(Some(material))
    }

    /// Returns `None` before TLS 1.3: there, the material need not be unique to a connection (RFC 7627).
    pub fn of_tls<D>(connection: &ConnectionCommon<D>) -> Option<Self> {
        (connection.protocol_version() == Some(ProtocolVersion::TLSv1_3)).then_some(())?;
        Some(Self(Some(connection.export_keying_material([0; 32], LABEL, None).ok()?)))
    }

    /// Appends it to the input of a proof.
    pub fn write(&self, input: &mut Vec<u8>) {
        input.put_u8(u8::from(self.0.is_some()));
        input.put_slice(self.0.as_ref().map_or(&[], |material| &material[..]));
    }
}

/// Connects with TLS 1.3 to a peer whose identity the handshake of the link verifies.
pub async fn connect(socket: TcpStream) -> io::Result<(TlsStream<TcpStream>, Binding)> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(AnyCertificate(provider.signature_verification_algorithms.supported_schemes()));
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).map_err(io::Error::other)?;
    let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from(SERVER_NAME).expect("a valid name");
    let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await?;
    let binding = Binding::of_tls(stream.get_ref().1);
    let binding = binding.ok_or_else(|| io::Error::other("no keying material of the connection"))?;
    Ok((stream, binding))
}

/// Accepts every certificate; see the top of this file.
#[derive(Debug)]
struct AnyCertificate(Vec<SignatureScheme>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}
