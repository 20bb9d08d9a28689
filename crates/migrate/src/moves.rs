//! The steps of a move, in the order that makes it safe to interrupt it anywhere.

use crate::cluster_side::{Claimed, ClusterSide};
use crate::copy::{Found, copy, verify};
use crate::digest;
use crate::error::MoveError;
use crate::hosts::{self, Hosts};
use crate::plan::{self, IdLimits, LogPlan};
use crate::report::{MoveReport, Totals};
use crate::sides::{self, Folder, HOSTS};
use crate::survey::{Contents, Log, Verdict};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use toolbus_base::principal_of;
use toolbus_broker::{ManifestFiles, MovedState, StatePlace};
use toolbus_cluster::{Partition, Partitions, stays_with_sender};
use toolbus_engine::EngineOptions;
use toolbus_identity::AgentsFolder;
use toolbus_jetstream::{Cluster, ClusterIdentity, MarkedIdentity};
use toolbus_store::{Disk, Identity};
use toolbus_wal::{MoveMark, MoveState};

/// What to move, and how.
pub struct MoveOptions {
    /// The cluster. Its servers were checked.
    pub cluster: Cluster,
    /// Its name.
    pub name: String,
    /// The number of partitions of a new cluster.
    pub partitions: Partitions,
    /// Move what can be read of a damaged source.
    pub accept_damage: bool,
    /// Only read the source, and change nothing.
    pub dry_run: bool,
    /// Called with a line about each step.
    pub progress: Arc<dyn Fn(String) + Send + Sync>,
}

impl MoveOptions {
    fn cluster_name(&self) -> String {
        format!("the cluster {}", self.name)
    }

    fn say(&self, line: impl Into<String>) {
        (self.progress)(line.into());
    }

    fn check(&self, log: &Log) -> Result<(), MoveError> {
        if self.accept_damage { Ok(()) } else { log.check_intact() }
    }

    fn check_contents(&self, contents: &Contents) -> Result<(), MoveError> {
        match contents.unreadable {
            ranges @ 1.. if !self.accept_damage => {
                Err(MoveError::Damaged { ranges, bytes: 0, missing_segments: 0, unknown: 0 })
            }
            _ => Ok(()),
        }
    }
}

fn limits() -> IdLimits {
    let EngineOptions { history_ids, history_age, .. } = EngineOptions::default();
    IdLimits { count: history_ids, age: history_age }
}

fn mark(id: &str, state: MoveState, other: String) -> MoveMark {
    MoveMark { id: id.to_owned(), state, other }
}

fn new_move() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Runs what blocks on disks and logs.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce(&Handle) -> Result<T, MoveError> + Send + 'static,
) -> Result<T, MoveError> {
    let runtime = Handle::current();
    spawn_blocking(move || work(&runtime)).await.unwrap_or(Err(MoveError::Panicked))
}

/// What a folder has, read completely.
struct FolderSource {
    logs: Vec<Log>,
    contents: Contents,
    hosts: Hosts,
    agents: usize,
}

