//! Watches `agents.json`. If a new version can't be read, the last valid one stays in use and the error is logged with
//! its position.

use super::error::RegistryError;
use super::file::AgentsFile;
use super::table::Table;
use crate::files::FileMark;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::{Duration, SystemTime};

/// How often the file is checked. A revoked agent must be disconnected within a second.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Attempts, a millisecond apart, to get the lock on behalf of an unauthenticated peer.
const UNKNOWN_KEY_ATTEMPTS: usize = 10;

pub struct WatchedFile {
    file: PathBuf,
    table: RwLock<Arc<Table>>,
    /// Locked during a reload, so that versions are applied in order.
    seen: Mutex<Seen>,
}

struct Seen {
    /// Mark of the version that was read last, valid or not.
    mark: Option<FileMark>,
    /// Whether the current read error has been logged.
    error_logged: bool,
}

impl WatchedFile {
    /// Starts a thread for the blocking file access; it ends soon after the last handle is dropped.
    pub fn start(file: PathBuf) -> Result<Arc<Self>, RegistryError> {
        let mark = FileMark::of(&file);
        if mark.is_some_and(|mark| mark.others_may_write()) {
            tracing::warn!("{} is writable by other users, who could add agents; run chmod 600", file.display());
        }
        let table = Table::next(&AgentsFile::read(&file)?, &Table::default());
        let seen = Seen { mark, error_logged: false };
        let watched = Arc::new(Self { file, table: RwLock::new(Arc::new(table)), seen: Mutex::new(seen) });
        let weak = Arc::downgrade(&watched);
        let watch = move || {
            while let Some(watched) = weak.upgrade() {
                watched.refresh();
                drop(watched);
                thread::sleep(POLL_INTERVAL);
            }
        };
        thread::Builder::new().name("agents".into()).spawn(watch).map_err(RegistryError::Thread)?;
        Ok(watched)
    }

    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().expect("no code panics while it holds the table"))
    }

    /// Loads a new version if there is one, and ends expired keys.
    pub fn refresh(&self) {
        self.reload_if_changed(&mut self.seen.lock().expect("no code panics while it reloads the file"));
        self.table().end_expired(SystemTime::now());
    }

    /// Loads a new version because a key is unknown and may have been added since the last poll. Waits for the lock
    /// only briefly: if the disk hangs, unauthenticated peers must not block more threads.
    pub fn refresh_for_unknown_key(&self) {
        for _ in 0..UNKNOWN_KEY_ATTEMPTS {
            if let Ok(mut seen) = self.seen.try_lock() {
                return self.reload_if_changed(&mut seen);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Loads a new version, if there is one.
    fn reload_if_changed(&self, seen: &mut Seen) {
        // Taken before reading, so that a version written during the read is detected next time.
        let mark = FileMark::of(&self.file);
        if mark == seen.mark {
            return;
        }
        match self.reload(mark.is_some()) {
            // Possibly transient, and the new version may revoke rights: the mark stays, so the next poll tries again.
            Err(error @ RegistryError::Read { .. }) => {
                if !std::mem::replace(&mut seen.error_logged, true) {
                    tracing::error!("{error}; keeping the previous version until the file can be read");
                }
                return;
            }
            Err(error) => tracing::error!("{error}; keeping the previous version"),
            Ok(()) => {}
        }
        (seen.mark, seen.error_logged) = (mark, false);
    }

    fn reload(&self, exists: bool) -> Result<(), RegistryError> {
        let file = self.file.display();
        if !exists {
            tracing::error!("{file} is missing; its agents stay valid until the broker stops");
            return Ok(());
        }
        let next = AgentsFile::read(&self.file)?;
        let table = Arc::new(Table::next(&next, &self.table()));
        *self.table.write().expect("no code panics while it holds the table") = table;
        tracing::info!(agents = next.agents.len(), "{file} reloaded");
        Ok(())
    }
}
