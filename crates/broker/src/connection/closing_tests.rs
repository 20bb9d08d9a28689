//! A connection that is closed because of its input reads only a little more of it.

use super::serve;
use crate::channel::Channel;
use crate::core::{BrokerCore, CoreOptions};
use crate::handshake::Accepted;
use crate::prefixed::Prefixed;
use crate::server::{BrokerServer, ServerOptions};
use bytes::Bytes;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_websockets::ServerBuilder;
use toolbus_identity::{Identity, Rights, SharedToken};
use toolbus_protocol::{AgentRef, Framing};

const MIB: usize = 1 << 20;
const MESSAGE: usize = 15 * MIB;

/// Serves a worker whose share is 2 MiB per second and messages of about 1.4 MiB.
fn serve_worker() -> (DuplexStream, TempDir) {
    let folder = TempDir::new().expect("a folder");
    let core = BrokerCore::open(folder.path(), CoreOptions::default()).expect("the folder opens");
    let options = ServerOptions { max_requests: 4_000, max_input_bytes: 6 * MIB as u64, ..ServerOptions::default() };
    let server = BrokerServer::with_options(core, Box::new(SharedToken::new("token")), options);
    let identity = Identity::local(AgentRef::new("worker"), Rights::WORKER);
    let counted = server.shared().shares.connect(&identity).expect("a connection");
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let socket = ServerBuilder::new().serve(Prefixed::new(Bytes::new(), ours));
    let channel = Channel::Socket(Box::new(socket));
    let largest_message = counted.largest_input();
    let accepted = Accepted { channel, identity, counted, largest_message, framing: Framing::Json, version: 2 };
    tokio::spawn(async move { serve(accepted, server.shared()).await });
    (theirs, folder)
}

#[tokio::test(start_paused = true)]
async fn a_large_message_is_refused_without_reading_more_of_it_than_the_share_allows() {
    let (mut peer, _folder) = serve_worker();
    // The header of a masked text message; the mask is zero.
    let mut header = vec![0x81, 0x80 | 127];
    header.extend((MESSAGE as u64).to_be_bytes());
    header.extend([0; 4]);
    peer.write_all(&header).await.expect("the broker reads");
    let mut error = [0; 512];
    let length = peer.read(&mut error).await.expect("an error");
    assert!(String::from_utf8_lossy(&error[..length]).contains("TB0220"), "the error comes before the message is sent");
    let mut taken = 0;
    while taken < MESSAGE
        && let Ok(count) = peer.write(&[b' '; 4096]).await
    {
        taken += count;
    }
    // A burst of one second, and the second that closing takes at most.
    assert!(taken < 5 * MIB, "the broker took {taken} bytes");
}
