//! A broker, clients of it, and links between them that tests can cut.

use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::watch;
use toolbus_broker::{BrokerCore, BrokerServer};
use toolbus_client::{BrokerClient, BrokerError, ClientOptions};
use toolbus_protocol::{AgentRef, Body, InboxMessage, MailboxStatus};

/// Longer than any awaited step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

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

    /// A client whose connection is cut while `link` is false.
    pub async fn client_over(&self, name: &'static str, link: watch::Receiver<bool>) -> BrokerClient {
        let server = Arc::clone(&self.server);
        let links = move || {
            let link_error = |error: &dyn std::fmt::Display| BrokerError::Transport(error.to_string());
            let real = server.attach(AgentRef::new(name)).map_err(|error| link_error(&error))?;
            let mut link = link.clone();
            if !*link.borrow() {
                return Err(link_error(&"cut"));
            }
            let (ours, theirs) = toolbus_protocol::link();
            tokio::spawn(async move {
                let cut = async {
                    if link.wait_for(|is_up| !is_up).await.is_err() {
                        std::future::pending::<()>().await;
                    }
                };
                tokio::select! {
                    () = toolbus_protocol::relay(&real, &theirs) => {}
                    () = cut => {}
                }
            });
            Ok(ours)
        };
        let backoff = Duration::from_millis(5);
        let options = ClientOptions { backoff, longest_backoff: backoff, ..ClientOptions::default() };
        soon("a connection", BrokerClient::connect_local(links, AgentRef::new(name), options)).await.unwrap()
    }

    /// The status of that mailbox, if it has messages.
    pub async fn mailbox(&self, observer: &BrokerClient, name: &str) -> Option<MailboxStatus> {
        let status = soon("the status", observer.status()).await.unwrap();
        status.mailboxes.into_iter().find(|mailbox| *mailbox.name == *name && mailbox.messages > 0)
    }
}

pub fn request() -> InboxMessage {
    InboxMessage::new(AgentRef::new("sender"), "mcp_request", Body::null())
}

pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}

/// Polls until `condition` holds.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}