/// Moves the data of a folder into a cluster that does not exist yet.
pub async fn to_cluster(from: &Path, options: MoveOptions) -> Result<MoveReport, MoveError> {
    let mut folder = Folder::open(from)?.ok_or_else(|| MoveError::NoData { folder: from.to_owned() })?;
    let target = target_cluster(&folder, &options).await?;
    if let Some(MoveMark { state: MoveState::Left, .. }) = folder.mark {
        // Everything was there, and this side has left. `target_cluster` has checked that it is the same move.
        let mut target = target.ok_or(MoveError::Changed)?;
        folder.copies()?;
        target.set_mark(None).await?;
        return Ok(MoveReport { was_complete: true, ..MoveReport::default() });
    }
    options.say(format!("reading {}", folder.name()));
    let source = {
        let (disk, path, identity) = (Arc::clone(&folder.disk), folder.path.clone(), folder.identity.clone());
        let partitions = target.as_ref().map_or(options.partitions, |target| target.identity().partitions);
        blocking(move |_| FolderSource::read(disk, &path, &identity, partitions)).await?
    };
    options.check(&source.logs[0])?;
    options.check_contents(&source.contents)?;
    let mut report = MoveReport { left_out: source.contents.unreadable, ..MoveReport::default() };
    let partitions = target.as_ref().map_or(options.partitions, |target| target.identity().partitions);
    {
        let plans = source.plan(partitions)?;
        report.source = source.totals(&plans[0].ids, &source.logs[0].state, LogPlan::digest(&plans));
    }
    if options.dry_run {
        return Ok(report);
    }
    let id = folder.mark.as_ref().map_or_else(new_move, |mark| mark.id.clone());
    if folder.mark.is_none() {
        folder.set_mark(Some(mark(&id, MoveState::Leaving, options.cluster_name())))?;
    }
    let mut target = match target {
        Some(target) => target,
        None => {
            let Identity { id: broker, seed } = folder.identity.clone();
            let identity = ClusterIdentity::with(broker, seed, partitions)?;
            let marked = MarkedIdentity { identity, mark: None, revision: 0 };
            let mut target = ClusterSide { cluster: options.cluster.clone(), name: options.cluster_name(), marked };
            target.set_mark(Some(mark(&id, MoveState::Arriving, folder.name()))).await?;
            target
        }
    };
    let copies = Arc::new(folder.copies()?);
    options.say(format!("claiming the partitions of {}", target.name));
    let mut claimed = target.claim(&folder.identity.id, Arc::clone(&copies)).await?;
    drop(target.cluster.agents(AgentsFolder::new(&folder.path)).await?);
    let storage = target.cluster.host_storage(target.identity()).await?;
    let disks: Vec<(Partition, Arc<dyn Disk>)> = partitions
        .all()
        .map(|partition| Ok((partition, claimed.disk(partition)?)))
        .collect::<Result<_, MoveError>>()?;
    let (progress, seed) = (Arc::clone(&options.progress), folder.identity.seed);
    let side =
        ClusterSide { cluster: target.cluster.clone(), name: target.name.clone(), marked: target.marked.clone() };
    let reads = Arc::clone(&copies);
    let (written, found, found_hosts, ids, state) = blocking(move |runtime| {
        let plans = source.plan(partitions)?;
        let (mut written, mut all) = (0, Vec::new());
        for ((partition, disk), plan) in disks.into_iter().zip(&plans) {
            {
                let target = Log::open(Arc::clone(&disk), StatePlace::in_partition(&disk, seed), seed)?;
                written += copy(&source.logs, plan, &target)?;
            }
            drop(disk);
            // Read from the servers, not from what was written here.
            let disk = side.read(partition, &reads, runtime)?;
            let found = verify(plan, Log::open(Arc::clone(&disk), StatePlace::in_partition(&disk, seed), seed)?)?;
            drop(disk);
            reads.remove(partition);
            let (number, count) = (partition.0 + 1, partitions.count());
            progress(format!("partition {number} of {count}: {} messages", found.messages));
            all.push(found);
        }
        source.hosts.write(&*storage)?;
        let hosts = source.hosts.verify(&*storage)?;
        Ok((written, all, hosts, plans[0].ids.clone(), source.logs[0].state.clone()))
    })
    .await?;
    claimed.check()?;
    let agents = target.cluster.agents_known().await?;
    report.target = Some(totals(&found, &ids, &state, &found_hosts, agents));
    report.written = written;
    report.check()?;
    // From here on, this side is not used any more, and the target not yet.
    folder.set_mark(Some(mark(&id, MoveState::Left, options.cluster_name())))?;
    claimed.release().await;
    copies.remove_all()?;
    target.set_mark(None).await?;
    Ok(report)
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

impl FolderSource {
    fn read(disk: Arc<dyn Disk>, path: &Path, identity: &Identity, partitions: Partitions) -> Result<Self, MoveError> {
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

    fn plan(&self, partitions: Partitions) -> Result<Vec<LogPlan<'_>>, MoveError> {
        let log = &self.logs[0];
        plan::to_partitions(&self.contents, log.recovery.next_seq, &log.state, partitions, limits())
    }

    fn totals(&self, ids: &[toolbus_engine::Settled], state: &MovedState, messages: u128) -> Totals {
        let counts = (self.contents.messages.len() as u64, self.contents.bytes);
        totals_of(counts, messages, ids, state, &self.hosts, self.agents)
    }
}

/// What the partitions of a cluster have, read completely.
struct ClusterSource {
    logs: Vec<Log>,
    contents: Contents,
    states: Vec<MovedState>,
}

impl ClusterSource {
    fn read(disks: Vec<Arc<dyn Disk>>, seed: u64) -> Result<Self, MoveError> {
        let open = |disk: Arc<dyn Disk>| Log::open(Arc::clone(&disk), StatePlace::in_partition(&disk, seed), seed);
        let logs: Vec<Log> = disks.into_iter().map(open).collect::<Result<_, _>>()?;
        let states: Vec<MovedState> = logs.iter().map(|log| log.state.clone()).collect();
        let all = MovedState::joined(&states, |_, _, before| before);
        let contents = Contents::of(&logs, |number, message, _| {
            let agents = [principal_of(&message.from.name), principal_of(&message.mailbox)];
            let has_ended = |agent: &&str| message.seq < states[number].ended_before(&all, agent);
            if agents.iter().any(has_ended) { Verdict::LeaveOut } else { Verdict::Keep(0) }
        })?;
        contents.check_ids()?;
        Ok(Self { logs, contents, states })
    }

    fn plan(&self) -> LogPlan<'_> {
        plan::to_folder(&self.contents, &self.states, limits())
    }
}

