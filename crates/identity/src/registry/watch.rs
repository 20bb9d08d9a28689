//! Watches `agents.json`. If a new version can't be read, the last valid one stays in use and the error is logged with
//! its position.

use super::error::RegistryError;
use super::file::AgentsFile;
use super::table::Table;
use crate::files::FileMark;
use crate::{Agents, AgentsFollower};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant, SystemTime};

/// How often the file is checked. A revoked agent must be disconnected within a second.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How long an unauthenticated peer may wait for a new version of the file.
const UNKNOWN_KEY_WAIT: Duration = Duration::from_millis(100);
/// How long none waits after one has waited in vain.
const AFTER_FAILED_WAIT: Duration = Duration::from_secs(1);

pub struct WatchedFile {
    file: PathBuf,
    table: RwLock<Arc<Table>>,
    /// Locked during a reload, so that versions are applied in order.
    seen: Mutex<Seen>,
    follower: OnceLock<AgentsFollower>,
    /// The thread that reads the file.
    watcher: OnceLock<Thread>,
    /// When a peer with an unknown key last waited in vain for a new version.
    failed_wait: Mutex<Option<Instant>>,
}

struct Seen {
    /// Mark of the version that was read last, valid or not.
    mark: Option<FileMark>,
    /// Whether the current read error has been logged.
    error_logged: bool,
    /// The agents as the follower knows them.
    reported: Option<Agents>,
    /// The follower could not record the agents of the table in use.
    is_unreported: bool,
}

impl WatchedFile {
    /// Starts a thread for the blocking file access; it ends soon after the last handle is dropped.
    pub fn start(file: PathBuf) -> Result<Arc<Self>, RegistryError> {
        let mark = FileMark::of(&file);
        if mark.is_some_and(|mark| mark.others_may_write()) {
            tracing::warn!("{} is writable by other users, who could add agents; run chmod 600", file.display());
        }
        let table = Table::next(&AgentsFile::read(&file)?, &Table::default());
        let seen = Mutex::new(Seen { mark, error_logged: false, reported: None, is_unreported: false });
        let table = RwLock::new(Arc::new(table));
        let watched = Arc::new(Self {
            file,
            table,
            seen,
            follower: OnceLock::new(),
            watcher: OnceLock::new(),
            failed_wait: Mutex::default(),
        });
        let weak = Arc::downgrade(&watched);
        let watch = move || {
            while let Some(watched) = weak.upgrade() {
                watched.refresh();
                drop(watched);
                thread::park_timeout(POLL_INTERVAL);
            }
        };
        let watcher = thread::Builder::new().name("agents".into()).spawn(watch).map_err(RegistryError::Thread)?;
        watched.watcher.set(watcher.thread().clone()).ok();
        Ok(watched)
    }

    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().expect("no code panics while it holds the table"))
    }

    /// Loads a new version if there is one, and ends expired keys.
    pub fn refresh(&self) {
        let mut seen = self.lock_seen();
        self.reload_if_changed(&mut seen);
        let (table, now) = (self.table(), SystemTime::now());
        if table.end_expired(now) || seen.is_unreported {
            seen.is_unreported = !self.report(&mut seen, &table);
        }
    }

    /// Reports the agents to the follower, now and after every change.
    pub fn set_follower(&self, follower: AgentsFollower) {
        let mut seen = self.lock_seen();
        self.follower.set(follower).ok();
        seen.is_unreported = !self.report(&mut seen, &self.table());
    }

    /// Reports a version of the table, unless its agents are known. Returns false if the follower failed.
    fn report(&self, seen: &mut Seen, table: &Table) -> bool {
        let Some(follower) = self.follower.get() else { return true };
        let agents = table.agents(SystemTime::now());
        let is_recorded = seen.reported.as_ref() == Some(&agents) || follower(&agents);
        if is_recorded {
            seen.reported = Some(agents);
        }
        is_recorded
    }

    fn lock_seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no code panics while it reloads the file")
    }

    /// Waits briefly for a new version, because a key is unknown and may have been added since the last poll. The watching
    /// thread reads it: the follower writes what has changed, which must not happen in a task of a runtime. If that hangs,
    /// unauthenticated peers must not block their callers again and again.
    pub fn refresh_for_unknown_key(&self) {
        let is_unchanged = |seen: &Seen| FileMark::of(&self.file) == seen.mark;
        if self.seen.try_lock().is_ok_and(|seen| is_unchanged(&seen)) {
            return;
        }
        let now = Instant::now();
        let failed = || self.failed_wait.lock().expect("no code panics while it holds the time");
        if failed().is_some_and(|failed| now - failed < AFTER_FAILED_WAIT) {
            return;
        }
        let before = self.table();
        self.watcher.get().inspect(|watcher| watcher.unpark());
        while now.elapsed() < UNKNOWN_KEY_WAIT {
            thread::sleep(Duration::from_millis(1));
            if !Arc::ptr_eq(&before, &self.table()) || self.seen.try_lock().is_ok_and(|seen| is_unchanged(&seen)) {
                return;
            }
        }
        *failed() = Some(Instant::now());
    }

    /// Loads a new version, if there is one.
    fn reload_if_changed(&self, seen: &mut Seen) {
        // Taken before reading, so that a version written during the read is detected next time.
        let mark = FileMark::of(&self.file);
        if mark == seen.mark {
            return;
        }
        match self.reload(mark.is_some(), seen) {
            // Possibly transient, and the new version may revoke rights: the mark stays, so the next poll tries again.
            Err(error @ (RegistryError::Read { .. } | RegistryError::NotFollowed { .. })) => {
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

    /// The follower knows a new version before it is in use: what revoked agents began has ended when others get their
    /// names.
    fn reload(&self, exists: bool, seen: &mut Seen) -> Result<(), RegistryError> {
        let file = self.file.display();
        if !exists {
            tracing::error!("{file} is missing; its agents stay valid until the broker stops");
            return Ok(());
        }
        let next = AgentsFile::read(&self.file)?;
        let table = Arc::new(Table::next(&next, &self.table()));
        if !self.report(seen, &table) {
            return Err(RegistryError::NotFollowed { path: self.file.clone() });
        }
        *self.table.write().expect("no code panics while it holds the table") = table;
        tracing::info!(agents = next.agents.len(), "{file} reloaded");
        Ok(())
    }
}
