//! Shared fixtures: a broker in this process, a broker as its own process, and a TCP proxy that cuts connections.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use toolbus::{AgentRef, Body, BrokerClient, BrokerCore, BrokerServer, ClientOptions, InboxMessage};
use toolbus_protocol::Framing;

pub const TOKEN: &str = "test-token";
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// A broker in this process.
pub struct TestBus {
    _folder: TempDir,
    pub address: SocketAddr,
    server: Arc<BrokerServer>,
    serving: JoinHandle<()>,
}

impl TestBus {
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let core = BrokerCore::new(folder.path()).expect("an empty folder opens");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener");
        let server = BrokerServer::new(core, TOKEN);
        let serving = tokio::spawn({
            let server = Arc::clone(&server);
            async move { server.serve(listener).await.expect("it stops without an error") }
        });
        Self { _folder: folder, address, server, serving }
    }

    pub fn url(&self) -> String {
        format!("ws://{}/bus", self.address)
    }

    pub fn server(&self) -> &Arc<BrokerServer> {
        &self.server
    }

    pub async fn client(&self, name: &str) -> BrokerClient {
        connect(&self.url(), name, Framing::Compact).await
    }

    pub async fn stop(self) {
        self.server.stop();
        self.serving.await.expect("the server does not panic");
    }
}

pub async fn connect(url: &str, name: &str, framing: Framing) -> BrokerClient {
    let quick = Duration::from_millis(20);
    let options = ClientOptions { framing, backoff: quick, longest_backoff: quick, ..ClientOptions::default() };
    BrokerClient::connect_with(url, AgentRef::new(name.to_owned()), TOKEN, options).await.expect("a connection")
}

pub fn message(number: u64) -> InboxMessage {
    InboxMessage::new(AgentRef::new("overwritten-by-the-broker"), "task", Body::of(&number).expect("a number is JSON"))
}

pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.unwrap_or_else(|_| panic!("{what}: not within {TIMEOUT:?}"))
}

/// A broker as its own process, killed when the test ends.
pub struct BrokerProcess {
    pub child: Child,
    pub address: SocketAddr,
}

impl BrokerProcess {
    pub async fn start(folder: &Path, address: &str) -> Self {
        let token_file = folder.join("test-token");
        std::fs::write(&token_file, TOKEN).expect("the folder is writable");
        let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
        command.args(["broker", "--listen", address, "--data"]).arg(folder).arg("--shared-token-file").arg(token_file);
        Self::spawn(command).await
    }

    pub async fn spawn(mut command: Command) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn().expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let address = soon("the broker prints its address", async {
            loop {
                let line = lines.next_line().await.expect("its output is text").expect("it prints its address");
                if let Some(address) = line.strip_prefix("listening on ws://") {
                    break address.trim_end_matches("/bus").parse().expect("an address");
                }
            }
        })
        .await;
        Self { child, address }
    }

    pub fn url(&self) -> String {
        format!("ws://{}/bus", self.address)
    }

    /// Kills the process with SIGKILL.
    pub async fn kill(mut self) -> SocketAddr {
        self.child.kill().await.expect("it was running");
        self.address
    }
}

/// A TCP proxy before the broker that can cut its connections, at once or after a number of bytes.
pub struct Cutter {
    pub address: SocketAddr,
    cuts: watch::Sender<u64>,
    /// Bytes until the next cut.
    budget: Arc<AtomicU64>,
}

impl Cutter {
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener");
        let (cuts, _) = watch::channel(0);
        let budget = Arc::new(AtomicU64::new(u64::MAX));
        let cutter = Self { address, cuts: cuts.clone(), budget: Arc::clone(&budget) };
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(target).await else { continue };
                let (cuts, budget) = (cuts.clone(), Arc::clone(&budget));
                tokio::spawn(async move {
                    let mut cut = cuts.subscribe();
                    let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                    tokio::select! {
                        _ = cut.changed() => {}
                        () = copy(near_read, far_write, &budget) => {}
                        () = copy(far_read, near_write, &budget) => {}
                    }
                });
            }
        });
        cutter
    }

    pub fn url(&self) -> String {
        format!("ws://{}/bus", self.address)
    }

    /// Cuts every connection now.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Cuts the connection that carries the byte with that number.
    pub fn cut_after(&self, bytes: u64) {
        self.budget.store(bytes, Ordering::Relaxed);
    }
}

async fn copy(mut from: tokio::net::tcp::OwnedReadHalf, mut to: tokio::net::tcp::OwnedWriteHalf, budget: &AtomicU64) {
    let mut buffer = vec![0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let left = budget.load(Ordering::Relaxed);
        let passes = (count as u64).min(left) as usize;
        if to.write_all(&buffer[..passes]).await.is_err() {
            return;
        }
        if passes < count {
            budget.store(u64::MAX, Ordering::Relaxed);
            return;
        }
        if left != u64::MAX {
            budget.store(left - passes as u64, Ordering::Relaxed);
        }
    }
}
