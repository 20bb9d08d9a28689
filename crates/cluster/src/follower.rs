//! Applies a partition's log to the mirror, a local copy of its files.

use crate::planted::{self, PlantedBug};
use crate::{Entry, EntryError, LogError, ReplicatedLog};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use toolbus_wal::{ChecksumKey, Disk};

/// The state of a partition's files after the entries that were applied so far.
pub struct Follower {
    pub(crate) mirror: Arc<dyn Disk>,
    pub(crate) key: ChecksumKey,
    pub(crate) files: BTreeMap<Arc<str>, FollowedFile>,
    /// The last applied sequence number. `None` before the first one, which need not be 1.
    applied: Option<u64>,
    /// The highest epoch of an entry.
    epoch: u64,
    planted: Option<PlantedBug>,
}

/// A file of the log.
pub(crate) struct FollowedFile {
    /// Sequence number of its first entry. Everything before the first entry of the oldest file can be purged.
    pub first: u64,
    pub length: u64,
}

/// Why an entry could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The log could not be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A message of the log is not an entry.
    #[error("message {sequence} of the log {source}")]
    Entry {
        /// The message.
        sequence: u64,
        /// What is wrong with it.
        source: EntryError,
    },
    /// Messages are missing.
    #[error("messages are missing from the log before {sequence}")]
    Gap {
        /// The first message after the gap.
        sequence: u64,
    },
    /// The mirror could not be written.
    #[error("can't write the local copy of the log: {0}")]
    Mirror(#[from] io::Error),
}

impl Follower {
    /// Begins with an empty mirror. The key is the secret of the cluster.
    pub fn new(mirror: Arc<dyn Disk>, key: ChecksumKey) -> Self {
        Self { mirror, key, files: BTreeMap::new(), applied: None, epoch: 0, planted: None }
    }

    /// Plants a defect. Has no effect without the feature `planted`.
    pub fn with_planted(self, planted: Option<PlantedBug>) -> Self {
        Self { planted, ..self }
    }

    pub(crate) fn planted(&self) -> Option<PlantedBug> {
        self.planted
    }

    /// The highest epoch of the entries so far.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Applies everything that the log has, and returns the number of its last message.
    pub fn catch_up(&mut self, log: &dyn ReplicatedLog) -> Result<u64, FollowError> {
        let bounds = log.bounds()?;
        // Messages that were purged are not needed by a mirror that has not begun.
        let from = self.applied.map_or(bounds.first, |applied| applied + 1);
        if from <= bounds.last {
            let mut outcome = Ok(());
            log.read(from, bounds.last, &mut |sequence, message| {
                if outcome.is_ok() {
                    outcome = self.apply(sequence, message);
                }
            })?;
            outcome?;
        }
        if self.applied.is_some_and(|applied| applied < bounds.last) || from > bounds.last + 1 {
            return Err(FollowError::Gap { sequence: bounds.last + 1 });
        }
        self.applied = Some(bounds.last);
        Ok(bounds.last)
    }

    /// Applies the next message.
    pub fn apply(&mut self, sequence: u64, message: Bytes) -> Result<(), FollowError> {
        if self.applied.is_some_and(|applied| sequence != applied + 1) {
            return Err(FollowError::Gap { sequence });
        }
        let decoded = Entry::decode(self.key, message);
        let (epoch, entry) = decoded.map_err(|source| FollowError::Entry { sequence, source })?;
        self.applied = Some(sequence);
        // The log rejects appends of deposed owners. Should one slip in during an election of the log, it is void: its author
        // got no answer for it, or will be closed by the next one.
        if epoch < self.epoch && !planted::has(self.planted, PlantedBug::NoEpochFilter) {
            tracing::warn!(sequence, epoch, current = self.epoch, "ignoring an entry of a deposed owner");
            return Ok(());
        }
        self.epoch = self.epoch.max(epoch);
        if planted::has(self.planted, PlantedBug::ReplaySkips) && sequence.is_multiple_of(7) {
            return Ok(());
        }
        match entry {
            Entry::Epoch => Ok(()),
            Entry::Append { file, offset, bytes } => self.append(sequence, file, offset, &bytes),
            Entry::Truncate { file, length } => self.truncate(sequence, &file, length),
        }
    }

    fn append(&mut self, sequence: u64, name: Arc<str>, offset: u64, bytes: &[u8]) -> Result<(), FollowError> {
        let length = self.files.get(&name).map_or(0, |file| file.length);
        if offset != length {
            return Err(FollowError::Gap { sequence });
        }
        let is_new = !self.files.contains_key(&name);
        let file = if is_new { self.mirror.create(&name)? } else { self.mirror.open(&name)? };
        file.append(bytes)?;
        self.files.entry(name).or_insert(FollowedFile { first: sequence, length: 0 }).length += bytes.len() as u64;
        Ok(())
    }

    fn truncate(&mut self, sequence: u64, name: &str, length: u64) -> Result<(), FollowError> {
        let file = self.files.get_mut(name).filter(|file| length <= file.length);
        let file = file.ok_or(FollowError::Gap { sequence })?;
        self.mirror.open(name)?.truncate(length)?;
        file.length = length;
        Ok(())
    }
}
