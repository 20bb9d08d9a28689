//! From a cluster into a folder.

use super::{MoveOptions, blocking, limits, mark, new_move, totals, totals_of};
use crate::cluster_side::{Claimed, ClusterSide};
use crate::copy::{copy, verify};
use crate::error::MoveError;
use crate::hosts::Hosts;
use crate::plan::{self, LogPlan};
use crate::report::{MoveReport, Totals};
use crate::sides::{self, Folder, HOSTS};
use crate::survey::{Contents, Log, Verdict};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toolbus_base::principal_of;
use toolbus_broker::{HostStorage, ManifestFiles, MovedState, StatePlace};
use toolbus_identity::AgentsFolder;
use toolbus_jetstream::ClusterIdentity;
use toolbus_store::{Disk, FolderDisk, Identity};
use toolbus_wal::MoveState;

/// Moves the data of a cluster into a folder that is empty or does not exist yet.
pub async fn to_folder(to: &Path, options: MoveOptions) -> Result<MoveReport, MoveError> {
    let marked = options.cluster.marked_identity().await?;
    let marked = marked.ok_or_else(|| MoveError::NoCluster { name: options.name.clone() })?;
    let mut source = ClusterSide { cluster: options.cluster.clone(), name: options.cluster_name(), marked };
    if let Some(mut folder) = admitted(&source, to)? {
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
    let opened = match open_target(&source, to, &id).await {
        Ok(folder) => match claim_source(&source, &folder, &options).await {
            Ok((claimed, read)) => Ok((folder, claimed, read)),
            Err(error) if was_marked => Err(error),
            Err(error) => folder.undo().and(Err(error)),
        },
        Err(error) => Err(error),
    };
    let (mut folder, claimed, read) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            // The target has no message yet, and the cluster goes on as before.
            if !was_marked {
                source.set_mark(None).await?;
            }
            return Err(error);
        }
    };
    let left_out = read.contents.left_out + read.contents.unreadable;
    let filling = Filling {
        disk: Arc::clone(&folder.disk),
        path: folder.path.clone(),
        seed: folder.identity.seed,
        storage: source.cluster.host_storage(source.identity()).await?,
        agents: source.cluster.agents_known().await?,
    };
    drop(source.cluster.agents(AgentsFolder::new(to)).await?);
    let (written, here, there) = blocking(move |_| filling.fill(&read)).await?;
    let report = MoveReport { source: here, target: Some(there), left_out, written, was_complete: false };
    report.check()?;
    claimed.check()?;
    // From here on, the cluster is not used any more, and the folder not yet.
    source.set_mark(Some(mark(&id, MoveState::Left, sides::name_of(to)))).await?;
    claimed.release().await;
    folder.copies()?;
    folder.set_mark(None)?;
    Ok(report)
}

/// Fails unless a move between the two may begin or go on. Returns the folder if everything is there and the cluster has left.
fn admitted(source: &ClusterSide, to: &Path) -> Result<Option<Folder>, MoveError> {
    let not_empty = || Err(MoveError::NotEmpty { place: sides::name_of(to) });
    let is_free = sides::is_free(to).map_err(|source| MoveError::Io { what: "list the folder", source })?;
    let Some(mark) = &source.marked.mark else { return if is_free { Ok(None) } else { not_empty() } };
    let existing = if is_free { None } else { Folder::open(to)? };
    let theirs = existing.as_ref().and_then(|folder| folder.mark.as_ref());
    let is_same = theirs.is_some_and(|theirs| theirs.id == mark.id && theirs.state == MoveState::Arriving);
    let refused = Err(MoveError::Marked { place: source.name.clone(), mark: mark.clone() });
    match mark.state {
        MoveState::Left if is_same => Ok(existing),
        MoveState::Leaving if is_same => Ok(None),
        MoveState::Arriving | MoveState::Left => refused,
        // To another folder.
        MoveState::Leaving if mark.other != sides::name_of(to) => refused,
        MoveState::Leaving if is_free => Ok(None),
        MoveState::Leaving => not_empty(),
    }
}

/// A marked folder, to be filled.
struct Filling {
    disk: Arc<FolderDisk>,
    path: PathBuf,
    seed: u64,
    /// The hosts and the number of agents of the source.
    storage: Box<dyn HostStorage>,
    agents: usize,
}

impl Filling {
    /// Writes what is missing, and compares. Returns the number of messages that were written, and the totals of source and
    /// target.
    fn fill(self, read: &ClusterSource) -> Result<(u64, Totals, Totals), MoveError> {
        let Self { disk, path, seed, storage, agents } = self;
        let hosts = Hosts::read(&*storage)?;
        let plan = read.plan();
        let open = || Log::open(Arc::clone(&disk) as Arc<dyn Disk>, StatePlace::in_folder(&path), seed);
        let written = copy(&read.logs, &plan, &open()?)?;
        let found = verify(&plan, open()?)?;
        let files = ManifestFiles::open(path.join(HOSTS), seed);
        let files = files.map_err(|source| MoveError::Io { what: "write the directory of hosts", source })?;
        hosts.write(&files)?;
        let found_hosts = hosts.verify(&files)?;
        let here = read.totals(&plan, &hosts, agents);
        let agents = AgentsFolder::new(&path).list()?.len();
        Ok((written, here, totals(&[found], &plan.ids, &plan.state, &found_hosts, agents)))
    }
}

/// Opens the target of a marked cluster.
async fn open_target(source: &ClusterSide, to: &Path, id: &str) -> Result<Folder, MoveError> {
    let not_empty = || MoveError::NotEmpty { place: sides::name_of(to) };
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
    let totals = read.totals(&read.plan(), &hosts, agents);
    let left_out = read.contents.left_out + read.contents.unreadable;
    Ok(MoveReport { source: totals, left_out, ..MoveReport::default() })
}

/// What the partitions of a cluster have, read completely.
pub(super) struct ClusterSource {
    pub(super) logs: Vec<Log>,
    pub(super) contents: Contents,
    states: Vec<MovedState>,
}

impl ClusterSource {
    pub(super) fn read(disks: Vec<Arc<dyn Disk>>, seed: u64) -> Result<Self, MoveError> {
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

    pub(super) fn plan(&self) -> LogPlan<'_> {
        plan::to_folder(&self.contents, &self.states, limits())
    }

    fn totals(&self, plan: &LogPlan<'_>, hosts: &Hosts, agents: usize) -> Totals {
        let counts = (self.contents.messages.len() as u64, self.contents.bytes);
        let digest = LogPlan::digest(std::slice::from_ref(plan));
        totals_of(counts, digest, &plan.ids, &plan.state, hosts, agents)
    }
}
