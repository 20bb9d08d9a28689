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

pub struct Watched {
    file: PathBuf,
    table: RwLock<Arc<Table>>,
    /// Of the version that was looked at last, good or bad. Held while looking, so that versions follow each other.
    seen: Mutex<Option<FileMark>>,
}

impl Watched {
    /// Files are waited for on a thread of its own, which ends soon after the last user is gone.
    pub fn start(file: PathBuf) -> Result<Arc<Self>, RegistryError> {
        let mark = FileMark::of(&file);
        if mark.is_some_and(|mark| mark.others_may_write()) {
            tracing::warn!("{} can be written by others, who can let in anybody; chmod 600 ends that", file.display());
        }
        let table = Table::next(&AgentsFile::read(&file)?, &Table::default());
        let watched = Arc::new(Self { file, table: RwLock::new(Arc::new(table)), seen: Mutex::new(mark) });
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
        self.catch_up();
        self.table().end_overdue(SystemTime::now());
    }

    /// Takes over a new version, if there is one.
    pub fn catch_up(&self) {
        let mut seen = self.seen.lock().expect("no code panics while it looks at the file");
        // Before reading: a version that comes while we read is then seen the next time.
        let mark = FileMark::of(&self.file);
        if mark != *seen {
            *seen = mark;
            self.take_over(mark.is_some());
        }
    }

    fn take_over(&self, is_there: bool) {
        let file = self.file.display();
        if !is_there {
            tracing::error!("{file} is gone; the agents that it named stay known until the broker ends");
            return;
        }
        match AgentsFile::read(&self.file) {
            Ok(next) => {
                let table = Arc::new(Table::next(&next, &self.table()));
                *self.table.write().expect("no code panics while it holds the table") = table;
                tracing::info!(agents = next.agents.len(), "{file} was read again");
            }
            Err(error) => tracing::error!("{error}; what it said before stays"),
        }
    }
}
