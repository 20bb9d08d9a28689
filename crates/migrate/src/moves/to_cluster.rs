//! From a folder into a cluster.

use super::{MoveOptions, blocking, limits, mark, new_move, totals, totals_of};
use crate::cluster_side::ClusterSide;
use crate::copy::{copy, verify};
use crate::error::MoveError;
use crate::hosts::{self, Hosts};
use crate::plan::{self, LogPlan};
use crate::report::{MoveReport, Totals};
use crate::sides::{Copies, Folder, HOSTS};
use crate::survey::{Contents, Log, Verdict};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;
use toolbus_base::principal_of;
use toolbus_broker::{HostStorage, ManifestFiles, MovedState, StatePlace};
use toolbus_cluster::{Partition, Partitions, stays_with_sender};
use toolbus_engine::Settled;
use toolbus_identity::AgentsFolder;
use toolbus_jetstream::{ClusterIdentity, MarkedIdentity};
use toolbus_store::{Disk, Identity};
use toolbus_wal::{MoveMark, MoveState};

/// Moves the data of a folder into a cluster that does not exist yet.
pub async fn to_cluster(from: &Path, options: MoveOptions) -> Result<MoveReport, MoveError> {
    let mut folder = Folder::open(from)?.ok_or_else(|| MoveError::NoData { folder: from.to_owned() })?;
    let target = target_cluster(&folder, &options).await?;
    if let Some(MoveMark { state: MoveState::Left, .. }) = folder.mark {
        // Everything was there, and this side has left. `target_cluster` has checked that it is the same move.
        folder.copies()?;
        target.ok_or(MoveError::Changed)?.set_mark(None).await?;
        return Ok(MoveReport { was_complete: true, ..MoveReport::default() });
    }
    let partitions = target.as_ref().map_or(options.partitions, |target| target.identity().partitions);
    let source = FolderSource::of(&folder, partitions, &options).await?;
    let mut report = MoveReport { left_out: source.contents.unreadable, ..MoveReport::default() };
    {
        let plans = source.plan(partitions)?;
        report.source = source.totals(&plans[0].ids, &source.logs[0].state, LogPlan::digest(&plans));
    }
    if options.dry_run {
        return Ok(report);
    }
    let (id, mut target) = mark_both(&mut folder, target, partitions, &options).await?;
    let copies = Arc::new(folder.copies()?);
    options.say(format!("claiming the partitions of {}", target.name));
    let mut claimed = target.claim(&folder.identity.id, Arc::clone(&copies)).await?;
    drop(target.cluster.agents(AgentsFolder::new(&folder.path)).await?);
    let filling = Filling {
        target: ClusterSide {
            cluster: target.cluster.clone(),
            name: target.name.clone(),
            marked: target.marked.clone(),
        },
        storage: target.cluster.host_storage(target.identity()).await?,
        disks: partitions.all().map(|at| Ok((at, claimed.disk(at)?))).collect::<Result<_, MoveError>>()?,
        copies: Arc::clone(&copies),
        progress: Arc::clone(&options.progress),
    };
    let (written, found) = blocking(move |runtime| filling.fill(&source, runtime)).await?;
    report.written = written;
    report.target = Some(Totals { agents: target.cluster.agents_known().await? as u64, ..found });
    report.check()?;
    claimed.check()?;
    // From here on, this side is not used any more, and the target not yet.
    folder.set_mark(Some(mark(&id, MoveState::Left, options.cluster_name())))?;
    claimed.release().await;
    copies.remove_all()?;
    target.set_mark(None).await?;
    Ok(report)
}

/// Marks the folder, then the cluster, which is created if there is none. Returns the name of the move.
async fn mark_both(
    folder: &mut Folder,
    target: Option<ClusterSide>,
    partitions: Partitions,
    options: &MoveOptions,
) -> Result<(String, ClusterSide), MoveError> {
    let id = folder.mark.as_ref().map_or_else(new_move, |mark| mark.id.clone());
    if folder.mark.is_none() {
        folder.set_mark(Some(mark(&id, MoveState::Leaving, options.cluster_name())))?;
    }
    if let Some(target) = target {
        return Ok((id, target));
    }
    let Identity { id: broker, seed } = folder.identity.clone();
    let identity = ClusterIdentity::with(broker, seed, partitions)?;
    let marked = MarkedIdentity { identity, mark: None, revision: 0 };
    let mut target = ClusterSide { cluster: options.cluster.clone(), name: options.cluster_name(), marked };
    target.set_mark(Some(mark(&id, MoveState::Arriving, folder.name()))).await?;
    Ok((id, target))
}

/// A marked and claimed cluster, to be filled.
struct Filling {
    target: ClusterSide,
    storage: Box<dyn HostStorage>,
    disks: Vec<(Partition, Arc<dyn Disk>)>,
    copies: Arc<Copies>,
    progress: Arc<dyn Fn(String) + Send + Sync>,
}

