//! Both brokers, which can be restarted on the same port and folder.

use crate::{TOKEN, soon};
use std::io::ErrorKind;
use std::net::TcpListener as StdListener;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use toolbus_broker::{BrokerCore, BrokerServer, ServerOptions, SharedToken};

/// Our broker, in this process.
pub struct OurBroker {
    folder: TempDir,
    port: u16,
    options: ServerOptions,
    running: Option<Running>,
}

struct Running {
    server: Arc<BrokerServer>,
    serving: JoinHandle<toolbus_broker::BrokerResult<()>>,
}

impl OurBroker {
    pub async fn start() -> Self {
        Self::start_with(ServerOptions::default()).await
    }

    pub async fn start_with(options: ServerOptions) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut broker = Self { folder, port: 0, options, running: None };
        broker.start_again().await;
        broker
    }

    pub fn endpoint(&self) -> String {
        format!("ws://127.0.0.1:{}", self.port)
    }

    pub async fn start_again(&mut self) {
        assert!(self.running.is_none(), "the broker is already running");
        let listener = listen(self.port).await;
        self.port = listener.local_addr().expect("an address").port();
        let listener = TcpListener::from_std(listener).expect("a listener");
        let core = BrokerCore::new(self.folder.path()).expect("the folder opens");
        let token = Box::new(SharedToken::new(TOKEN));
        let server = BrokerServer::with_options(core, token, self.options.clone());
        let serving = tokio::spawn(Arc::clone(&server).serve(listener));
        self.running = Some(Running { server, serving });
    }

    /// Returns when the port is closed and the lock of the folder is released.
    pub async fn stop(&mut self) {
        let Running { server, serving } = self.running.take().expect("a running broker");
        server.stop();
        soon(serving).await.expect("no panic").expect("a clean shutdown");
    }

    pub async fn restart(&mut self) {
        self.stop().await;
        self.start_again().await;
    }
}

/// The original's broker. It has no shutdown, so it runs on a runtime of its own, and stopping it drops all its tasks
/// and connections.
pub struct OriginalBroker {
    folder: TempDir,
    port: u16,
    mailbox_limit: usize,
    runtime: Option<Runtime>,
}

impl OriginalBroker {
    pub async fn start() -> Self {
        Self::start_with_mailbox_limit(100_000).await
    }

    pub async fn start_with_mailbox_limit(mailbox_limit: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut broker = Self { folder, port: 0, mailbox_limit, runtime: None };
        broker.start_again().await;
        broker
    }

    pub fn endpoint(&self) -> String {
        format!("ws://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub async fn start_again(&mut self) {
        assert!(self.runtime.is_none(), "the broker is already running");
        let listener = listen(self.port).await;
        self.port = listener.local_addr().expect("an address").port();
        let core = bamboo_broker::BrokerCore::new(self.folder.path()).with_max_pending_per_mailbox(self.mailbox_limit);
        let server = bamboo_broker::BrokerServer::with_limits(Arc::new(core), TOKEN, no_rate_limit());
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("a listener");
            Arc::new(server).serve(listener).await.expect("no error while serving");
        });
        self.runtime = Some(runtime);
    }

    /// Returns when its sockets are closed.
    pub async fn stop(&mut self) {
        let runtime = self.runtime.take().expect("a running broker");
        let stopping = tokio::task::spawn_blocking(|| runtime.shutdown_timeout(Duration::from_secs(10)));
        stopping.await.expect("no panic");
    }

    pub async fn restart(&mut self) {
        self.stop().await;
        self.start_again().await;
    }
}

impl Drop for OriginalBroker {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn no_rate_limit() -> bamboo_broker::BrokerLimits {
    bamboo_broker::BrokerLimits {
        messages_per_second: NonZeroU32::MAX,
        message_burst: NonZeroU32::MAX,
        ..bamboo_broker::BrokerLimits::default()
    }
}

/// Listens on this port, or on any for 0. Retries, because a connection of another test may use the port briefly.
async fn listen(port: u16) -> StdListener {
    let binding = async {
        loop {
            match StdListener::bind(("127.0.0.1", port)) {
                Ok(listener) => break listener,
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => panic!("cannot listen on port {port}: {error}"),
            }
        }
    };
    let listener = soon(binding).await;
    listener.set_nonblocking(true).expect("a listener for tokio");
    listener
}
