//! The mailboxes of a cluster, as one of its brokers serves them: a router over the slots of all partitions. The partitions
//! that this broker owns are cores of its own, the others are behind links.

use crate::backend::Backend;
use crate::core::{BrokerCore, CoreOptions, PartitionOptions};
use crate::directory::HostDirectory;
use crate::error::{BrokerError, BrokerResult};
use crate::links::{LocalPartition, LocalPartitions};
use hashbrown::HashSet;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use toolbus_audit::AuditLog;
use toolbus_base::BoxFuture;
use toolbus_cluster::{Partition, Partitions, Router, Slot, SlotClock};
use toolbus_engine::{Command, ConnId, Mailboxes, Names, Outbox, Peer, Window};
use toolbus_identity::{Agents, Identity};
use toolbus_store::Disk;

/// A broker is not ready if a partition has had no owner for longer than a change of ownership may take.
const OWNERLESS_LIMIT: Duration = Duration::from_secs(20);

/// How long commands wait for the owner of a partition. Longer than a takeover from a silent broker.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// Options of [`ClusterMailboxes`].
pub struct ClusterMailboxesOptions {
    /// The cluster's id and secret.
    pub identity: toolbus_store::Identity,
    /// The number of partitions.
    pub partitions: Partitions,
    /// The cluster's directory of hosts.
    pub hosts: Arc<dyn HostDirectory>,
    /// Limits of each partition.
    pub core: CoreOptions,
}

/// The mailboxes of a cluster at one broker.
pub struct ClusterMailboxes {
    options: ClusterMailboxesOptions,
    slots: Vec<Arc<Slot>>,
    router: Router,
    state: Mutex<State>,
    /// Held while the mailboxes of a slot change together with the state.
    changing: Mutex<()>,
    /// The last version of the agents. Held while it is applied, also to a partition that is being opened.
    agents: Mutex<Option<KnownAgents>>,
}

#[derive(Default)]
struct State {
    local: BTreeMap<Partition, Local>,
    /// The epochs in which this broker owns partitions, also while they are opened.
    owned: BTreeMap<Partition, u64>,
    /// Owned partitions that must not be served for now.
    suspended: BTreeSet<Partition>,
    names: Option<Arc<dyn Names>>,
    /// Since when partitions are not served.
    unserved: BTreeMap<Partition, Instant>,
}

/// A partition that this broker owns.
struct Local {
    epoch: u64,
    core: Arc<BrokerCore>,
    /// Cancelled when the links of other brokers have to end. Replaced when the partition is resumed.
    links: CancellationToken,
}

struct KnownAgents {
    agents: Agents,
    excepted: HashSet<String>,
    audit: Option<AuditLog>,
}

impl ClusterMailboxes {
    /// No partition is served yet.
    pub fn new(options: ClusterMailboxesOptions) -> Arc<Self> {
        let started = Instant::now();
        let clock: SlotClock = Arc::new(move || started.elapsed().as_millis() as u64);
        let slots: Vec<Arc<Slot>> = options.partitions.all().map(|_| Arc::new(Slot::new(Arc::clone(&clock)))).collect();
        let mailboxes = slots.iter().map(|slot| Arc::clone(slot) as Arc<dyn Mailboxes>).collect();
        let router = Router::new(mailboxes).expect("`Partitions` has a valid number");
        let unserved = options.partitions.all().map(|partition| (partition, started)).collect();
        let state = Mutex::new(State { unserved, ..State::default() });
        Arc::new(Self { options, slots, router, state, changing: Mutex::default(), agents: Mutex::default() })
    }

    /// Notes that this broker owns a partition, before it is opened.
    pub fn own(&self, partition: Partition, epoch: u64) {
        let mut state = self.state();
        state.owned.insert(partition, epoch);
        state.suspended.remove(&partition);
    }

