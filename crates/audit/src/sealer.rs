//! Seals a log: decides when, and keeps the key file up to date on a thread of its own, because calls wait for the
//! thread that writes lines.
//!
//! The key on disk is replaced only after the seal is durable. A crash in between leaves a key that is behind the log,
//! and [`Sealer::open`] advances it. A key ahead of the log therefore means that sealed lines were removed.

use crate::error::AuditError;
use crate::key_file::{KEY_FILE, KeyFile};
use crate::line::{ChainPosition, Line};
use crate::log::AuditOptions;
use crate::seal::SealingKey;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub struct Sealer {
    /// Of the next seal.
    key: SealingKey,
    /// Number and time of the last seal's line.
    sealed_seq: u64,
    sealed_at: Instant,
    max_lines: u64,
    interval: Duration,
    /// Index of the key on disk.
    saved: Arc<AtomicU64>,
    keys: Option<SyncSender<SealingKey>>,
    saver: Option<JoinHandle<()>>,
}

impl Sealer {
    /// Continues behind the seals that the log has. Returns `None` if the log is not sealed.
    pub fn open(folder: &Path, seals: &Seals, options: &AuditOptions) -> Result<Option<Self>, AuditError> {
        let damaged = |what: &str| AuditError::damaged(KEY_FILE, what);
        let Some((file, mut key)) = KeyFile::open(folder)? else {
            return if seals.next > 0 { Err(damaged("it is missing, but the log is sealed")) } else { Ok(None) };
        };
        let saved = Arc::new(AtomicU64::new(key.index));
        if let Some(last) = seals.last.as_ref().filter(|last| last.index >= key.index)
            && !(key.advance_to(last.index) && key.matches(last))
        {
            return Err(damaged("the last seal of the log is not one of its key"));
        }
        if seals.next > key.index && !key.advance_to(seals.next) {
            return Err(damaged("the log names a seal beyond all limits"));
        }
        let (keys, saver) =
            start_saver(file, &saved).map_err(AuditError::io("start the thread of the sealing key for", folder))?;
        let (max_lines, interval) = (options.seal_lines, options.seal_interval);
        let (sealed_seq, sealed_at) = (seals.last.as_ref().map_or(0, |last| last.seq), Instant::now());
        Ok(Some(Self { key, sealed_seq, sealed_at, max_lines, interval, saved, keys: Some(keys), saver: Some(saver) }))
    }

    /// Index of the next seal.
    pub fn next_index(&self) -> u64 {
        self.key.index
    }

    pub fn is_due(&self, seq: u64) -> bool {
        let unsealed = seq - self.sealed_seq;
        unsealed > 0 && (unsealed >= self.max_lines || self.sealed_at.elapsed() >= self.interval)
    }

    /// Appends a seal to `text`, unless the last line is one.
    pub fn seal(&mut self, position: &mut ChainPosition, time: &str, text: &mut String) {
        if position.seq == self.sealed_seq {
            return;
        }
        position.append(&self.key.seal(position, time), time, text);
        self.key.evolve();
        (self.sealed_seq, self.sealed_at) = (position.seq, Instant::now());
    }

    /// Has the current key written to disk, without waiting. All seals up to here must be durable. If an earlier key is
    /// still being written, or writing failed, a later call tries again.
    pub fn save_key(&self) {
        if let Some(keys) = self.keys.as_ref().filter(|_| !self.is_saved()) {
            keys.try_send(self.key.clone()).ok();
        }
    }

    /// Like [`Self::save_key`], but waits for an earlier key. Dropping the sealer waits until the current one is on disk or
    /// can't be written.
    pub fn save_last_key(&self) {
        if let Some(keys) = self.keys.as_ref().filter(|_| !self.is_saved()) {
            keys.send(self.key.clone()).ok();
        }
    }

    fn is_saved(&self) -> bool {
        self.saved.load(Ordering::Acquire) >= self.key.index
    }
}

impl Drop for Sealer {
    fn drop(&mut self) {
        drop(self.keys.take());
        if let Some(saver) = self.saver.take() {
            saver.join().ok();
        }
    }
}

/// The seals at the end of a log.
#[derive(Debug, Default)]
pub struct Seals {
    /// Index of the next one.
    pub next: u64,
    /// The last one, if it is in the last file.
    pub last: Option<Line>,
}

impl Seals {
    pub fn of(lines: &[Line]) -> Self {
        let last = lines.iter().rfind(|line| line.is_seal()).cloned();
        let continued = lines.first().and_then(|first| first.seals);
        Self { next: last.as_ref().map_or(continued.unwrap_or(0), |last| last.index.saturating_add(1)), last }
    }
}

type Saver = (SyncSender<SealingKey>, JoinHandle<()>);

fn start_saver(file: KeyFile, saved: &Arc<AtomicU64>) -> io::Result<Saver> {
    let (keys, received) = sync_channel(1);
    let saved = Arc::clone(saved);
    let thread = thread::Builder::new().name("audit-key".to_owned());
    Ok((keys, thread.spawn(move || save_keys(file, &received, &saved))?))
}

/// The thread of the key file. Lines are written and sealed also while the key can't be replaced; they are protected
/// once it is.
fn save_keys(mut file: KeyFile, keys: &Receiver<SealingKey>, saved: &AtomicU64) {
    let mut is_failing = false;
    for key in keys.iter() {
        // The same key was sent again while it was written.
        if key.index <= saved.load(Ordering::Acquire) {
            continue;
        }
        match file.replace(&key) {
            Ok(()) => {
                saved.store(key.index, Ordering::Release);
                if is_failing {
                    tracing::info!("the sealing key of the audit log is replaced again");
                }
                is_failing = false;
            }
            Err(error) => {
                if !is_failing {
                    tracing::error!(%error, "can't replace the sealing key of the audit log; retrying");
                }
                is_failing = true;
            }
        }
    }
}

#[cfg(test)]
impl Sealer {
    /// Waits until the key on disk is the current one.
    pub fn wait_until_saved(&self) {
        let limit = Instant::now() + Duration::from_secs(10);
        while !self.is_saved() && Instant::now() < limit {
            self.save_key();
            thread::yield_now();
        }
        assert!(self.is_saved(), "the key was not written");
    }

    /// From now on, the key file can't be written.
    pub fn break_key_file(&mut self, folder: &Path) {
        let (keys, saver) = start_saver(KeyFile::read_only(folder), &self.saved).expect("a thread");
        (self.keys, self.saver) = (Some(keys), Some(saver));
    }

    pub fn elapse(&mut self, time: Duration) {
        self.sealed_at -= time;
    }
}
