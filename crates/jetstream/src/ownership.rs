//! Carries out the leases of all partitions for one broker: watches and writes the records, takes partitions over, and reports
//! which ones this broker owns.

mod event;
mod other_brokers;

pub use event::OwnershipEvent;

use crate::members::Members;
use crate::{BucketChange, Cluster, ClusterError, JetStreamLog, LeaseChange, Leases};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use toolbus_base::BoxFuture;
use toolbus_cluster::{
    Follower, Lease, LeaseEffect, LeaseEvent, LeaseOptions, Partition, Partitions, StreamDisk, TakeoverError, take_over,
};
use toolbus_wal::{ChecksumKey, Disk};

/// How often the leases are looked at.
const TICK: Duration = Duration::from_millis(100);
/// How long a connection attempt to a silent owner may take.
const PROBE: Duration = Duration::from_millis(500);
/// A partition that came back moves again only after this time: the preferred broker may be unable to serve it.
const BETWEEN_MOVES_OF_ONE: Duration = Duration::from_secs(300);
/// How long a broker has to be a member before partitions move to it.
const SETTLED: Duration = Duration::from_secs(10);
/// Wait between attempts to watch the records.
const BETWEEN_WATCHES: Duration = Duration::from_millis(500);
/// The record of a broker that was silent for so long is removed.
const FORGOTTEN: Duration = Duration::from_secs(120);
/// At most one partition moves to its preferred broker in this time, so that pauses don't add up.
const BETWEEN_MOVES: Duration = Duration::from_secs(1);
/// How long takeovers that were ended are awaited.
const AFTER_STOP: Duration = Duration::from_millis(500);
/// Events that wait to be read.
const MAX_EVENTS: usize = 1024;

/// Creates the empty local disk for the copy of a partition.
pub type NewMirror = Arc<dyn Fn(Partition) -> io::Result<Arc<dyn Disk>> + Send + Sync>;

/// How a broker takes part in a cluster.
pub struct OwnershipOptions {
    /// Its name, different from those of all other brokers and of its own earlier processes.
    pub name: String,
    /// The address at which other brokers reach it. One that refuses connections is taken for gone.
    pub address: String,
    /// Tells its data folder from those of other brokers, also after a restart.
    pub place: String,
    /// The number of partitions, fixed when the cluster is created.
    pub partitions: Partitions,
    /// The durations of leases.
    pub lease: LeaseOptions,
    /// Key of the checksums: the cluster's secret.
    pub key: ChecksumKey,
    /// Creates local disks.
    pub mirror: NewMirror,
}

/// The partitions of one broker. Dropping it stops renewing: others take over after the silence.
pub struct Ownership {
    events: mpsc::Receiver<OwnershipEvent>,
    commands: mpsc::Sender<Command>,
    task: tokio::task::JoinHandle<()>,
    /// Ends the waits for the logs.
    stop: CancellationToken,
}

enum Command {
    Closed { partition: Partition, epoch: u64 },
    Leave,
}

impl Ownership {
    /// Joins the cluster. Must be called within a tokio runtime.
    pub fn join(cluster: &Cluster, options: OwnershipOptions) -> BoxFuture<'_, Result<Self, ClusterError>> {
        Box::pin(Self::begin(cluster, options))
    }

    async fn begin(cluster: &Cluster, options: OwnershipOptions) -> Result<Self, ClusterError> {
        let leases = cluster.leases().await?;
        let stop = CancellationToken::new();
        let mut logs = Vec::new();
        for partition in options.partitions.all() {
            logs.push(Arc::new(cluster.log_until(partition, Handle::current(), stop.clone()).await?));
        }
        let (events_in, events) = mpsc::channel(MAX_EVENTS);
        let (commands, commands_in) = mpsc::channel(MAX_EVENTS);
        let task = tokio::spawn(Node::new(leases, logs, options, events_in).run(commands_in));
        Ok(Self { events, commands, task, stop })
    }

    /// The next event, or `None` after this broker has left.
    pub async fn next(&mut self) -> Option<OwnershipEvent> {
        self.events.recv().await
    }

    /// The store of a partition failed: the log rejected an append or did not answer.
    pub async fn closed(&self, partition: Partition, epoch: u64) {
        self.commands.send(Command::Closed { partition, epoch }).await.ok();
    }

    /// Releases all partitions, so that other brokers take them over at once, and waits until that is written. Takeovers that
    /// are under way are ended after `limit`.
    pub async fn leave(mut self, limit: Duration) {
        self.commands.send(Command::Leave).await.ok();
        if timeout(limit, self.drained()).await.is_err() {
            self.stop.cancel();
            timeout(AFTER_STOP, self.drained()).await.ok();
        }
    }

    async fn drained(&mut self) {
        while self.events.recv().await.is_some() {}
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        self.stop.cancel();
        self.task.abort();
    }
}

