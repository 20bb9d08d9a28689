//! Synchronises pins with their files: writes what was seen, and reloads what was approved.

use super::{LockFile, PinFile, Pins};
use crate::host::Host;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How often to check the files for changes.
const POLL: Duration = Duration::from_millis(200);

/// Runs until the host shuts down.
pub async fn watch(host: Arc<Host>) {
    let pins = Arc::clone(&host.options.pins);
    if pins.options.state.is_none() && pins.lock_file().is_none() {
        return;
    }
    let mut stamps = pins.stamps();
    loop {
        tokio::select! {
            () = pins.dirty.notified() => {}
            () = tokio::time::sleep(POLL) => {}
            () = host.shutdown.cancelled() => break,
        }
        pins.write_in_background().await;
        let now = pins.stamps();
        if now != stamps {
            stamps = now;
            if pins.reload() {
                host.catalog.recheck_pins();
            }
        }
    }
    pins.write_in_background().await;
}

type Stamp = Option<(SystemTime, u64, u64)>;

fn stamp(file: Option<&Path>) -> Stamp {
    let metadata = fs::metadata(file?).ok()?;
    Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
}

impl Pins {
    fn stamps(&self) -> [Stamp; 2] {
        [stamp(self.file().as_deref()), stamp(self.lock_file())]
    }

    async fn write_in_background(self: &Arc<Self>) {
        if !self.lock().unwritten {
            return;
        }
        let pins = Arc::clone(self);
        tokio::task::spawn_blocking(move || pins.write()).await.ok();
    }

    /// Merges what was seen into the file.
    pub(super) fn write(&self) {
        let seen = {
            let mut state = self.lock();
            if !std::mem::take(&mut state.unwritten) {
                return;
            }
            state.known.clone()
        };
        let Some(file) = self.file() else { return };
        if let Err(error) = PinFile::edit(&file, |stored| stored.merge(&seen)) {
            tracing::error!(%error, "could not write the pin file");
            self.lock().unwritten = true;
        }
    }

    /// Returns true if the files were read. If one can't be read, the pins stay unchanged.
    pub(super) fn reload(&self) -> bool {
        let known = self.file().map(|file| PinFile::read(&file)).transpose();
        let lock = self.lock_file().map(|file| LockFile::read(file, self.options.lock_trust)).transpose();
        let (known, lock) = match (known, lock) {
            (Ok(known), Ok(lock)) => (known, lock),
            (Err(error), _) | (_, Err(error)) => {
                tracing::error!(%error, "could not reload the pins, they stay unchanged");
                return false;
            }
        };
        let mut state = self.lock();
        if let Some(mut known) = known {
            if state.unwritten {
                known.merge(&state.known);
            }
            state.known = known;
        }
        state.lock = lock.unwrap_or_default();
        state.seen.clear();
        true
    }
}
