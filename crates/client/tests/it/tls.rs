//! Client and broker over real TLS: trust, readable errors, and certificates that change while connections are open.

use crate::pki::{Authority, Files};
use crate::support::{soon, until};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use toolbus_broker::{
    AppFuture, AuthRefusal, Authenticator, BrokerCore, BrokerServer, Credential, HttpApp, Identity, PeerCertificate,
    Rights, ServerOptions, TlsSettings,
};
use toolbus_client::{BrokerClient, BrokerError, ClientOptions, TlsOptions};
use toolbus_config::Document;
use toolbus_identity::{CertificateAuthenticator, Chain, Registry, read_auth};
use toolbus_protocol::{AgentRef, Body, ErrorCode, InboxMessage};

/// Accepts every peer; the role tells the length of the peer's certificate.
struct ByCertificate;

impl Authenticator for ByCertificate {
    fn authenticate(&self, credential: &Credential<'_>) -> Result<Identity, AuthRefusal> {
        let role = credential.certificate.map_or("none".to_owned(), |der| format!("certificate-{}", der.len()));
        let agent = credential.claimed.clone().with_role(role);
        Ok(Identity::local(agent, Rights::UNRESTRICTED))
    }
}

/// Responds with the length of the peer's certificate.
struct CertificateEcho;

impl HttpApp for CertificateEcho {
    fn call(&self, request: Request<Incoming>) -> AppFuture {
        let length = request.extensions().get::<PeerCertificate>().map(|certificate| certificate.0.len());
        Box::pin(async move { Response::new(Full::new(Bytes::from(format!("{length:?}"))).boxed_unsync()) })
    }
}

struct Bus {
    folder: TempDir,
    port: u16,
    ca: PathBuf,
    server: Files,
    authority: Authority,
}

impl Bus {
    async fn start() -> Self {
        Self::with(|_, _| None, ServerOptions::default()).await
    }

    /// A broker with a certificate for `localhost`, and a CA for client certificates if `client_ca` returns one.
    async fn with(client_ca: impl FnOnce(&Authority, &TempDir) -> Option<PathBuf>, options: ServerOptions) -> Self {
        let folder = TempDir::new().unwrap();
        let authority = Authority::new("bus root");
        let server = authority.server(folder.path(), "localhost");
        let ca = authority.file(folder.path(), "ca.crt");
        let client_ca = client_ca(&authority, &folder);
        let tls = TlsSettings { certificate: server.certificate.clone(), key: server.key.clone(), client_ca };
        let port = serve(&folder, ServerOptions { tls: Some(tls), ..options }).await;
        Self { folder, port, ca, server, authority }
    }

    fn url(&self) -> String {
        format!("wss://localhost:{}/bus", self.port)
    }

    fn trusting(&self, ca: &std::path::Path) -> TlsOptions {
        TlsOptions { ca_cert: Some(ca.to_owned()), ..TlsOptions::default() }
    }

    async fn client(&self, name: &str) -> Result<BrokerClient, BrokerError> {
        connect(&self.url(), name, self.trusting(&self.ca)).await
    }
}

async fn serve(folder: &TempDir, options: ServerOptions) -> u16 {
    serve_with(Box::new(ByCertificate), folder, options).await
}

async fn serve_with(authenticator: Box<dyn Authenticator>, folder: &TempDir, options: ServerOptions) -> u16 {
    let core = BrokerCore::new(folder.path().join("data")).unwrap();
    let server = BrokerServer::with_options(core, authenticator, options);
    server.mount("/certificate", Arc::new(CertificateEcho));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(server.serve(listener));
    port
}

async fn connect(url: &str, name: &str, tls: TlsOptions) -> Result<BrokerClient, BrokerError> {
    let options = ClientOptions { tls, ..ClientOptions::default() };
    soon("a connection", BrokerClient::connect_with(url, AgentRef::new(name), "", options)).await
}

async fn role_of(client: &BrokerClient, name: &str) -> Option<String> {
    let status = soon("the status", client.status()).await.unwrap();
    let connection = status.connections.into_iter().find(|connection| *connection.agent.session_id == *name);
    connection.and_then(|connection| connection.agent.role).map(|role| role.to_string())
}

fn message(text: &str) -> InboxMessage {
    InboxMessage::new(AgentRef::new("a"), "task", Body::parse(format!("{text:?}")).unwrap())
}

fn tls_error(outcome: Result<BrokerClient, BrokerError>) -> String {
    match outcome {
        Err(error @ (BrokerError::Tls(_) | BrokerError::TlsFile { .. })) => error.to_string(),
        Err(other) => panic!("not about TLS: {other:?}"),
        Ok(_) => panic!("the connection was accepted"),
    }
}