/// Moves the data of a cluster into a folder that is empty or does not exist yet.
pub async fn to_folder(to: &Path, options: MoveOptions) -> Result<MoveReport, MoveError> {
    let name = options.cluster_name();
    let marked = options.cluster.marked_identity().await?;
    let marked = marked.ok_or_else(|| MoveError::NoCluster { name: options.name.clone() })?;
    let mut source = ClusterSide { cluster: options.cluster.clone(), name, marked };
    let not_empty = || MoveError::NotEmpty { place: sides::name_of(to) };
    let refused = |mark: &MoveMark| MoveError::Marked { place: options.cluster_name(), mark: mark.clone() };
    let is_free = sides::is_free(to).map_err(|source| MoveError::Io { what: "list the folder", source })?;
    let existing = if is_free { None } else { Folder::open(to)? };
    let is_same = |mark: &MoveMark| {
        let theirs = existing.as_ref().and_then(|folder| folder.mark.as_ref());
        theirs.is_some_and(|theirs| theirs.id == mark.id && theirs.state == MoveState::Arriving)
    };
    match &source.marked.mark {
        None if !is_free => return Err(not_empty()),
        Some(mark) if mark.state == MoveState::Arriving => return Err(refused(mark)),
        Some(mark) if is_same(mark) => {}
        Some(mark) if mark.state == MoveState::Left => return Err(refused(mark)),
        Some(mark) if mark.other != sides::name_of(to) => return Err(refused(mark)),
        Some(_) if !is_free => return Err(not_empty()),
        _ => {}
    }
    if let (Some(mark), Some(mut folder)) = (&source.marked.mark, existing)
        && mark.state == MoveState::Left
    {
        folder.copies()?;
        folder.set_mark(None)?;
        return Ok(MoveReport { was_complete: true, ..MoveReport::default() });
    }
    source.check_no_broker().await?;
    if options.dry_run {
        return to_folder_dry(source, &options).await;
    }
    let was_marked = source.marked.mark.is_some();
    let id = source.marked.mark.as_ref().map_or_else(new_move, |mark| mark.id.clone());
    if !was_marked {
        source.set_mark(Some(mark(&id, MoveState::Leaving, sides::name_of(to)))).await?;
    }
    let opened = open_target(&source, to, &id, not_empty).await;
    let read = match &opened {
        Ok(folder) => claim_source(&source, folder, &options).await.map_err(Some),
        Err(_) => Err(None),
    };
    let (folder, (claimed, read)) = match (opened, read) {
        (Ok(folder), Ok(read)) => (folder, read),
        (opened, refused) => {
            // The target has no message yet, and the cluster goes on as before.
            if !was_marked {
                source.set_mark(None).await?;
            }
            return Err(match (opened, refused.err().flatten()) {
                (Ok(folder), Some(error)) => {
                    if !was_marked {
                        folder.undo()?;
                    }
                    error
                }
                (Err(error), _) => error,
                (Ok(_), None) => MoveError::Panicked,
            });
        }
    };
    let mut report =
        MoveReport { left_out: read.contents.left_out + read.contents.unreadable, ..MoveReport::default() };
    let mut folder = folder;
    let storage = source.cluster.host_storage(source.identity()).await?;
    let agents = source.cluster.agents_known().await?;
    drop(source.cluster.agents(AgentsFolder::new(to)).await?);
    let (disk, path, identity) = (Arc::clone(&folder.disk), folder.path.clone(), folder.identity.clone());
    let (written, source_totals, target_totals) = blocking(move |_| {
        let hosts = Hosts::read(&*storage)?;
        let plan = read.plan();
        let open = || Log::open(Arc::clone(&disk) as Arc<dyn Disk>, StatePlace::in_folder(&path), identity.seed);
        let written = copy(&read.logs, &plan, &open()?)?;
        let found = verify(&plan, open()?)?;
        let files = ManifestFiles::open(path.join(HOSTS), identity.seed);
        let files = files.map_err(|source| MoveError::Io { what: "write the directory of hosts", source })?;
        hosts.write(&files)?;
        let found_hosts = hosts.verify(&files)?;
        let counts = (read.contents.messages.len() as u64, read.contents.bytes);
        let digest = LogPlan::digest(std::slice::from_ref(&plan));
        let source_totals = totals_of(counts, digest, &plan.ids, &plan.state, &hosts, agents);
        let agents = AgentsFolder::new(&path).list()?.len();
        Ok((written, source_totals, totals(&[found], &plan.ids, &plan.state, &found_hosts, agents)))
    })
    .await?;
    (report.source, report.target, report.written) = (source_totals, Some(target_totals), written);
    report.check()?;
    claimed.check()?;
    source.set_mark(Some(mark(&id, MoveState::Left, sides::name_of(to)))).await?;
    claimed.release().await;
    folder.copies()?;
    folder.set_mark(None)?;
    Ok(report)
}

