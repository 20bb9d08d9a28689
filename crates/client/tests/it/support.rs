//! A broker, clients of it, and the one thing that can happen to them: the connection is lost.

use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::watch;
use toolbus_broker::{BrokerCore, BrokerServer};
use toolbus_client::{BrokerClient, BrokerError, ClientOptions};
use toolbus_protocol::{AgentRef, Body, InboxMessage, MailboxStatus};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Bus {
    _folder: TempDir,
    server: Arc<BrokerServer>,
}

impl Bus {
    pub fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let core = BrokerCore::new(folder.path()).unwrap();
        Self { _folder: folder, server: BrokerServer::new(core, "unused") }
    }

    pub async fn client(&self, name: &'static str) -> BrokerClient {
        let (_, link) = watch::channel(true);
        self.client_over(name, link).await
    }

    /// A client whose connection is cut whenever `link` is false, and can't be made anew before it is true again.
    pub async fn client_over(&self, name: &'static str, link: watch::Receiver<bool>) -> BrokerClient {
        let server = Arc::clone(&self.server);
        let pipes = move || {
            let no_link = |error: &dyn std::fmt::Display| BrokerError::Transport(error.to_string());
            let mut real = server.attach(AgentRef::new(name)).map_err(|error| no_link(&error))?;
            let mut link = link.clone();
            if !*link.borrow() {
                return Err(no_link(&"cut"));
            }
            let (ours, mut theirs) = tokio::io::duplex(1 << 16);
            tokio::spawn(async move {
                let cut = async {
                    if link.wait_for(|stands| !stands).await.is_err() {
                        std::future::pending::<()>().await;
                    }
                };
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut real, &mut theirs) => {}
                    () = cut => {}
                }
            });
            Ok(ours)
        };
        let backoff = Duration::from_millis(5);
        let options = ClientOptions { backoff, longest_backoff: backoff, ..ClientOptions::default() };
        soon("a connection", BrokerClient::connect_local(pipes, AgentRef::new(name), options)).await.unwrap()
    }

    /// What waits for that name, if anything does.
    pub async fn mailbox(&self, observer: &BrokerClient, name: &str) -> Option<MailboxStatus> {
        let status = soon("the status", observer.status()).await.unwrap();
        status.mailboxes.into_iter().find(|mailbox| *mailbox.name == *name && mailbox.messages > 0)
    }
}

pub fn request() -> InboxMessage {
    InboxMessage::new(AgentRef::new("whoever"), "mcp_request", Body::null())
}

pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// Looks again and again until it is so.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}
