//! A broker in this process that can be stopped and started again on the same port and folder, and a link to it that can
//! be cut and can swallow what is sent.

use crate::soon;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
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
        BrokerClient::connect(&self.url(), agent, TOKEN).await.expect("the broker is there")
    }

    pub async fn start_again(&mut self) {
        let listener = listen(self.port).await;
        self.port = listener.local_addr().expect("it is bound").port();
        let core = BrokerCore::new(self.folder.path()).expect("the folder opens");
        let server = BrokerServer::new(core, TOKEN);
        let serving = Arc::clone(&server);
        let serving = tokio::spawn(async move { serving.serve(listener).await.expect("it stops when asked") });
        self.running = Some((server, serving));
    }

    /// Returns when the port is closed and the folder is free.
    pub async fn stop(&mut self) {
        let (server, serving) = self.running.take().expect("it runs");
        server.stop();
        soon("an orderly stop", serving).await.expect("no panic");
    }

    /// Messages in a mailbox that nobody acknowledged.
    pub async fn waiting(&self, mailbox: &str) -> u64 {
        let observer = self.client(AgentRef::new("observer")).await;
        let status = soon("status", observer.status()).await.expect("version 2");
        status.mailboxes.iter().filter(|status| &*status.name == mailbox).map(|status| status.messages).sum()
    }
}

/// Listens on that port, or on any for 0. A connection of another test may have the port for a moment.
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

/// A way to the broker for some of its peers, which can be blocked.
pub struct Detour {
    address: SocketAddr,
    state: watch::Sender<Way>,
    swallowed: Arc<Notify>,
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Open,
    /// What the peer sends is lost on the way.
    Swallowing,
    /// No connection stands, and none can be made.
    Cut,
}

impl Detour {
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let state = watch::Sender::new(Way::Open);
        let swallowed = Arc::new(Notify::new());
        let detour = Self { address, state: state.clone(), swallowed: Arc::clone(&swallowed) };
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if *state.borrow() != Way::Cut {
                    tokio::spawn(carry(near, target, state.subscribe(), Arc::clone(&swallowed)));
                }
            }
        });
        detour
    }

    pub fn url(&self) -> String {
        format!("ws://{}/bus", self.address)
    }

    pub fn swallow(&self) {
        self.state.send_replace(Way::Swallowing);
    }

    /// Waits until something was lost.
    pub async fn swallowed(&self) {
        soon("something to swallow", self.swallowed.notified()).await;
    }

    pub fn cut(&self) {
        self.state.send_replace(Way::Cut);
    }

    pub fn mend(&self) {
        self.state.send_replace(Way::Open);
    }
}

async fn carry(near: TcpStream, target: SocketAddr, mut way: watch::Receiver<Way>, swallowed: Arc<Notify>) {
    let Ok(far) = TcpStream::connect(target).await else { return };
    let ((mut near_read, mut near_write), (mut far_read, far_write)) = (near.into_split(), far.into_split());
    let state = way.clone();
    tokio::select! {
        _ = way.wait_for(|way| *way == Way::Cut) => {}
        _ = tokio::io::copy(&mut far_read, &mut near_write) => {}
        () = send(&mut near_read, far_write, state, &swallowed) => {}
    }
}

async fn send(from: &mut OwnedReadHalf, mut to: OwnedWriteHalf, way: watch::Receiver<Way>, swallowed: &Notify) {
    let mut buffer = vec![0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let swallows = *way.borrow() == Way::Swallowing;
        if swallows {
            swallowed.notify_one();
        } else if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