impl Filling {
    /// Writes what is missing, and compares. Returns the number of messages that were written, and what was found.
    fn fill(self, source: &FolderSource, runtime: &Handle) -> Result<(u64, Totals), MoveError> {
        let Self { target, storage, disks, copies, progress } = self;
        let (seed, partitions) = (target.identity().seed, target.identity().partitions);
        let open = |disk: &Arc<dyn Disk>| Log::open(Arc::clone(disk), StatePlace::in_partition(disk, seed), seed);
        let plans = source.plan(partitions)?;
        let (mut written, mut found) = (0, Vec::new());
        for ((partition, disk), plan) in disks.into_iter().zip(&plans) {
            written += copy(&source.logs, plan, &open(&disk)?)?;
            drop(disk);
            // Read from the servers, not from what was written here.
            let log = verify(plan, open(&target.read(partition, &copies, runtime)?)?)?;
            copies.remove(partition);
            progress(format!("partition {} of {}: {} messages", partition.0 + 1, partitions.count(), log.messages));
            found.push(log);
        }
        source.hosts.write(&*storage)?;
        let hosts = source.hosts.verify(&*storage)?;
        Ok((written, totals(&found, &plans[0].ids, &source.logs[0].state, &hosts, 0)))
    }
}

/// The target, if it exists. It must take part in the move of the folder.
async fn target_cluster(folder: &Folder, options: &MoveOptions) -> Result<Option<ClusterSide>, MoveError> {
    let marked = |mark: &MoveMark| MoveError::Marked { place: folder.name(), mark: mark.clone() };
    if let Some(mark) = folder.mark.as_ref().filter(|mark| mark.state == MoveState::Arriving) {
        return Err(marked(mark));
    }
    let not_empty = || MoveError::NotEmpty { place: options.cluster_name() };
    let found = options.cluster.marked_identity().await?;
    let is_same = |found: &MarkedIdentity| {
        let (Some(ours), Some(theirs)) = (&folder.mark, &found.mark) else { return false };
        ours.id == theirs.id && theirs.state == MoveState::Arriving
    };
    match (&folder.mark, found) {
        (_, Some(found)) if is_same(&found) => {
            let (cluster, name) = (options.cluster.clone(), options.cluster_name());
            Ok(Some(ClusterSide { cluster, name, marked: found }))
        }
        (Some(mark), _) if mark.state == MoveState::Left => Err(marked(mark)),
        // To another cluster.
        (Some(mark), _) if mark.other != options.cluster_name() => Err(marked(mark)),
        (_, Some(_)) => Err(not_empty()),
        (_, None) if options.cluster.is_empty(options.partitions).await? => Ok(None),
        (_, None) => Err(not_empty()),
    }
}

/// What a folder has, read completely.
pub(super) struct FolderSource {
    pub(super) logs: Vec<Log>,
    pub(super) contents: Contents,
    hosts: Hosts,
    agents: usize,
}

impl FolderSource {
    async fn of(folder: &Folder, partitions: Partitions, options: &MoveOptions) -> Result<Self, MoveError> {
        options.say(format!("reading {}", folder.name()));
        let (disk, path, identity) = (Arc::clone(&folder.disk), folder.path.clone(), folder.identity.clone());
        let source = blocking(move |_| Self::read(disk, &path, &identity, partitions)).await?;
        options.check(&source.logs[0])?;
        options.check_contents(&source.contents)?;
        Ok(source)
    }

    pub(super) fn read(
        disk: Arc<dyn Disk>,
        path: &Path,
        identity: &Identity,
        partitions: Partitions,
    ) -> Result<Self, MoveError> {
        let log = Log::open(disk, StatePlace::in_folder(path), identity.seed)?;
        let files = ManifestFiles::open(path.join(HOSTS), identity.seed);
        let files = files.map_err(|source| MoveError::Io { what: "read the directory of hosts", source })?;
        let hosts = Hosts::read(&files)?;
        hosts::check_folder(&path.join(HOSTS))?;
        let agents = AgentsFolder::new(path).list()?;
        let of_agents = agents.iter().filter(|agent| agent.host).map(|agent| agent.name.as_str());
        let names: HashSet<&str> =
            of_agents.chain(hosts.owners.hosts().iter().map(|host| principal_of(host))).collect();
        let state = log.state.clone();
        let is_host = |name: &str| names.contains(principal_of(name)) || state.has_claim(name);
        let contents = Contents::of(std::slice::from_ref(&log), |_, message, purpose| {
            let stays = stays_with_sender(purpose, is_host(&message.from.name));
            Verdict::Keep(partitions.of(if stays { &message.from.name } else { &message.mailbox }).0)
        })?;
        let agents = agents.len();
        Ok(Self { logs: vec![log], contents, hosts, agents })
    }

    pub(super) fn plan(&self, partitions: Partitions) -> Result<Vec<LogPlan<'_>>, MoveError> {
        let log = &self.logs[0];
        plan::to_partitions(&self.contents, log.recovery.next_seq, &log.state, partitions, limits())
    }

    fn totals(&self, ids: &[Settled], state: &MovedState, messages: u128) -> Totals {
        let counts = (self.contents.messages.len() as u64, self.contents.bytes);
        totals_of(counts, messages, ids, state, &self.hosts, self.agents)
    }
}
