//! The original's client on our broker with TLS and a self-signed certificate.

use crate::brokers::OurBroker;
use crate::original::{BrokerClient, agent, deliver, flush, next, task};
use crate::{TOKEN, soon};
use std::path::PathBuf;
use tempfile::TempDir;
use toolbus_broker::{ServerOptions, TlsSettings};

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_trusts_the_certificate_sends_and_receives() {
    let files = CertificateFiles::generate();
    let broker = OurBroker::start_with(files.options()).await;
    let endpoint = secure(&broker);
    let connect = async |name: &str| {
        let trust = bamboo_broker::client_config_trusting_cert(&files.certificate()).expect("a certificate");
        let connecting = BrokerClient::connect_with_tls(&endpoint, agent(name), TOKEN, Some(trust));
        soon(connecting).await.expect("a connection")
    };
    let (mut sender, mut receiver) = (connect("sender").await, connect("receiver").await);
    receiver.subscribe().await.expect("subscribed");
    flush(&mut receiver).await;
    let sent = task("sender", 7);
    deliver(&mut sender, "receiver", sent.clone()).await;
    assert_eq!(next(&mut receiver).await, sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_trust_the_certificate_does_not_connect() {
    let files = CertificateFiles::generate();
    let broker = OurBroker::start_with(files.options()).await;
    assert!(soon(BrokerClient::connect(&secure(&broker), agent("sender"), TOKEN)).await.is_err());
}

fn secure(broker: &OurBroker) -> String {
    broker.endpoint().replace("ws://", "wss://")
}

struct CertificateFiles(TempDir);

impl CertificateFiles {
    fn generate() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
        let files = Self(tempfile::tempdir().expect("a folder"));
        std::fs::write(files.certificate(), made.cert.pem()).expect("written");
        std::fs::write(files.key(), made.signing_key.serialize_pem()).expect("written");
        files
    }

    fn certificate(&self) -> PathBuf {
        self.0.path().join("cert.pem")
    }

    fn key(&self) -> PathBuf {
        self.0.path().join("key.pem")
    }

    fn options(&self) -> ServerOptions {
        let tls = TlsSettings { certificate: self.certificate(), key: self.key(), client_ca: None };
        ServerOptions { tls: Some(tls), ..ServerOptions::default() }
    }
}