/// Opens the target of a marked cluster.
async fn open_target(
    source: &ClusterSide,
    to: &Path,
    id: &str,
    not_empty: impl Fn() -> MoveError,
) -> Result<Folder, MoveError> {
    // A broker may have started just before the mark.
    source.check_no_broker().await?;
    let ClusterIdentity { id: broker, seed, .. } = source.identity().clone();
    let identity = Identity { id: broker, seed };
    let arriving = mark(id, MoveState::Arriving, source.name.clone());
    let folder = Folder::create(to, &identity, &arriving)?.ok_or_else(&not_empty)?;
    match folder.identity == identity && folder.mark == Some(arriving) {
        true => Ok(folder),
        false => Err(not_empty()),
    }
}

/// Claims and reads a marked cluster.
async fn claim_source(
    source: &ClusterSide,
    folder: &Folder,
    options: &MoveOptions,
) -> Result<(Claimed, ClusterSource), MoveError> {
    let copies = Arc::new(folder.copies()?);
    options.say(format!("claiming and reading the partitions of {}", source.name));
    let mut claimed = source.claim(&folder.identity.id, copies).await?;
    let (partitions, seed) = (source.identity().partitions, folder.identity.seed);
    let disks: Vec<Arc<dyn Disk>> = partitions.all().map(|at| claimed.disk(at)).collect::<Result<_, _>>()?;
    let read = blocking(move |_| ClusterSource::read(disks, seed)).await;
    let checked = read.and_then(|read| {
        read.logs.iter().try_for_each(|log| options.check(log))?;
        options.check_contents(&read.contents)?;
        Ok(read)
    });
    match checked {
        Ok(read) => Ok((claimed, read)),
        Err(error) => {
            claimed.release().await;
            Err(error)
        }
    }
}

