//! The host as a whole: connects the bus, the servers and the catalog, and ends them all in order.

use crate::announce;
use crate::catalog::watch_server;
use crate::host::{Host, HostOptions};
use crate::orphans;
use crate::outbox::Outbox;
use crate::pins;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use toolbus_audit::Record;
use toolbus_client::{BrokerClient, BrokerError};

/// How long the servers may take to end when the host does.
const LONGEST_SHUTDOWN: Duration = Duration::from_secs(10);
/// Idle sessions are looked for this often, or four times in their idle time.
const REAP_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Also when another host took the mailbox over, or the credential was taken back: the error's code says which.
    #[error("the host has no place on the bus: {0}")]
    Bus(#[from] BrokerError),
    #[error("the host lost its mailbox")]
    MailboxLost,
}

/// Serves the configured servers to the bus until the token is cancelled. The children are gone when this returns.
pub async fn run_host(
    client: BrokerClient,
    options: HostOptions,
    shutdown: CancellationToken,
) -> Result<(), HostError> {
    client.subscribe().await?;
    let stop = shutdown.child_token();
    let host = Host::new(Outbox::new(client), options, stop.clone());
    for server in &host.servers {
        host.tasks.spawn(watch_server(Arc::clone(&host), Arc::clone(server)));
        host.tasks.spawn(reap_idle(Arc::clone(&host), Arc::clone(server)));
    }
    host.tasks.spawn(announce::run(Arc::clone(&host)));
    host.tasks.spawn(pins::watch(Arc::clone(&host)));
    host.tasks.spawn(write_down_new_rules(Arc::clone(&host)));
    host.tasks.spawn(orphans::watch(Arc::clone(&host)));
    host.resume_tasks();
    let outcome = receive(&host).await;
    stop.cancel();
    host.tasks.close();
    let ending = async {
        let ends = host.servers.iter().cloned().map(|server| tokio::spawn(async move { server.close().await }));
        for end in ends.collect::<Vec<_>>() {
            end.await.ok();
        }
    };
    let ending = async {
        ending.await;
        // The calls that ran end with their servers; their callers are told.
        host.tasks.wait().await;
    };
    if tokio::time::timeout(LONGEST_SHUTDOWN, ending).await.is_err() {
        tracing::warn!("some servers or calls did not end in time");
    }
    // Replies that are still on their way get their chance.
    if let Some(host) = Arc::into_inner(host) {
        host.outbox.close().await;
    }
    outcome
}

/// Which rules a decision was made by is told from where it stands in the log.
async fn write_down_new_rules(host: Arc<Host>) {
    let mut rules = host.options.policy.watch();
    let Some(audit) = &host.options.audit else { return };
    loop {
        tokio::select! {
            changed = rules.changed() => match changed {
                Ok(()) => audit.note(Record::PolicyReload {}),
                Err(_) => return,
            },
            () = host.shutdown.cancelled() => return,
        }
    }
}

async fn receive(host: &Arc<Host>) -> Result<(), HostError> {
    let client = host.outbox.client();
    loop {
        tokio::select! {
            biased;
            () = host.shutdown.cancelled() => return Ok(()),
            reason = host.unwelcome.wait() => return Err(HostError::Bus(reason)),
            cancel = client.next_cancel() => match cancel {
                Some(id) => host.running.cancel_message(&id),
                None => return Err(lost(client)),
            },
            message = client.next_message() => match message {
                Some(message) => host.dispatch(message).await,
                None => return Err(lost(client)),
            },
        }
    }
}

fn lost(client: &BrokerClient) -> HostError {
    client.end_reason().map_or(HostError::MailboxLost, HostError::Bus)
}

async fn reap_idle(host: Arc<Host>, server: Arc<crate::server::Server>) {
    let interval = REAP_INTERVAL.min(server.config.idle / 4).max(Duration::from_millis(10));
    loop {
        tokio::select! {
            () = tokio::time::sleep(interval) => server.reap().await,
            () = host.shutdown.cancelled() => return,
        }
    }
}
