//! Appends entries as the owner of a partition: one at a time, each at the position behind the last one.

use crate::planted::{self, PlantedBug};
use crate::{Append, AppendError, Entry, ReplicatedLog};
use std::sync::Arc;
use toolbus_wal::ChecksumKey;

/// The end of a partition's log, as its owner sees it.
pub(crate) struct Writer {
    log: Arc<dyn ReplicatedLog>,
    key: ChecksumKey,
    epoch: u64,
    /// The sequence number of the last entry.
    last: u64,
    closed: Option<Closed>,
    /// More entries follow this one. Only a planted defect makes a difference of it.
    pub more_follow: bool,
    planted: Option<PlantedBug>,
}

/// Why a broker may not append to a partition any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The log continues with entries of another owner.
    #[error("another broker has taken the partition over")]
    Fenced,
    /// It is not known whether the last entry is in the log, so none may follow it.
    #[error("the log did not answer in time")]
    Unresolved,
}

/// Why an entry was not appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteError {
    /// The log has no room; the partition stays open.
    Full,
    Closed(Closed),
}

impl Writer {
    pub fn new(
        log: Arc<dyn ReplicatedLog>,
        key: ChecksumKey,
        epoch: u64,
        last: u64,
        planted: Option<PlantedBug>,
    ) -> Self {
        Self { log, key, epoch, last, closed: None, more_follow: false, planted }
    }

    pub fn log(&self) -> &Arc<dyn ReplicatedLog> {
        &self.log
    }

    /// Appends an entry and returns its sequence number. Returns only when the outcome is known, or after the partition was
    /// closed because it can't be found out.
    pub fn append(&mut self, entry: &Entry) -> Result<u64, WriteError> {
        if let Some(closed) = self.closed {
            return Err(WriteError::Closed(closed));
        }
        let sequence = self.last + 1;
        let mut append = Append {
            id: format!("{}.{sequence}", self.epoch),
            expected_last: (!self.has(PlantedBug::NoExpectedSequence)).then_some(self.last),
            payload: entry.encode(self.key, self.epoch),
        };
        // Whether an earlier attempt may have reached the log.
        let mut is_sent = false;
        for attempt in 1.. {
            match self.log.append(&append) {
                Ok(number) if number == sequence || self.has(PlantedBug::NoExpectedSequence) => {
                    return Ok(self.appended(number));
                }
                Err(_) if self.more_follow && self.has(PlantedBug::TwoOutstanding) => {
                    return Ok(self.appended(sequence));
                }
                // The id contains the position, so the log can't have it elsewhere.
                Ok(_) => return self.close(Closed::Fenced),
                Err(AppendError::Full) if !is_sent => return Err(WriteError::Full),
                Err(AppendError::Rejected) if !is_sent => return self.close(Closed::Fenced),
                // The log forgets ids after a while, so the message at this position may be the one that was sent before.
                Err(AppendError::Rejected) => match self.is_at(sequence, &append) {
                    Some(true) => return Ok(self.appended(sequence)),
                    Some(false) => return self.close(Closed::Fenced),
                    None => {}
                },
                Err(AppendError::Full) => {}
                Err(AppendError::Unknown(reason)) => {
                    tracing::debug!(sequence, attempt, reason, "an append was not answered");
                    is_sent = true;
                    if self.has(PlantedBug::SyncBeforeAck) {
                        return Ok(self.appended(sequence));
                    }
                }
            }
            if self.has(PlantedBug::NewIdOnResend) {
                append.id = format!("{}.{sequence}.{attempt}", self.epoch);
            }
            if !self.log.wait_to_resend(attempt) {
                break;
            }
        }
        self.close(Closed::Unresolved)
    }

    fn appended(&mut self, sequence: u64) -> u64 {
        self.last = sequence;
        sequence
    }

    fn close<T>(&mut self, why: Closed) -> Result<T, WriteError> {
        self.closed = Some(why);
        Err(WriteError::Closed(why))
    }

    /// Whether this message is the one at its position, or `None` if the log does not answer.
    fn is_at(&self, sequence: u64, append: &Append) -> Option<bool> {
        let mut found = false;
        self.log
            .read(sequence, sequence, &mut |id, payload| found = (id, &payload) == (sequence, &append.payload))
            .ok()?;
        Some(found && !self.has(PlantedBug::NewIdOnResend))
    }

    fn has(&self, bug: PlantedBug) -> bool {
        planted::has(self.planted, bug)
    }
}