/// The end of something that was begun.
enum Done {
    Written {
        partition: Partition,
        is_current: Option<bool>,
    },
    TakenOver {
        partition: Partition,
        epoch: u64,
        disk: Box<Result<StreamDisk, TakeoverError>>,
    },
    Probed {
        broker: String,
        is_gone: bool,
    },
    /// The record of this broker was removed.
    Left,
    Nothing,
}

struct Node {
    options: OwnershipOptions,
    leases: Leases,
    logs: Vec<Arc<JetStreamLog>>,
    machines: Vec<Lease>,
    owned: HashSet<Partition>,
    /// The owners as they were reported: epoch, name and address.
    reported: HashMap<Partition, Option<(u64, String, String)>>,
    members: Members,
    probing: HashSet<String>,
    work: JoinSet<Done>,
    /// Events that found no room.
    waiting: VecDeque<OwnershipEvent>,
    events: mpsc::Sender<OwnershipEvent>,
    started: Instant,
    announced: Option<Instant>,
    /// When a partition was released for another broker, and when each of them was.
    moved: Instant,
    moved_each: HashMap<Partition, Instant>,
    is_leaving: bool,
}

impl Node {
    fn new(
        leases: Leases,
        logs: Vec<Arc<JetStreamLog>>,
        options: OwnershipOptions,
        events: mpsc::Sender<OwnershipEvent>,
    ) -> Self {
        let lease = |_| Lease::new(&options.name, options.lease);
        let now = Instant::now();
        Self {
            machines: options.partitions.all().map(lease).collect(),
            options,
            leases,
            logs,
            owned: HashSet::new(),
            reported: HashMap::new(),
            members: Members::default(),
            probing: HashSet::new(),
            work: JoinSet::new(),
            waiting: VecDeque::new(),
            events,
            started: now,
            announced: None,
            moved: now,
            moved_each: HashMap::new(),
            is_leaving: false,
        }
    }

    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut watch, mut next_watch, mut is_failing) = (None, Instant::now(), false);
        loop {
            if watch.is_none() && Instant::now() >= next_watch {
                next_watch = Instant::now() + BETWEEN_WATCHES;
                let watching = self.leases.watch().await;
                // Once per outage.
                if let (Err(error), false) = (&watching, is_failing) {
                    tracing::warn!(%error, "the cluster can't be watched; trying again");
                }
                is_failing = watching.is_err();
                watch = watching.ok();
                self.read_all();
            }
            tokio::select! {
                change = async { watch.as_mut()?.next().await }, if watch.is_some() => match change {
                    Some(change) => self.changed(change),
                    None => watch = None,
                },
                command = commands.recv() => match command {
                    Some(Command::Closed { partition, epoch }) => {
                        self.handle(partition, LeaseEvent::Closed { epoch });
                    }
                    Some(Command::Leave) | None => self.leave(),
                },
                Some(done) = self.work.join_next() => self.done(done.unwrap_or(Done::Nothing)),
                _ = ticks.tick() => self.tick(),
            }
            self.report_owners();
            while let Some(event) = self.waiting.pop_front() {
                if self.events.send(event).await.is_err() {
                    return;
                }
            }
            if self.is_leaving && self.work.is_empty() && self.owned.is_empty() {
                return;
            }
        }
    }

    fn clock(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn millis(value: u64) -> Duration {
        Duration::from_millis(value)
    }

    /// A new watch begins with all records; partitions without one are reported by reading.
    fn read_all(&mut self) {
        for partition in self.options.partitions.all() {
            let leases = self.leases.clone();
            self.work.spawn(async move {
                match leases.get(partition).await {
                    Ok(LeaseEvent::Seen { revision: 0, .. }) => Done::Written { partition, is_current: None },
                    _ => Done::Nothing,
                }
            });
        }
    }

    fn changed(&mut self, change: BucketChange) {
        match change {
            BucketChange::Lease(LeaseChange { partition, event }) => {
                self.yield_to_preferred(partition, &event);
                self.handle(partition, event);
            }
            BucketChange::Member { key, value: Some(value) } => self.member_seen(&key, &value),
            BucketChange::Member { key, value: None } => self.members.left(&key),
        }
    }

    fn handle(&mut self, partition: Partition, event: LeaseEvent) {
        let now = self.clock();
        let Some(machine) = self.machines.get_mut(usize::from(partition.0)) else { return };
        for effect in machine.handle(now, event) {
            match effect {
                LeaseEffect::Write { revision, record } => {
                    let leases = self.leases.clone();
                    self.work.spawn(async move {
                        let written = leases.write(partition, revision, &record).await;
                        Done::Written { partition, is_current: written.ok().or(Some(true)) }
                    });
                }
                LeaseEffect::TakeOver { epoch } => self.take_over(partition, epoch),
                LeaseEffect::Suspend => self.waiting.push_back(OwnershipEvent::Suspended(partition)),
                LeaseEffect::Resume => self.waiting.push_back(OwnershipEvent::Resumed(partition)),
                LeaseEffect::Close => {
                    if self.owned.remove(&partition) {
                        self.waiting.push_back(OwnershipEvent::Lost(partition));
                    }
                }
            }
        }
    }

    /// Reports the owners of partitions at other brokers that have changed, or whose address has become known.
    fn report_owners(&mut self) {
        for partition in self.options.partitions.all() {
            let lease = &self.machines[usize::from(partition.0)];
            let owner = lease.owner().filter(|owner| *owner != self.options.name);
            let known = owner.and_then(|owner| {
                let address = self.members.address_of(owner)?;
                Some((lease.record_epoch(), owner.to_owned(), address.to_owned()))
            });
            if self.reported.get(&partition) == Some(&known) {
                continue;
            }
            self.waiting.push_back(match &known {
                Some((epoch, owner, address)) => {
                    let (owner, address) = (owner.clone(), address.clone());
                    OwnershipEvent::Elsewhere { partition, epoch: *epoch, owner, address }
                }
                None => OwnershipEvent::Unowned(partition),
            });
            self.reported.insert(partition, known);
        }
    }

    fn take_over(&mut self, partition: Partition, epoch: u64) {
        let log = Arc::clone(&self.logs[usize::from(partition.0)]);
        let (mirror, key) = (Arc::clone(&self.options.mirror), self.options.key);
        self.work.spawn_blocking(move || {
            let disk = mirror(partition).map_err(|error| TakeoverError::Follow(error.into()));
            let disk = disk.and_then(|mirror| take_over(log, Follower::new(mirror, key), epoch));
            Done::TakenOver { partition, epoch, disk: Box::new(disk) }
        });
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Nothing | Done::Written { is_current: Some(true), .. } => {}
            Done::Left => {
                self.options.partitions.all().for_each(|partition| self.handle(partition, LeaseEvent::Release));
            }
            Done::Written { partition, is_current: Some(false) } => self.handle(partition, LeaseEvent::Conflict),
            Done::Written { partition, is_current: None } => {
                let record = toolbus_cluster::LeaseRecord { owner: None, epoch: 0 };
                self.handle(partition, LeaseEvent::Seen { revision: 0, record });
            }
            Done::Probed { broker, is_gone } => {
                self.probing.remove(&broker);
                if is_gone {
                    for partition in self.options.partitions.all() {
                        self.handle(partition, LeaseEvent::Gone { broker: broker.clone() });
                    }
                }
            }
            Done::TakenOver { partition, epoch, disk } => {
                if let Err(error) = &*disk {
                    tracing::warn!(partition = partition.0, epoch, %error, "a partition could not be taken over");
                }
                self.handle(partition, LeaseEvent::TakenOver { epoch, ok: disk.is_ok() });
                let is_owner = self.machines[usize::from(partition.0)].serving() == Some(epoch);
                if let (Ok(disk), true) = (*disk, is_owner) {
                    self.owned.insert(partition);
                    self.waiting.push_back(OwnershipEvent::Owned { partition, epoch, disk });
                }
            }
        }
    }

    fn tick(&mut self) {
        for partition in self.options.partitions.all() {
            self.handle(partition, LeaseEvent::Tick);
        }
        let now = Instant::now();
        self.announce(now);
        self.forget_gone(now);
        self.probe_silent();
        self.move_to_preferred(now);
    }
}
