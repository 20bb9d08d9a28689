//! Why data can't be moved.

use std::io;
use std::path::PathBuf;
use toolbus_broker::code_of_mark;
use toolbus_cluster::FollowError;
use toolbus_identity::RegistryError;
use toolbus_jetstream::{ClusterError, IdentityError};
use toolbus_protocol::ErrorCode;
use toolbus_store::{OpenError, StoreError};
use toolbus_wal::MoveMark;

/// Why a move could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// A data folder can't be opened.
    #[error("can't open the data folder: {0}")]
    Folder(#[from] OpenError),
    /// There is no broker's data in the folder.
    #[error("{} has no data of a broker", folder.display())]
    NoData {
        /// The folder.
        folder: PathBuf,
    },
    /// There is no such cluster.
    #[error("there is no cluster {name} on these NATS servers")]
    NoCluster {
        /// Its name.
        name: String,
    },
    /// One side takes part in a move, in a way that does not fit.
    #[error("{place} {mark}")]
    Marked {
        /// The side, as messages call it.
        place: String,
        /// Its mark.
        mark: MoveMark,
    },
    /// The target is in use.
    #[error("{place} has data already")]
    NotEmpty {
        /// The target, as messages call it.
        place: String,
    },
    /// A broker is running.
    #[error("{0}")]
    InUse(String),
    /// A part of a log can't be read.
    #[error(
        "the message log can't be read completely: damaged ranges: {ranges} ({bytes} bytes), missing segments: \
         {missing_segments}, records of an unknown format: {unknown}"
    )]
    Damaged {
        /// Number of damaged ranges.
        ranges: u64,
        /// Their bytes.
        bytes: u64,
        /// Number of missing segments.
        missing_segments: u32,
        /// Number of records of an unknown format.
        unknown: u64,
    },
    /// A state file can't be read.
    #[error("can't read {0}")]
    State(io::Error),
    /// A file of the host directory is damaged.
    #[error("{} was set aside because it is damaged", file.display())]
    DamagedHosts {
        /// The file.
        file: PathBuf,
    },
    /// A state file can't be written.
    #[error("can't write claims and generations: {0}")]
    WriteState(io::Error),
    /// A file or the directory of hosts can't be used.
    #[error("can't {what}: {source}")]
    Io {
        /// The operation, as a verb phrase.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A message log failed.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The source has other contents than before.
    #[error("the data changed while it was copied")]
    Changed,
    /// The copy is not equal.
    #[error("the {what} of the copy differ from those of the source")]
    Unequal {
        /// What differs.
        what: &'static str,
    },
    /// Two messages can't be in one log.
    #[error("two messages in the mailbox {mailbox} have the same id, a reply and another one")]
    SameId {
        /// The mailbox.
        mailbox: String,
    },
    /// Sequence numbers don't fit.
    #[error("the folder has counted too many messages for a cluster")]
    TooManyMessages,
    /// A partition was taken over by a broker.
    #[error("another broker has taken over a partition of the cluster")]
    Lost,
    /// A partition can't be read.
    #[error("can't read a partition of the cluster: {0}")]
    Follow(#[from] FollowError),
    /// The cluster can't be used.
    #[error("{0}")]
    Cluster(#[from] ClusterError),
    /// The agents can't be read or written.
    #[error("{0}")]
    Agents(#[from] RegistryError),
    /// There is no move to give up.
    #[error("{place} takes part in no move")]
    NoMove {
        /// The source, as messages call it.
        place: String,
    },
    /// The move is finished.
    #[error("{place} {mark}, and the move is finished")]
    Finished {
        /// The source, as messages call it.
        place: String,
        /// Its mark.
        mark: MoveMark,
    },
    /// A part of the move ended by a bug.
    #[error("the move ended by a bug")]
    Panicked,
}

impl MoveError {
    /// The stable code.
    pub fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::Folder(OpenError::Locked { .. }) | Self::InUse(_) | Self::Lost | Self::Changed => {
                ErrorCode::MoveInUse
            }
            Self::Folder(OpenError::UnknownFormat { .. }) => ErrorCode::OtherFormat,
            Self::Folder(OpenError::DamagedIdentity { .. } | OpenError::MissingIdentity { .. }) => {
                ErrorCode::DamagedIdentity
            }
            Self::Folder(OpenError::Moved { mark, .. }) | Self::Marked { mark, .. } | Self::Finished { mark, .. } => {
                code_of_mark(mark)
            }
            Self::NotEmpty { .. } => ErrorCode::MoveTargetInUse,
            Self::Damaged { .. } | Self::State(_) | Self::DamagedHosts { .. } => ErrorCode::MoveSourceDamaged,
            Self::Follow(FollowError::Entry { .. } | FollowError::Gap { .. }) => ErrorCode::MoveSourceDamaged,
            Self::Follow(FollowError::Log(_)) => ErrorCode::ClusterUnreachable,
            Self::Unequal { .. } => ErrorCode::MoveUnequal,
            Self::SameId { .. } => ErrorCode::IdConflict,
            Self::Cluster(ClusterError::Identity(IdentityError::Moved(mark))) => code_of_mark(mark),
            Self::Cluster(ClusterError::Identity(_)) => ErrorCode::OtherCluster,
            Self::Cluster(ClusterError::Unmet(_)) => ErrorCode::ClusterUnsafe,
            Self::Cluster(_) => ErrorCode::ClusterUnreachable,
            Self::Store(StoreError::Io { .. }) => ErrorCode::StorageFailed,
            _ => return None,
        })
    }

    /// How to correct it, if the code does not say it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoData { .. } => Some("--from takes the folder that the broker prints at start as `data in`"),
            Self::NoCluster { .. } => Some("give the name with which its brokers are started with --cluster"),
            Self::NoMove { .. } => Some("it can be started as it is"),
            Self::Finished { .. } => Some(
                "move the data back with --from and --to exchanged. If the other side is lost and was not used since, \
                 --abandon --force makes this side usable again, with the data as it was",
            ),
            Self::SameId { .. } => {
                Some("start the brokers, let the owner of the mailbox take one of them, and run the command again")
            }
            Self::DamagedHosts { .. } => {
                Some("its host announces again when it connects: remove the file to go on without it")
            }
            Self::Store(StoreError::Full) => {
                Some("make room, then run the same command again; it goes on where it stopped")
            }
            _ => None,
        }
    }
}