    /// Opens a partition that this broker owns, and serves it. Returns `None` if it was withdrawn meanwhile. Blocks on its log.
    pub fn open(&self, partition: Partition, epoch: u64, disk: Arc<dyn Disk>) -> BrokerResult<Option<Arc<BrokerCore>>> {
        let CoreOptions { engine, store, reserve_bytes, .. } = self.options.core.clone();
        let core = BrokerCore::open_partition(PartitionOptions {
            disk,
            identity: self.options.identity.clone(),
            hosts: Arc::clone(&self.options.hosts),
            core: CoreOptions { engine, store, first_seq: partition.first_seq(), reserve_bytes },
        })?;
        // The end of an agent depends on which mailboxes are those of hosts.
        self.state().names.iter().for_each(|names| core.set_names(Arc::clone(names)));
        let known = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(KnownAgents { agents, excepted, audit }) = &*known {
            let is_excepted = |name: &str| excepted.contains(name);
            if !core.update_agents(agents, &is_excepted, audit.as_ref()) {
                return Err(BrokerError::Unrecorded);
            }
        }
        let _changing = self.changing();
        let is_suspended = {
            let mut state = self.state();
            if state.owned.get(&partition) != Some(&epoch) {
                drop(state);
                core.close();
                return Ok(None);
            }
            // They may have been set meanwhile.
            state.names.iter().for_each(|names| core.set_names(Arc::clone(names)));
            let local = Local { epoch, core: Arc::clone(&core), links: CancellationToken::new() };
            state.local.insert(partition, local).iter().for_each(|former| former.links.cancel());
            state.suspended.contains(&partition)
        };
        drop(known);
        if !is_suspended {
            self.serve(partition, Some(Arc::clone(&core) as Arc<dyn Mailboxes>));
        }
        Ok(Some(core))
    }

    /// Stops serving a partition that this broker owned in that epoch, or in any. Returns its core, whose
    /// [`close`](BrokerCore::close) blocks.
    pub fn withdraw(&self, partition: Partition, epoch: Option<u64>) -> Option<Arc<BrokerCore>> {
        let _changing = self.changing();
        let removed = {
            let mut state = self.state();
            let is_meant = |known: u64| epoch.is_none_or(|epoch| epoch == known);
            if state.owned.get(&partition).copied().is_some_and(is_meant) {
                state.owned.remove(&partition);
                state.suspended.remove(&partition);
            }
            let is_served = state.local.get(&partition).is_some_and(|local| is_meant(local.epoch));
            if is_served { state.local.remove(&partition) } else { None }
        };
        let Local { core, links, .. } = removed?;
        links.cancel();
        self.serve(partition, None);
        Some(core)
    }

    /// Ends connections whose commands wait for too long for the owner of a partition. To be called every second or so.
    pub fn end_waiting(&self) {
        self.slots.iter().for_each(|slot| slot.end_waiting(MAX_WAIT.as_millis() as u64));
    }

    /// Serves nothing of an owned partition until it is resumed: nothing is pushed, accepted or elided.
    pub fn suspend(&self, partition: Partition) {
        let _changing = self.changing();
        let is_served = {
            let mut state = self.state();
            if state.owned.contains_key(&partition) {
                state.suspended.insert(partition);
            }
            state.local.contains_key(&partition)
        };
        if is_served {
            self.end_links(partition);
            self.serve(partition, None);
        }
    }

    /// Serves an owned partition again.
    pub fn resume(&self, partition: Partition) {
        let _changing = self.changing();
        let mut state = self.state();
        state.suspended.remove(&partition);
        let core = state.local.get_mut(&partition).map(|local| {
            // A token that is not cancelled has to end the links that use it.
            if local.links.is_cancelled() {
                local.links = CancellationToken::new();
            }
            Arc::clone(&local.core)
        });
        drop(state);
        if let Some(core) = core {
            self.serve(partition, Some(core));
        }
    }

    /// Sets the mailboxes of a partition at another broker, or none. Ignored for a partition that this broker owns.
    pub fn set_remote(&self, partition: Partition, mailboxes: Option<Arc<dyn Mailboxes>>) {
        let _changing = self.changing();
        if !self.state().local.contains_key(&partition) {
            self.serve(partition, mailboxes);
        }
    }

    /// The partitions that this broker owns, also those that are being opened.
    pub fn owned(&self) -> Vec<Partition> {
        self.state().owned.keys().copied().collect()
    }