/// Counts what a cluster has, without claiming or marking it.
async fn to_folder_dry(source: ClusterSide, options: &MoveOptions) -> Result<MoveReport, MoveError> {
    let temporary = std::env::temp_dir().join(format!("toolbus-migrate-{}", uuid::Uuid::new_v4()));
    let storage = source.cluster.host_storage(source.identity()).await?;
    let agents = source.cluster.agents_known().await?;
    let seed = source.identity().seed;
    let folder = temporary.clone();
    let read = blocking(move |runtime| {
        let copies = sides::Copies::in_folder(folder);
        let partitions = source.identity().partitions;
        let disks = partitions.all().map(|at| source.read(at, &copies, runtime)).collect::<Result<_, _>>();
        let read = disks.and_then(|disks| ClusterSource::read(disks, seed));
        let hosts = Hosts::read(&*storage);
        let removed = copies.remove_all();
        let (read, hosts) = (read?, hosts?);
        removed.map(|()| (read, hosts))
    });
    let (read, hosts) = read.await?;
    read.logs.iter().try_for_each(|log| options.check(log))?;
    options.check_contents(&read.contents)?;
    let plan = read.plan();
    let counts = (read.contents.messages.len() as u64, read.contents.bytes);
    let digest = LogPlan::digest(std::slice::from_ref(&plan));
    let totals = totals_of(counts, digest, &plan.ids, &plan.state, &hosts, agents);
    let left_out = read.contents.left_out + read.contents.unreadable;
    Ok(MoveReport { source: totals, left_out, ..MoveReport::default() })
}

fn totals(
    found: &[Found],
    ids: &[toolbus_engine::Settled],
    state: &MovedState,
    hosts: &Hosts,
    agents: usize,
) -> Totals {
    let counts = found.iter().fold((0, 0), |(messages, bytes), log| (messages + log.messages, bytes + log.bytes));
    let digest = digest::of_messages(found.iter().flat_map(|log| log.hashes.iter().copied()));
    totals_of(counts, digest, ids, state, hosts, agents)
}

fn totals_of(
    (messages, bytes): (u64, u64),
    digest: u128,
    ids: &[toolbus_engine::Settled],
    state: &MovedState,
    hosts: &Hosts,
    agents: usize,
) -> Totals {
    Totals {
        messages,
        bytes,
        ids: ids.len() as u64,
        claims: state.claims() as u64,
        fences: state.fences() as u64,
        generations: state.generations() as u64,
        agents: agents as u64,
        hosts: hosts.manifests.len() as u64,
        names: hosts.owners.names() as u64,
        checksum: digest.wrapping_add(digest::of_ids(ids)),
    }
}

/// Gives up a move: the source can be used again. What was copied stays at the target, where it can't be used. A finished move
/// is given up only with `force`.
pub async fn abandon(from: Option<&Path>, options: &MoveOptions, force: bool) -> Result<(), MoveError> {
    let check = |place: String, mark: Option<&MoveMark>| match mark {
        None => Err(MoveError::NoMove { place }),
        Some(mark) if mark.state == MoveState::Arriving => Err(MoveError::Marked { place, mark: mark.clone() }),
        Some(mark) if mark.state == MoveState::Left && !force => Err(MoveError::Finished { place, mark: mark.clone() }),
        Some(_) => Ok(()),
    };
    match from {
        Some(from) => {
            let mut folder = Folder::open(from)?.ok_or_else(|| MoveError::NoData { folder: from.to_owned() })?;
            check(folder.name(), folder.mark.as_ref())?;
            folder.copies()?;
            folder.set_mark(None)
        }
        None => {
            let marked = options.cluster.marked_identity().await?;
            let marked = marked.ok_or_else(|| MoveError::NoCluster { name: options.name.clone() })?;
            let name = options.cluster_name();
            let mut source = ClusterSide { cluster: options.cluster.clone(), name, marked };
            check(source.name.clone(), source.marked.mark.as_ref())?;
            source.set_mark(None).await
        }
    }
}

#[cfg(test)]
#[path = "moves_tests.rs"]
mod tests;
