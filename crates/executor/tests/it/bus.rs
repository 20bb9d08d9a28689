//! A broker in this process that can be restarted on the same port and folder, and a TCP relay to it that can be cut
//! and can discard traffic.

use crate::soon;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use toolbus_broker::{BrokerCore, BrokerServer};
use toolbus_client::{AgentRef, BrokerClient};

pub const TOKEN: &str = "test-token";

pub struct Bus {
    folder: TempDir,
    port: u16,
    running: Option<(Arc<BrokerServer>, JoinHandle<()>)>,
}

impl Bus {
    pub async fn start() -> Self {
        let mut bus = Self { folder: tempfile::tempdir().expect("a folder"), port: 0, running: None };
        bus.start_again().await;
        bus
    }

    pub fn url(&self) -> String {
        format!("ws://{}/bus", self.address())
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub async fn client(&self, agent: AgentRef) -> BrokerClient {
        BrokerClient::connect(&self.url(), agent, TOKEN).await.expect("the broker is running")
    }

    pub async fn start_again(&mut self) {
        let listener = listen(self.port).await;
        self.port = listener.local_addr().expect("it is bound").port();
        let core = BrokerCore::new(self.folder.path()).expect("the folder opens");
        let server = BrokerServer::new(core, TOKEN);
        let serving = Arc::clone(&server);
        let serving =
            tokio::spawn(async move { serving.serve(listener).await.expect("the server ends without an error") });
        self.running = Some((server, serving));
    }

    /// Returns when the port is closed and the folder is free.
    pub async fn stop(&mut self) {
        let (server, serving) = self.running.take().expect("it runs");
        server.stop();
        soon("an orderly stop", serving).await.expect("no panic");
    }

    /// The number of unacknowledged messages in a mailbox.
    pub async fn waiting(&self, mailbox: &str) -> u64 {
        let observer = self.client(AgentRef::new("observer")).await;
        let status = soon("status", observer.status()).await.expect("version 2");
        status.mailboxes.iter().filter(|status| &*status.name == mailbox).map(|status| status.messages).sum()
    }
}

/// Listens on the port, or on a free one for 0. Retries, because a connection of another test may briefly use the port.
async fn listen(port: u16) -> TcpListener {
    let binding = async {
        loop {
            if let Ok(listener) = StdListener::bind(("127.0.0.1", port)) {
                break listener;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let listener = soon("the port", binding).await;
    listener.set_nonblocking(true).expect("a listener for tokio");
    TcpListener::from_std(listener).expect("a listener")
}

/// A TCP relay to the broker with fault injection.
pub struct Relay {
    address: SocketAddr,
    state: watch::Sender<RelayState>,
    /// In bytes.
    discarded: watch::Sender<usize>,
}

#[derive(Clone, Copy, PartialEq)]
enum RelayState {
    Open,
    /// Data from the peer is discarded.
    Discarding,
    /// All connections are closed, and new ones are refused.
    Cut,
}

impl Relay {
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let state = watch::Sender::new(RelayState::Open);
        let discarded = watch::Sender::new(0);
        let relay = Self { address, state: state.clone(), discarded: discarded.clone() };
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if *state.borrow() != RelayState::Cut {
                    tokio::spawn(forward_connection(near, target, state.subscribe(), discarded.clone()));
                }
            }
        });
        relay
    }

    pub fn url(&self) -> String {
        format!("ws://{}/bus", self.address)
    }

    pub fn discard(&self) {
        self.state.send_replace(RelayState::Discarding);
    }

    /// Waits until that many bytes were discarded.
    pub async fn discarded(&self, bytes: usize) {
        let mut discarded = self.discarded.subscribe();
        soon("data to discard", discarded.wait_for(|count| *count >= bytes)).await.expect("the relay is open");
    }

    pub fn cut(&self) {
        self.state.send_replace(RelayState::Cut);
    }

    pub fn restore(&self) {
        self.state.send_replace(RelayState::Open);
    }
}

async fn forward_connection(
    near: TcpStream,
    target: SocketAddr,
    mut state: watch::Receiver<RelayState>,
    discarded: watch::Sender<usize>,
) {
    let Ok(far) = TcpStream::connect(target).await else { return };
    let ((mut near_read, mut near_write), (mut far_read, far_write)) = (near.into_split(), far.into_split());
    let forward_state = state.clone();
    tokio::select! {
        _ = state.wait_for(|state| *state == RelayState::Cut) => {}
        _ = tokio::io::copy(&mut far_read, &mut near_write) => {}
        () = forward(&mut near_read, far_write, forward_state, &discarded) => {}
    }
}

async fn forward(
    from: &mut OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: watch::Receiver<RelayState>,
    discarded: &watch::Sender<usize>,
) {
    let mut buffer = vec![0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let discards = *state.borrow() == RelayState::Discarding;
        if discards {
            discarded.send_modify(|bytes| *bytes += count);
        } else if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