    fn serve(&self, partition: Partition, mailboxes: Option<Arc<dyn Mailboxes>>) {
        {
            let mut state = self.state();
            match &mailboxes {
                Some(_) => state.unserved.remove(&partition),
                None => state.unserved.insert(partition, Instant::now()),
            };
        }
        self.slots[usize::from(partition.0)].set(mailboxes);
    }

    fn cores(&self) -> Vec<Arc<BrokerCore>> {
        self.state().local.values().map(|local| Arc::clone(&local.core)).collect()
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalPartitions for ClusterMailboxes {
    fn local(&self, partition: Partition, epoch: u64) -> Option<LocalPartition> {
        let state = self.state();
        let known = |local: &&Local| local.epoch == epoch && !local.links.is_cancelled();
        let local = state.local.get(&partition).filter(known)?;
        // Not while it is suspended.
        let is_served = self.slots[usize::from(partition.0)].is_served();
        is_served.then(|| LocalPartition {
            mailboxes: Arc::clone(&local.core) as Arc<dyn Mailboxes>,
            ended: local.links.clone(),
        })
    }

    fn end_links(&self, partition: Partition) {
        self.state().local.get(&partition).iter().for_each(|local| local.links.cancel());
    }
}

impl Mailboxes for ClusterMailboxes {
    fn attach(&self, peer: Peer, outbox: Arc<dyn Outbox>) -> ConnId {
        self.router.attach(peer, outbox)
    }

    fn submit(&self, conn: ConnId, commands: &mut Vec<Command>) {
        self.router.submit(conn, commands);
    }

    fn detach(&self, conn: ConnId) {
        self.router.detach(conn);
    }

    fn congested(&self) -> bool {
        self.router.congested()
    }
}

impl Backend for ClusterMailboxes {
    fn identity(&self) -> &str {
        &self.options.identity.id
    }

    fn hosts(&self) -> Arc<dyn HostDirectory> {
        Arc::clone(&self.options.hosts)
    }

    fn window(&self, host: bool) -> Window {
        self.options.core.engine.window(host)
    }

    fn set_names(&self, names: Arc<dyn Names>) {
        self.state().names = Some(Arc::clone(&names));
        self.cores().iter().for_each(|core| core.set_names(Arc::clone(&names)));
    }

    fn is_current(&self, identity: &Identity) -> bool {
        self.cores().iter().all(|core| Backend::is_current(&**core, identity))
    }

    fn update_agents(&self, agents: &Agents, is_excepted: &dyn Fn(&str) -> bool, audit: Option<&AuditLog>) -> bool {
        let mut known = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        // A partition that fails is given up by this broker, and its next owner applies the agents itself.
        let is_recorded = |core: &Arc<BrokerCore>| core.update_agents(agents, is_excepted, audit) || core.has_failed();
        // All of them, also after one has failed.
        let unrecorded = self.cores().iter().filter(|core| !is_recorded(core)).count();
        let are_recorded = unrecorded == 0;
        if are_recorded {
            let excepted = agents.keys().filter(|name| is_excepted(name)).cloned().collect();
            *known = Some(KnownAgents { agents: agents.clone(), excepted, audit: audit.cloned() });
        }
        are_recorded
    }

    fn unready(&self) -> Option<String> {
        let state = self.state();
        if !state.suspended.is_empty() {
            return Some("NATS does not confirm what this broker writes".into());
        }
        let unserved = state.unserved.iter().find(|(_, since)| since.elapsed() > OWNERLESS_LIMIT);
        unserved.map(|(partition, _)| format!("partition {} of the cluster has no owner", partition.0))
    }

    /// A partition that fails is given up; the broker goes on.
    fn has_failed(&self) -> bool {
        false
    }

    fn failed(&self) -> BoxFuture<'_, BrokerError> {
        Box::pin(std::future::pending())
    }

    fn drain(&self, limit: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let cores = self.cores();
            futures_util::future::join_all(cores.iter().map(|core| core.drain(limit))).await;
        })
    }

    fn set_served(&self, _is_served: bool) {}
}