#[tokio::test]
async fn messages_large_and_small_pass_over_tls() {
    let bus = Bus::start().await;
    let (sender, receiver) = (bus.client("a").await.unwrap(), bus.client("b").await.unwrap());
    soon("a subscription", receiver.subscribe()).await.unwrap();
    let large = "x".repeat(3 << 20);
    for text in ["small", &large, "small again"] {
        soon("a receipt", sender.deliver("b", message(text))).await.unwrap();
        let received = soon("the message", receiver.next_message()).await.unwrap();
        assert_eq!(received.body.as_bytes().len(), text.len() + 2);
        receiver.ack(received.id).await.unwrap();
    }
    let https = bus.url().replace("wss:", "https:");
    assert!(connect(&https, "c", bus.trusting(&bus.ca)).await.is_ok());
}

#[tokio::test]
async fn an_untrusted_broker_is_refused_with_a_readable_reason() {
    let bus = Bus::start().await;
    let stranger = Authority::new("stranger").file(bus.folder.path(), "stranger.crt");
    let error = tls_error(connect(&bus.url(), "a", bus.trusting(&stranger)).await);
    assert!(error.contains("untrusted issuer") && error.contains("--ca-cert"), "{error}");
    let error = tls_error(connect(&bus.url(), "a", TlsOptions::default()).await);
    assert!(error.contains("untrusted issuer"), "not trusted by the system either: {error}");

    let by_address = bus.url().replace("localhost", "127.0.0.1");
    let error = tls_error(connect(&by_address, "a", bus.trusting(&bus.ca)).await);
    assert!(error.contains("for another name"), "{error}");
    let error = tls_error(connect(&bus.url(), "a", bus.trusting(&bus.folder.path().join("none.crt"))).await);
    assert!(error.contains("none.crt can't be used"), "{error}");
    let error = tls_error(connect(&bus.url(), "a", bus.trusting(&bus.server.key)).await);
    assert!(error.contains("contains no certificate"), "{error}");
}

#[tokio::test]
async fn an_expired_certificate_is_reported_as_the_reason() {
    let folder = TempDir::new().unwrap();
    let authority = Authority::new("root");
    let files = authority.expired_server(folder.path(), "localhost");
    let ca = authority.file(folder.path(), "ca.crt");
    let tls = TlsSettings { certificate: files.certificate, key: files.key, client_ca: None };
    let port = serve(&folder, ServerOptions { tls: Some(tls), ..ServerOptions::default() }).await;
    let trust = TlsOptions { ca_cert: Some(ca), ..TlsOptions::default() };
    let error = tls_error(connect(&format!("wss://localhost:{port}"), "a", trust).await);
    assert!(error.contains("has expired"), "{error}");
}

#[tokio::test]
async fn plain_text_and_tls_mismatches_are_reported_on_both_sides() {
    let bus = Bus::start().await;
    let plain = bus.url().replace("wss:", "ws:");
    let error = tls_error(connect(&plain, "a", TlsOptions::default()).await);
    assert!(error.contains("wss://"), "{error}");
    let mut socket = TcpStream::connect(("127.0.0.1", bus.port)).await.unwrap();
    socket.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    soon("the answer", socket.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.ends_with("use wss:// or https://\n"), "{answer}");

    let folder = TempDir::new().unwrap();
    let port = serve(&folder, ServerOptions::default()).await;
    let error = tls_error(connect(&format!("wss://localhost:{port}/bus"), "a", bus.trusting(&bus.ca)).await);
    assert!(error.contains("use ws://"), "{error}");
}

#[tokio::test]
async fn a_silent_peer_is_disconnected_and_its_slot_is_freed() {
    let hello_timeout = Duration::from_millis(100);
    let options = ServerOptions { hello_timeout, max_unknown_peers: 1, ..ServerOptions::default() };
    let bus = Bus::with(|_, _| None, options).await;
    let mut silent = TcpStream::connect(("127.0.0.1", bus.port)).await.unwrap();
    let mut nothing = Vec::new();
    soon("the broker to close the connection", silent.read_to_end(&mut nothing)).await.ok();
    assert_eq!(nothing, b"");
    until("a free slot", async || bus.client("a").await.is_ok()).await;
}

#[tokio::test]
async fn a_renewed_certificate_applies_to_new_connections_and_open_ones_stay() {
    let bus = Bus::start().await;
    let early = bus.client("early").await.unwrap();
    let next = Authority::new("next root");
    let elsewhere = TempDir::new().unwrap();
    let other = next.server(elsewhere.path(), "localhost");
    std::fs::copy(&other.key, &bus.server.key).unwrap();
    std::fs::copy(&other.certificate, &bus.server.certificate).unwrap();
    let next_ca = next.file(elsewhere.path(), "ca.crt");
    until("the new certificate", async || connect(&bus.url(), "late", bus.trusting(&next_ca)).await.is_ok()).await;
    assert!(bus.client("with the old root").await.is_err());
    assert!(soon("the status", early.status()).await.is_ok(), "open connections stay open");
}

