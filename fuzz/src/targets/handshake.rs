//! A peer without a credential at the broker's port: HTTP requests, and the handshake of a bus connection. Whatever it
//! sends, it is not accepted, and no answer or reason quotes a secret that it wrote into the wrong field.

use crate::input::Input;
use std::sync::{Arc, LazyLock};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::{Builder, Runtime};
use toolbus_broker::{BrokerCore, BrokerServer};

/// The broker's token. No input can contain it, so no input may be accepted.
static TOKEN: LazyLock<String> = LazyLock::new(|| toolbus_protocol::MsgId::new().to_string());
/// A text of the input that no answer may contain.
const CANARY: &str = "canary-7c0e";

struct Broker {
    runtime: Runtime,
    server: Arc<BrokerServer>,
    _folder: TempDir,
}

static BROKER: LazyLock<Broker> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let core = BrokerCore::new(folder.path()).expect("an empty folder");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    Broker { runtime, server: BrokerServer::new(core, TOKEN.as_str()), _folder: folder }
});

pub fn handshake(data: &[u8]) {
    let mut input = Input(data);
    match input.byte() % 3 {
        0 => http(input.0),
        // The answer to a ping repeats its content, so only the broker's own word says whether the peer was accepted.
        1 => drop(websocket(input.0)),
        _ => {
            let text = websocket(&text_frame(input.0));
            assert!(!text.contains(CANARY), "{text}");
            assert!(!text.contains("\"kind\":\"welcome\""), "a peer without a token is welcome: {text}");
        }
    }
}

fn http(bytes: &[u8]) {
    let answer = exchange(bytes, |server, stream| async move {
        server.serve_http_to(stream).await;
        false
    });
    let text = String::from_utf8_lossy(&answer);
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 ") || text.starts_with("HTTP/1.0 "), "{text}");
    assert!(!text.contains(CANARY), "{text}");
}

fn websocket(bytes: &[u8]) -> String {
    let answer = exchange(bytes, |server, stream| async move { server.handshake_with(stream).await });
    String::from_utf8_lossy(&answer).into_owned()
}

/// A text message whose mask changes nothing.
fn text_frame(payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
    let mut frame = vec![0x81, 0x80 | 126];
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&payload[..length.into()]);
    frame
}

/// Sends the bytes, closes the connection, and returns the answer.
fn exchange<F: Future<Output = bool>>(
    bytes: &[u8],
    serve: impl FnOnce(Arc<BrokerServer>, DuplexStream) -> F,
) -> Vec<u8> {
    let Broker { runtime, server, .. } = &*BROKER;
    runtime.block_on(async {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let serving = serve(Arc::clone(server), ours);
        let peer = async {
            theirs.write_all(bytes).await.ok();
            theirs.shutdown().await.ok();
            let mut answer = Vec::new();
            theirs.read_to_end(&mut answer).await.ok();
            answer
        };
        let (accepted, answer) = tokio::join!(serving, peer);
        assert!(!accepted, "a peer without a token is accepted");
        answer
    })
}
