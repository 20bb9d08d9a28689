//! Host directory operations of one connection: announcements, host lists, and notifications of changes.

use crate::directory::{HostDirectory, ManifestRefusal};
use crate::name_owners::{HeldBack, explain_all};
use crate::names::BrokerNames;
use crate::outbox::ConnectionOutbox;
use crate::server::ServerShared;
use crate::shares::Shares;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use toolbus_engine::ConnId;
use toolbus_identity::{Identity, principal_of};
use toolbus_protocol::{AgentRef, Announce, Announced, AskHosts, BrokerFrame, ErrorCode, Hosts};

/// Maximum number of announcements of one connection that are not durable yet.
const MAX_PENDING_ANNOUNCEMENTS: usize = 4;
/// Names held back by one announcement that get a line in the audit log.
const MAX_AUDITED: usize = 100;
/// Minimum interval between two `hosts_changed` notifications to one peer.
const NOTIFY_INTERVAL: Duration = Duration::from_millis(100);

pub struct HostRegistration {
    shares: Arc<Shares>,
    directory: Arc<dyn HostDirectory>,
    names: Arc<BrokerNames>,
    /// The authenticated agent.
    agent: AgentRef,
    may_announce: bool,
    conn: ConnId,
    outbox: Arc<ConnectionOutbox>,
    announce_permits: Arc<Semaphore>,
    announced: bool,
    watcher: Option<AbortHandle>,
}

impl HostRegistration {
    pub fn new(server: &ServerShared, identity: &Identity, conn: ConnId, outbox: Arc<ConnectionOutbox>) -> Self {
        let announce_permits = Arc::new(Semaphore::new(MAX_PENDING_ANNOUNCEMENTS));
        let (agent, may_announce) = (identity.agent.clone(), identity.rights.host);
        let (directory, names) = (server.core.hosts(), Arc::clone(&server.names));
        let shares = Arc::clone(&server.shares);
        let (announced, watcher) = (false, None);
        Self { shares, directory, names, agent, may_announce, conn, outbox, announce_permits, announced, watcher }
    }

    /// Whether the peer may be a host.
    pub fn may_announce(&self) -> bool {
        self.may_announce
    }

    /// Counts refused requests against the shares of their senders.
    pub fn count_refused(&self, senders: &[Arc<str>]) {
        senders.iter().for_each(|sender| self.shares.refused(principal_of(sender)));
    }

    /// Returns true if the peer acts as a host from now on.
    pub fn announce(&mut self, Announce { request_id, manifests }: Announce) -> bool {
        let outbox = Arc::clone(&self.outbox);
        if !self.may_announce {
            let code = ErrorCode::NotAHost;
            tracing::debug!(agent = &*self.agent.session_id, code = code.code(), "refused an announcement");
            outbox.audit_refused(code);
            let (reason, code) = (Some(code.meaning().to_owned()), Some(code));
            outbox.send(BrokerFrame::Announced(Announced { request_id, reason, code }));
            return false;
        }
        let host = self.agent.session_id.clone();
        let respond = move |outcome: Result<Vec<HeldBack>, ManifestRefusal>| {
            let refusal = match outcome {
                Ok(held_back) => {
                    report_held_back(&host, &held_back, &outbox);
                    None
                }
                Err(refusal) => Some(refusal),
            };
            outbox.send(BrokerFrame::Announced(Announced {
                request_id,
                code: refusal.as_ref().map(|_| ErrorCode::ManifestRefused),
                reason: refusal.map(|refusal| refusal.to_string()),
            }));
        };
        let Ok(permit) = Arc::clone(&self.announce_permits).try_acquire_owned() else {
            respond(Err(ManifestRefusal::TooManyAtATime));
            return false;
        };
        let acts_as_host = !manifests.is_empty();
        self.announced = true;
        let announcing = self.directory.announce(&self.agent.session_id, self.conn, manifests);
        tokio::spawn(async move {
            respond(announcing.await);
            drop(permit);
        });
        acts_as_host
    }

    pub fn list_hosts(&mut self, AskHosts { request_id, watch, known }: AskHosts) {
        // Subscribe to changes before reading the list, so that no change in between is missed.
        if watch && self.watcher.is_none() {
            self.watcher = Some(self.watch());
        }
        let mut hosts = self.directory.hosts(self.agent.role.as_deref(), &known.into_iter().collect());
        hosts.retain(|host| self.names.may_offer(&host.id));
        self.outbox.send(BrokerFrame::Hosts(Hosts { request_id, hosts }));
    }

    /// Coalesces changes within an interval into one notification; the last change is always notified.
    fn watch(&self) -> AbortHandle {
        let (mut changes, outbox) = (self.directory.changes(), Arc::clone(&self.outbox));
        let watching = tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                outbox.send(BrokerFrame::HostsChanged);
                tokio::time::sleep(NOTIFY_INTERVAL).await;
            }
        });
        watching.abort_handle()
    }
}

fn report_held_back(host: &str, held_back: &[HeldBack], outbox: &ConnectionOutbox) {
    for sentence in explain_all(host, held_back) {
        tracing::warn!(host, "{sentence}");
    }
    held_back.iter().take(MAX_AUDITED).for_each(|held| outbox.audit_held_back(held));
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        if let Some(watcher) = &self.watcher {
            watcher.abort();
        }
        if self.announced {
            self.directory.left(&self.agent.session_id, self.conn);
        }
    }
}
