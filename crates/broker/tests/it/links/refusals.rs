//! Links that are refused: each of them at once or within its deadline, and by the end that has to.

use super::owner::{EPOCH, OWNER, Owned, OwnerOfOne, PARTITION, certificate, front_options, open};
use super::proxy::Proxy;
use super::raw::{self, ACCEPTED, NO_PROOF, NONCE, message, proposal, read_head, read_message};
use crate::support::{Bus, HOUR, HttpResponse, Logs, Setup, request, within};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use toolbus_broker::{LinkError, LinkOptions, Links};
use toolbus_cluster::Partition;

/// Longer than a refusal takes, and shorter than the deadlines of tests that must not wait for them.
const SOON: Duration = Duration::from_secs(20);

/// No deadline of the owner.
fn no_deadline(setup: &mut super::owner::OwnerSetup) {
    setup.server.hello_timeout = HOUR;
}

#[tokio::test]
async fn a_front_with_another_secret_is_refused_by_the_owner() {
    let owner = OwnerOfOne::with(no_deadline).await;
    let logs = Logs::start();
    let refused = open(owner.address(), LinkOptions { secret: [1; 32], ..front_options() }).await;
    assert!(matches!(refused, Err(LinkError::Authentication)), "{:?}", refused.err());
    logs.line_with("refused a link").await;
}

#[tokio::test]
async fn a_broker_with_another_name_refuses() {
    let owner = OwnerOfOne::with(|setup| setup.links.name = "successor".into()).await;
    let refused = open(owner.address(), front_options()).await;
    assert!(matches!(refused, Err(LinkError::AnotherBroker { .. })), "{:?}", refused.err());
}

#[tokio::test]
async fn a_partition_that_is_not_owned_in_that_epoch_is_refused() {
    let owner = OwnerOfOne::start().await;
    let links = Links::new(front_options(), Arc::new(Owned::default()));
    let address = owner.address().to_string();
    for (partition, epoch) in [(PARTITION, EPOCH + 1), (PARTITION, EPOCH - 1), (Partition(4), EPOCH)] {
        let refused = links.open(OWNER, &address, partition, epoch).await;
        assert!(matches!(refused, Err(LinkError::NotOwner { .. })), "{:?}", refused.err());
    }
}

/// A process that answers one link as `answer` says.
async fn impostor<F: Future<Output = ()> + Send>(answer: impl FnOnce(TcpStream) -> F + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound address");
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("a front connects");
        read_head(&mut socket).await;
        let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: toolbus-link/1\r\n\r\n";
        socket.write_all(head.as_bytes()).await.expect("sent");
        answer(socket).await;
    });
    address
}

async fn send_back_the_proof(mut socket: TcpStream) {
    read_message(&mut socket).await;
    socket.write_all(&message(&[[NONCE].as_slice(), &[5; 32]].concat())).await.expect("sent");
    let proof = read_message(&mut socket).await;
    socket.write_all(&message(&[&[ACCEPTED], &proof[..]].concat())).await.expect("sent");
    raw::rest(socket).await;
}

#[tokio::test]
async fn a_proof_that_is_sent_back_to_its_author_proves_nothing() {
    let address = impostor(send_back_the_proof).await;
    let refused = open(address, front_options()).await;
    assert!(matches!(refused, Err(LinkError::Authentication)), "{:?}", refused.err());
}

#[tokio::test]
async fn an_owner_that_does_not_answer_is_given_up_at_the_deadline() {
    let address = impostor(async |socket| drop(raw::rest(socket).await)).await;
    let began = Instant::now();
    let options = LinkOptions { handshake_timeout: Duration::from_millis(100), ..front_options() };
    let refused = within("the deadline", open(address, options)).await;
    assert!(matches!(refused, Err(LinkError::Timeout { .. })), "{:?}", refused.err());
    assert!(began.elapsed() < SOON);
}

#[tokio::test]
async fn an_address_without_a_listener_is_an_error_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound address");
    drop(listener);
    let refused = open(address, front_options()).await;
    assert!(matches!(refused, Err(LinkError::Connect { .. })), "{:?}", refused.err());
}

#[tokio::test]
async fn a_replayed_handshake_is_refused() {
    let owner = OwnerOfOne::with(no_deadline).await;
    let proxy = Proxy::start(owner.address()).await;
    let link = open(proxy.address, front_options()).await.expect("a link");
    let recorded = proxy.recorded.lock().expect("no panic while holding the lock").clone();
    drop(link);
    let mut socket = TcpStream::connect(owner.address()).await.expect("the broker accepts");
    socket.write_all(&recorded).await.expect("sent");
    let answer = raw::rest(socket).await;
    assert!(answer.starts_with(b"HTTP/1.1 101") && answer.ends_with(&NO_PROOF), "{}", answer.escape_ascii());
}

#[tokio::test]
async fn malformed_handshakes_are_refused_before_the_deadline() {
    let owner = OwnerOfOne::with(no_deadline).await;
    let cases: [(&str, Vec<u8>); 5] = [
        ("garbage", message(b"no proposal")),
        ("an empty message", message(b"")),
        ("an oversized length", vec![0xff; 4]),
        ("a length just over the limit", 1025_u32.to_be_bytes().to_vec()),
        ("garbage instead of a proof", [proposal(), message(b"no proof")].concat()),
    ];
    for (case, bytes) in cases {
        let socket = raw::send(owner.address(), &bytes).await;
        let ended = tokio::time::timeout(SOON, raw::rest(socket)).await;
        assert!(ended.is_ok(), "{case}");
    }
}

