//! How a journal is kept, and what can go wrong with it.

use crate::book::{Limits, Refused};
use crate::log::LogOptions;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use toolbus_wal::OpenError;

#[derive(Debug, Clone)]
pub struct JournalOptions {
    pub log: LogOptions,
    /// What is remembered, and how long.
    pub limits: Limits,
    /// Past this size the oldest part of the journal goes, but for what is still needed.
    pub max_bytes: u64,
    /// Results wait for the disk before anybody is told, and not only for the page cache.
    pub sync_results: bool,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self { log: LogOptions::default(), limits: Limits::default(), max_bytes: 1 << 30, sync_results: false }
    }
}

impl JournalOptions {
    /// How long an answer is kept for a caller that asks again, and how large the journal may become.
    pub fn keeping(keep: Duration, max_bytes: u64) -> Self {
        let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
        // Whole segments go, so there have to be several of them.
        let segment_bytes = (max_bytes / 8).clamp(64 << 10, LogOptions::default().segment_bytes);
        Self {
            log: LogOptions { segment_bytes, ..LogOptions::default() },
            limits: Limits { keep_ms, ..Limits::default() },
            max_bytes,
            ..Self::default()
        }
    }
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    #[error("can't open the call journal: {0}")]
    Open(Arc<OpenError>),
    #[error("can't use the folder of the call journal: {0}")]
    Folder(Arc<io::Error>),
    /// From then on nothing is taken any more: what is on disk is not known.
    #[error("can't write the call journal: {0}")]
    Write(Arc<io::Error>),
    #[error("can't read the call journal: {0}")]
    Read(Arc<io::Error>),
    #[error("can't start the journal's thread: {0}")]
    Thread(Arc<io::Error>),
    #[error("the call journal is closed")]
    Closed,
    #[error("the call journal keeps {most} tasks already")]
    TooManyTasks { most: usize },
    /// About one entry; others are taken as before.
    #[error("{bytes} bytes are more than the call journal keeps of one call ({most} bytes)")]
    TooLarge { bytes: usize, most: usize },
    /// What a caller may have been told already stays the answer.
    #[error("the call was answered before")]
    Answered,
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl JournalError {
    /// Whether it is about one entry only, and others can be written.
    pub fn is_about_one_call(&self) -> bool {
        matches!(self, Self::TooManyTasks { .. } | Self::TooLarge { .. } | Self::Answered | Self::Refused(_))
    }
}