#[tokio::test]
async fn the_client_certificate_reaches_the_authenticator() {
    let bus = Bus::with(|ca, folder| Some(ca.file(folder.path(), "clients.crt")), ServerOptions::default()).await;
    let folder = bus.folder.path();
    let files = bus.authority.client(folder, "agent-7", "reader");
    let ours = TlsOptions {
        client_cert: Some(files.certificate.clone()),
        client_key: Some(files.key.clone()),
        ..bus.trusting(&bus.ca)
    };
    let known = connect(&bus.url(), "known", ours.clone()).await.unwrap();
    let unknown = bus.client("unknown").await.unwrap();
    let role = role_of(&unknown, "known").await.unwrap();
    assert!(role.starts_with("certificate-"), "{role}");
    assert_eq!(role_of(&known, "unknown").await.as_deref(), Some("none"));

    let stranger = Authority::new("stranger").client(folder, "agent-8", "reader");
    let theirs = TlsOptions { client_cert: Some(stranger.certificate), client_key: Some(stranger.key), ..ours.clone() };
    let error = tls_error(connect(&bus.url(), "stranger", theirs).await);
    assert!(error.contains("rejected the client certificate"), "{error}");
    let half = TlsOptions { client_key: None, ..ours };
    let error = tls_error(connect(&bus.url(), "half", half).await);
    assert!(error.contains("must be given together"), "{error}");
}

#[tokio::test]
async fn a_certificate_authenticates_a_client_under_its_own_name_only() {
    let folder = TempDir::new().unwrap();
    let authority = Authority::new("root");
    let (server, client) =
        (authority.server(folder.path(), "localhost"), authority.client(folder.path(), "agent-7", "reader"));
    let ca = authority.file(folder.path(), "ca.crt");
    let tls = TlsSettings { certificate: server.certificate, key: server.key, client_ca: Some(ca.clone()) };
    let file = Document::parse_toml("[auth.certificates]\nrole = \"ou\"").unwrap();
    let auth = read_auth(&file, folder.path()).unwrap();
    let chain = Chain {
        registry: Registry::open(folder.path()).unwrap(),
        jwt: None,
        certificates: auth.certificates.map(CertificateAuthenticator::new),
    };
    let options = ServerOptions { tls: Some(tls), ..ServerOptions::default() };
    let url = format!("wss://localhost:{}/bus", serve_with(Box::new(chain), &folder, options).await);
    let without = TlsOptions { ca_cert: Some(ca), ..TlsOptions::default() };
    let with = TlsOptions { client_cert: Some(client.certificate), client_key: Some(client.key), ..without.clone() };

    assert!(connect(&url, "cert:agent-7", with.clone()).await.is_ok());
    assert!(connect(&url, "cert:agent-7#mcp", with.clone()).await.is_ok());
    let code = async |name, tls| connect(&url, name, tls).await.err().and_then(|error| error.code());
    assert_eq!(code("cert:agent-8", with).await, Some(ErrorCode::NotYourName));
    assert_eq!(code("agent-7", without).await, Some(ErrorCode::BadCredentials));
}

#[tokio::test]
async fn an_http_application_sees_the_client_certificate() {
    let bus = Bus::with(|ca, folder| Some(ca.file(folder.path(), "clients.crt")), ServerOptions::default()).await;
    let files = bus.authority.client(bus.folder.path(), "agent-7", "reader");
    let with = fetch_certificate_echo(&bus, Some(&files)).await;
    assert!(with.contains("Some("), "{with}");
    let without = fetch_certificate_echo(&bus, None).await;
    assert!(without.contains("None"), "{without}");
}

async fn fetch_certificate_echo(bus: &Bus, files: Option<&Files>) -> String {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&bus.ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match files {
        None => builder.with_no_client_auth(),
        Some(files) => {
            let chain = vec![CertificateDer::from_pem_file(&files.certificate).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&files.key).unwrap()).unwrap()
        }
    };
    let socket = TcpStream::connect(("127.0.0.1", bus.port)).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = soon("TLS", connector.connect("localhost".try_into().unwrap(), socket)).await.unwrap();
    // Over TLS any `Host` is accepted without a flag, since the certificate has to match it.
    stream.write_all(b"GET /certificate HTTP/1.1\r\nHost: bus.example\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    soon("the answer", stream.read_to_string(&mut answer)).await.unwrap();
    answer
}