#[tokio::test]
async fn a_half_sent_handshake_ends_at_the_deadline() {
    let owner = OwnerOfOne::with(|setup| setup.server.hello_timeout = Duration::from_millis(100)).await;
    for bytes in [Vec::new(), proposal()[..20].to_vec(), proposal()] {
        let began = Instant::now();
        raw::rest(raw::send(owner.address(), &bytes).await).await;
        assert!(began.elapsed() < SOON);
    }
}

#[tokio::test]
async fn a_link_counts_as_an_unknown_peer_until_it_is_authenticated() {
    let owner = OwnerOfOne::with(|setup| {
        no_deadline(setup);
        setup.server.max_unknown_peers = 1;
    })
    .await;
    let mut pending = raw::send(owner.address(), &proposal()).await;
    read_head(&mut pending).await;
    read_message(&mut pending).await;
    let refused = open(owner.address(), front_options()).await;
    assert!(matches!(refused, Err(LinkError::Lost { .. })), "{:?}", refused.err());
    drop(pending);
    let link = within("the place", async {
        loop {
            if let Ok(link) = open(owner.address(), front_options()).await {
                break link;
            }
        }
    })
    .await;
    let second = within("a second link", async {
        loop {
            if let Ok(link) = open(owner.address(), front_options()).await {
                break link;
            }
        }
    })
    .await;
    assert!(!link.closed.is_cancelled() && !second.closed.is_cancelled());
}

#[tokio::test]
async fn a_broker_without_links_knows_no_such_path() {
    let bus = Bus::with(Setup::default()).await;
    let refused = open(bus.address, front_options()).await;
    assert!(matches!(refused, Err(LinkError::Refused { status: 404 })), "{:?}", refused.err());
}

#[tokio::test]
async fn any_host_header_is_accepted_and_another_version_is_not() {
    let owner = OwnerOfOne::start().await;
    let mut socket = raw::send(owner.address(), b"").await;
    assert!(read_head(&mut socket).await.starts_with(b"HTTP/1.1 101"));
    let response: HttpResponse = request(owner.address(), raw::request("toolbus-link/2")).await;
    assert_eq!((response.status, response.header("upgrade")), (426, Some("toolbus-link/1")));
    let response = request(owner.address(), "POST /link HTTP/1.1\r\nHost: any.example\r\n\r\n").await;
    assert_eq!(response.status, 426);
}

#[tokio::test]
async fn brokers_with_different_tls_settings_have_no_link() {
    let owner = OwnerOfOne::with(|setup| setup.is_tls = true).await;
    let refused = open(owner.address(), front_options()).await;
    assert!(matches!(refused, Err(LinkError::Refused { status: 400 })), "{:?}", refused.err());
    let owner = OwnerOfOne::start().await;
    let refused = open(owner.address(), LinkOptions { tls: true, ..front_options() }).await;
    assert!(matches!(refused, Err(LinkError::Tls { .. })), "{:?}", refused.err());
}

/// Terminates TLS with a certificate of its own, and passes everything on over TLS.
async fn man_in_the_middle(owner: SocketAddr) -> SocketAddr {
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::ring, pki_types::ServerName};
    let folder = TempDir::new().expect("a folder");
    let files = certificate(&folder);
    let chain = vec![CertificateDer::from_pem_file(&files.certificate).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_file(&files.key).expect("a key");
    let provider = Arc::new(ring::default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let server = server.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server.with_single_cert(chain, key).expect("a pair")));
    let client = ClientConfig::builder_with_provider(provider);
    let client = client.with_safe_default_protocol_versions().expect("versions");
    let mut client = client.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    client.dangerous().set_certificate_verifier(Arc::new(trusting::Trusting));
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound address");
    tokio::spawn(async move {
        let (front, _) = listener.accept().await.expect("a front connects");
        let mut front = acceptor.accept(front).await.expect("TLS with the front");
        let owner = TcpStream::connect(owner).await.expect("the owner accepts");
        let name = ServerName::try_from("localhost").expect("a name");
        let mut owner = connector.connect(name, owner).await.expect("TLS with the owner");
        tokio::io::copy_bidirectional(&mut front, &mut owner).await.ok();
    });
    address
}

mod trusting {
    use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use tokio_rustls::rustls::{DigitallySignedStruct, Error, SignatureScheme, crypto::ring};

    #[derive(Debug)]
    pub struct Trusting;

    impl ServerCertVerifier for Trusting {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            ring::default_provider().signature_verification_algorithms.supported_schemes()
        }
    }
}

#[tokio::test]
async fn a_man_in_the_middle_that_terminates_tls_is_detected() {
    let owner = OwnerOfOne::with(|setup| setup.is_tls = true).await;
    let options = LinkOptions { tls: true, ..front_options() };
    open(owner.address(), options.clone()).await.expect("a link without the proxy");
    let address = man_in_the_middle(owner.address()).await;
    let refused = open(address, options).await;
    assert!(matches!(refused, Err(LinkError::Authentication)), "{:?}", refused.err());
}
