//! Configuration and errors of the journal.

use crate::call_index::{Limits, Refused};
use crate::log::LogOptions;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use toolbus_wal::OpenError;

/// Configuration of a [`crate::Journal`].
#[derive(Debug, Clone)]
pub struct JournalOptions {
    /// Configuration of the log.
    pub log: LogOptions,
    /// Retention limits.
    pub limits: Limits,
    /// Size in bytes past which the oldest segments are compacted and the answered calls in them forgotten.
    pub max_bytes: u64,
    /// Age in milliseconds of its newest entry past which a segment is compacted; the retention time by default.
    pub compact_after_ms: Option<u64>,
    /// Whether answers must be durable, and not only in the page cache, before they are sent.
    pub sync_results: bool,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            log: LogOptions::default(),
            limits: Limits::default(),
            max_bytes: 1 << 30,
            compact_after_ms: None,
            sync_results: false,
        }
    }
}

impl JournalOptions {
    /// Default options with the retention time of answers and the maximum size of the journal.
    pub fn keeping(keep: Duration, max_bytes: u64) -> Self {
        let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
        // Only whole segments are removed, so the journal needs several of them.
        let segment_bytes = (max_bytes / 8).clamp(64 << 10, LogOptions::default().segment_bytes);
        Self {
            log: LogOptions { segment_bytes, ..LogOptions::default() },
            limits: Limits { keep_ms, ..Limits::default() },
            max_bytes,
            ..Self::default()
        }
    }
}

/// Why an operation of the journal failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// The folder can't be opened as a journal.
    #[error("can't open the call journal: {0}")]
    Open(#[source] Arc<OpenError>),
    /// The folder can't be created or made private.
    #[error("can't use the folder of the call journal: {0}")]
    Folder(#[source] Arc<io::Error>),
    /// The state on disk is unknown. The journal rejects all writes from now on.
    #[error("can't write the call journal: {0}")]
    Write(Arc<io::Error>),
    /// The log or an entry can't be read.
    #[error("can't read the call journal: {0}")]
    Read(Arc<io::Error>),
    /// The sync thread can't be started.
    #[error("can't start the journal's thread: {0}")]
    Thread(Arc<io::Error>),
    /// The journal was closed before the entry was durable.
    #[error("the call journal is closed")]
    Closed,
    /// The limit on unexpired tasks is reached.
    #[error("task limit of the call journal reached ({most} tasks)")]
    TooManyTasks {
        /// The limit.
        most: usize,
    },
    /// The entry is too large; other entries are still accepted.
    #[error("entry of {bytes} bytes exceeds the limit of the call journal ({most} bytes)")]
    TooLarge {
        /// The size of the entry.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// The call has another answer already, which may have been sent.
    #[error("the call was already answered")]
    Answered,
    /// The id belongs to another call.
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl JournalError {
    /// Whether only this entry was rejected, and others can be written.
    pub fn is_about_one_call(&self) -> bool {
        matches!(self, Self::TooManyTasks { .. } | Self::TooLarge { .. } | Self::Answered | Self::Refused(_))
    }
}
