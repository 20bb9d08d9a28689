//! Takes a partition over.

use crate::writer::{Closed, WriteError, Writer};
use crate::{Entry, FollowError, Follower, ReplicatedLog, StreamDisk};
use std::sync::Arc;

/// How often a takeover tries to append its epoch behind a log that grows. The previous owner has lost its lease, so it
/// grows only for a moment.
const ATTEMPTS: u32 = 64;

/// Why a partition could not be taken over.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// The log could not be read or applied.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// An owner of this or a later epoch has appended.
    #[error("the partition has an owner of epoch {epoch}")]
    Superseded {
        /// The epoch of that owner.
        epoch: u64,
    },
    /// The log kept growing.
    #[error("the previous owner goes on appending")]
    Contended,
    /// The log has no room for the epoch.
    #[error("the log is full")]
    Full,
    /// It could not be found out whether the epoch was appended.
    #[error(transparent)]
    Closed(Closed),
}

/// Makes this broker the owner of a partition: applies the whole log, and appends the epoch right behind the last applied
/// entry. So no entry of the previous owner is missed, and its next append is rejected. Epochs in the log only grow, because
/// a broker that claimed a lower one sees the higher one before it appends.
pub fn take_over(log: Arc<dyn ReplicatedLog>, mut follower: Follower, epoch: u64) -> Result<StreamDisk, TakeoverError> {
    for _ in 0..ATTEMPTS {
        let last = follower.catch_up(&*log)?;
        if follower.epoch() >= epoch {
            return Err(TakeoverError::Superseded { epoch: follower.epoch() });
        }
        let mut writer = Writer::new(Arc::clone(&log), follower.key, epoch, last, follower.planted());
        match writer.append(&Entry::Epoch) {
            Ok(_) => return Ok(StreamDisk::new(writer, follower)),
            Err(WriteError::Closed(Closed::Fenced)) => {}
            Err(WriteError::Closed(closed)) => return Err(TakeoverError::Closed(closed)),
            Err(WriteError::Full) => return Err(TakeoverError::Full),
        }
    }
    Err(TakeoverError::Contended)
}
