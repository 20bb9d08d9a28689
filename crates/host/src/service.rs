//! Runs a host: connects broker, servers and catalog, and shuts them down in order.

use crate::announce;
use crate::catalog::watch_server;
use crate::host::{Host, HostOptions};
use crate::outbox::Outbox;
use crate::pins;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use toolbus_audit::Record;
use toolbus_base::BoxFuture;
use toolbus_call::{CancelBy, Event};
use toolbus_client::{BrokerClient, BrokerError, Cancellation};
use toolbus_journal::{Journal, JournalIdentity};
use toolbus_protocol::JournalClaim;

/// Maximum interval between checks for idle sessions; a quarter of the idle time if that is shorter.
const REAP_INTERVAL: Duration = Duration::from_secs(30);

/// Why a host stopped serving.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Also if another host took over the mailbox or the credential was revoked: the error's code tells which.
    #[error("the host can't use the bus: {0}")]
    Bus(#[from] BrokerError),
    /// The connection ended without a reason.
    #[error("the host lost its mailbox")]
    MailboxLost,
}

/// Serves the configured servers until the token is cancelled, then returns within [`HostLimits::stop`](crate::HostLimits::stop).
/// All server processes have ended when this returns, or their time to close has passed, and queued replies are sent.
pub fn run_host(
    client: BrokerClient,
    options: HostOptions,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), HostError>> {
    Box::pin(run(client, options, stop))
}

async fn run(client: BrokerClient, options: HostOptions, stop: CancellationToken) -> Result<(), HostError> {
    tokio::select! {
        subscribed = client.subscribe_with(claim_of(&options.journal)) => subscribed?,
        () = stop.cancelled() => {
            client.close().await;
            return Ok(());
        }
    }
    let host = Host::new(Outbox::new(client), options, stop.child_token());
    host.calls.connect(&host);
    let timer = tokio::spawn(Arc::clone(&host).run_timer());
    for server in &host.servers {
        host.tracker.spawn(watch_server(Arc::clone(&host), Arc::clone(server)));
        host.tracker.spawn(reap_idle(Arc::clone(&host), Arc::clone(server)));
    }
    host.tracker.spawn(announce::run(Arc::clone(&host)));
    host.tracker.spawn(pins::watch(Arc::clone(&host)));
    host.tracker.spawn(watch_policy(Arc::clone(&host)));
    if !host.options.journal.unfinished_tasks().is_empty() {
        host.first_agent_ends().await;
    }
    host.resume_tasks();
    let outcome = match receive(&host).await {
        None => drain(&host).await,
        Some(error) => Err(error),
    };
    host.draining.cancel();
    host.feed(Event::Drain);
    host.feed(Event::Shutdown);
    host.shutdown.cancel();
    host.tracker.close();
    let ending = async {
        let ends = host.servers.iter().cloned().map(|server| tokio::spawn(async move { server.close().await }));
        for end in ends.collect::<Vec<_>>() {
            end.await.ok();
        }
    };
    let ending = async {
        ending.await;
        // Running calls end with their servers and are answered.
        host.tracker.wait().await;
    };
    let ending = async {
        tokio::select! {
            () = ending => {}
            // A pool gets back what arrives meanwhile.
            never = async { serve_mailbox(&host).await; std::future::pending::<()>().await }, if outcome.is_ok() && host.options.pool.is_some() => never,
        }
    };
    if tokio::time::timeout(host.options.limits.close, ending).await.is_err() {
        tracing::warn!("the time to close is over: some servers or calls have not ended");
    }
    host.stopped.cancel();
    timer.await.ok();
    // Also if some calls have not ended: the replies of the others are queued.
    host.outbox.close().await;
    outcome
}

fn claim_of(journal: &Journal) -> JournalClaim {
    let JournalIdentity { journal, epoch, instance, ancestors } = journal.identity();
    let ancestors = ancestors.iter().map(|name| name.as_str().into()).collect();
    JournalClaim { journal: journal.as_str().into(), epoch: *epoch, instance: instance.as_str().into(), ancestors }
}

/// Marks policy reloads in the audit log, so that each decision can be attributed to the rules in force, and has calls
/// that have not started authorised again.
async fn watch_policy(host: Arc<Host>) {
    let mut rules = host.options.policy.watch();
    loop {
        tokio::select! {
            changed = rules.changed() => match changed {
                Ok(()) => {
                    if let Some(audit) = &host.options.audit {
                        audit.note(Record::PolicyReload {});
                    }
                    host.feed(Event::PolicyChanged);
                }
                Err(_) => return,
            },
            () = host.shutdown.cancelled() => return,
        }
    }
}

/// Serves the mailbox until the shutdown begins, which is `None`, or until the host loses its mailbox.
async fn receive(host: &Arc<Host>) -> Option<HostError> {
    tokio::select! {
        biased;
        () = host.draining.cancelled() => None,
        error = serve_mailbox(host) => Some(error),
    }
}

/// Lets running calls end. The mailbox is still served: running calls may wait for their client's answers, and cancels have
/// to reach them. A call that was not started yet is left to the next host, because `draining` is set.
async fn drain(host: &Arc<Host>) -> Result<(), HostError> {
    let limit = host.options.limits.drain;
    host.feed(Event::Drain);
    host.jobs.close();
    if !host.jobs.is_empty() {
        tracing::info!(calls = host.jobs.len(), ?limit, "waiting for running calls to end");
    }
    tokio::select! {
        () = host.jobs.wait() => Ok(()),
        () = tokio::time::sleep(limit) => {
            tracing::warn!(calls = host.jobs.len(), "the drain time is over; running calls end with their servers");
            Ok(())
        }
        error = serve_mailbox(host) => Err(error),
    }
}

async fn serve_mailbox(host: &Arc<Host>) -> HostError {
    let client = host.outbox.client();
    loop {
        tokio::select! {
            biased;
            reason = host.rejection.wait() => return HostError::Bus(reason),
            end = client.next_agent_end() => match end {
                Some(end) => host.end_agent(&end),
                None => return lost(client),
            },
            cancel = client.next_cancellation() => match cancel {
                Some(Cancellation { id, from }) => {
                    let caller = from.map(|from| host.generations.qualified(&from));
                    let by = caller.map_or(CancelBy::Broker, CancelBy::Caller);
                    host.feed(Event::CancelId { id: id.into_inner(), by, reason: None });
                }
                None => return lost(client),
            },
            message = async { host.journal_room().await; client.next_message().await } => match message {
                Some(message) => host.dispatch(message).await,
                None => return lost(client),
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
