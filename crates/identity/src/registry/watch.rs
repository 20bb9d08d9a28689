//! Follows `agents.json`. A file that can't be read changes nothing: the last good version stays, and the log has the
//! place of the mistake.

use super::error::RegistryError;
use super::file::AgentsFile;
use super::table::Table;
use crate::files::FileMark;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::{Duration, SystemTime};

/// How often the file is looked at. A revoked agent has to be gone within a second.
const EVERY: Duration = Duration::from_millis(200);

/// How often, a millisecond apart, a look that is under way is waited for on behalf of a stranger.
const TRIES_FOR_A_STRANGER: usize = 10;

pub struct Watched {
    file: PathBuf,
    table: RwLock<Arc<Table>>,
    /// Held while looking, so that versions follow each other.
    seen: Mutex<Seen>,
}

struct Seen {
    /// Of the version that was read last, good or bad.
    mark: Option<FileMark>,
    /// Whether it was said that the file can't be read.
    complained: bool,
}

impl Watched {
    /// Files are waited for on a thread of its own, which ends soon after the last user is gone.
    pub fn start(file: PathBuf) -> Result<Arc<Self>, RegistryError> {
        let mark = FileMark::of(&file);
        if mark.is_some_and(|mark| mark.others_may_write()) {
            tracing::warn!("{} can be written by others, who can let in anybody; chmod 600 ends that", file.display());
        }
        let table = Table::next(&AgentsFile::read(&file)?, &Table::default());
        let seen = Seen { mark, complained: false };
        let watched = Arc::new(Self { file, table: RwLock::new(Arc::new(table)), seen: Mutex::new(seen) });
        let weak = Arc::downgrade(&watched);
        let watch = move || {
            while let Some(watched) = weak.upgrade() {
                watched.look();
                drop(watched);
                thread::sleep(EVERY);
            }
        };
        thread::Builder::new().name("agents".into()).spawn(watch).map_err(RegistryError::Thread)?;
        Ok(watched)
    }

    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().expect("no code panics while it holds the table"))
    }

    /// Takes over a new version, and ends what time has ended.
    pub fn look(&self) {
        self.catch_up(&mut self.seen.lock().expect("no code panics while it looks at the file"));
        self.table().end_overdue(SystemTime::now());
    }

    /// The same on behalf of somebody who is not known, and may have been made known a moment ago. Not for long: where a
    /// disk hangs, one who waits for it is enough.
    pub fn look_for_a_stranger(&self) {
        for _ in 0..TRIES_FOR_A_STRANGER {
            if let Ok(mut seen) = self.seen.try_lock() {
                return self.catch_up(&mut seen);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Takes over a new version, if there is one.
    fn catch_up(&self, seen: &mut Seen) {
        // Before reading: a version that comes while we read is then seen the next time.
        let mark = FileMark::of(&self.file);
        if mark == seen.mark {
            return;
        }
        match self.take_over(mark.is_some()) {
            // What can't be read now may be readable in a moment, and may take somebody's rights away.
            Err(error @ RegistryError::Read { .. }) => {
                if !std::mem::replace(&mut seen.complained, true) {
                    tracing::error!("{error}; what it said before stays until it can be read");
                }
                return;
            }
            Err(error) => tracing::error!("{error}; what it said before stays"),
            Ok(()) => {}
        }
        (seen.mark, seen.complained) = (mark, false);
    }

    fn take_over(&self, is_there: bool) -> Result<(), RegistryError> {
        let file = self.file.display();
        if !is_there {
            tracing::error!("{file} is gone; the agents that it named stay known until the broker ends");
            return Ok(());
        }
        let next = AgentsFile::read(&self.file)?;
        let table = Arc::new(Table::next(&next, &self.table()));
        *self.table.write().expect("no code panics while it holds the table") = table;
        tracing::info!(agents = next.agents.len(), "{file} was read again");
        Ok(())
    }
}
