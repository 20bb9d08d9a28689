//! Records of legacy sessions in a folder. A client whose endpoint is restarted goes on under its session id, instead of
//! getting 404, after which few clients initialize again.

use super::Principal;
use crate::worker::lock;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use tokio::sync::mpsc;
use toolbus_base::{private_folder, read_private, replace_file};
use toolbus_mcp::Raw;

/// Records that wait to be written. Beyond it, a session is not kept.
const MAX_WAITING: usize = 64;
/// Sessions with a larger record are not kept.
const MAX_RECORD_BYTES: usize = 64 << 10;

pub struct KeptSessions {
    folder: PathBuf,
    /// The ids of all records, so that unknown ids cost no access to the disk.
    known: Arc<Mutex<HashSet<String>>>,
    jobs: mpsc::Sender<Job>,
}

/// What is needed to continue a session: its owner, and what `initialize` negotiated.
#[derive(Serialize, Deserialize)]
pub struct KeptSession {
    agent: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    incarnation: u64,
    /// The params of the client's `initialize`.
    pub initialize: Raw,
    /// The parts of its result that the session depends on.
    pub negotiated: Raw,
}

enum Job {
    Keep(String, String),
    Forget(String),
}

impl KeptSession {
    pub fn new(principal: &Principal, initialize: Raw, negotiated: Raw) -> Self {
        let Principal { name, role, incarnation } = principal.clone();
        Self { agent: name, role, incarnation, initialize, negotiated }
    }

    fn is_of(&self, principal: &Principal) -> bool {
        self.agent == principal.name && self.role == principal.role && self.incarnation == principal.incarnation
    }
}

impl KeptSessions {
    /// Opens the folder, of which the latest `max` records are kept. Requires a tokio runtime.
    pub fn open(folder: PathBuf, max: usize) -> io::Result<Self> {
        private_folder(&folder)?;
        let known = Arc::new(Mutex::new(latest(&folder, max)?));
        let (jobs, waiting) = mpsc::channel(MAX_WAITING);
        tokio::spawn(write(folder.clone(), waiting));
        Ok(Self { folder, known, jobs })
    }

    pub fn keep(&self, id: &str, session: &KeptSession) {
        let Ok(record) = serde_json::to_string(session) else { return };
        if record.len() <= MAX_RECORD_BYTES && self.jobs.try_send(Job::Keep(id.to_owned(), record)).is_ok() {
            lock(&self.known).insert(id.to_owned());
        }
    }

    pub fn forget(&self, id: &str) {
        if lock(&self.known).remove(id) && self.jobs.try_send(Job::Forget(id.to_owned())).is_err() {
            tracing::debug!(id, "the record of an ended session stays until the next start");
        }
    }

    /// Forgets the records that are not of these sessions.
    pub fn forget_others(&self, open: &HashSet<String>) {
        let others: Vec<String> = lock(&self.known).difference(open).cloned().collect();
        others.iter().for_each(|id| self.forget(id));
    }

    /// The record of the principal's session.
    pub async fn find(&self, principal: &Principal, id: &str) -> Option<KeptSession> {
        if !lock(&self.known).contains(id) {
            return None;
        }
        let path = self.folder.join(id);
        let bytes = tokio::task::spawn_blocking(move || read_private(&path)).await.ok()?.ok()?;
        let kept: KeptSession = serde_json::from_slice(&bytes).ok()?;
        kept.is_of(principal).then_some(kept)
    }
}

/// One after the other, so that a session that ends is not written after it was forgotten.
async fn write(folder: PathBuf, mut jobs: mpsc::Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        let folder = folder.clone();
        let write = move || match job {
            Job::Keep(id, record) => replace_file(&folder.join(id), record.as_bytes()),
            Job::Forget(id) => fs::remove_file(folder.join(id)),
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "the record of an MCP session could not be written; it ends with this process");
            }
            _ => {}
        }
    }
}

/// The ids of the latest records. Others, and leftovers of writes, are removed.
fn latest(folder: &Path, max: usize) -> io::Result<HashSet<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let id = entry.file_name().into_string().ok().filter(|name| uuid::Uuid::try_parse(name).is_ok());
        let written = entry.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        match id {
            Some(id) => found.push((written, id)),
            None => fs::remove_file(entry.path())?,
        }
    }
    found.sort_unstable_by(|one, other| other.cmp(one));
    for (_, id) in found.iter().skip(max) {
        fs::remove_file(folder.join(id))?;
    }
    Ok(found.into_iter().take(max).map(|(_, id)| id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_mcp::empty_object;

    #[tokio::test]
    async fn records_outlive_the_process_and_are_bounded_in_number_and_size() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |max| KeptSessions::open(folder.path().to_owned(), max).expect("a folder");
        let id = || uuid::Uuid::new_v4().to_string();
        let ann = Principal { name: "ann".into(), role: None, incarnation: 0 };
        let (ids, sessions) = ([id(), id(), id()], open(10));
        for id in &ids {
            sessions.keep(id, &KeptSession::new(&ann, empty_object(), empty_object()));
        }
        let large = toolbus_mcp::raw(&"x".repeat(MAX_RECORD_BYTES));
        let huge = id();
        sessions.keep(&huge, &KeptSession::new(&ann, large, empty_object()));
        sessions.forget(&ids[0]);
        let count = || fs::read_dir(folder.path()).expect("a folder").count();
        let is_there = |id: &String| folder.path().join(id).exists();
        while !is_there(&ids[1]) || !is_there(&ids[2]) || count() != 2 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let next = open(10);
        assert!(next.find(&ann, &ids[1]).await.is_some() && next.find(&ann, &ids[2]).await.is_some());
        assert!(next.find(&ann, &ids[0]).await.is_none() && next.find(&ann, &huge).await.is_none());
        for (name, role, incarnation) in [("bob", None, 0), ("ann", Some("writer".to_owned()), 0), ("ann", None, 1)] {
            let other = Principal { name: name.into(), role, incarnation };
            assert!(next.find(&other, &ids[1]).await.is_none());
        }
        assert_eq!((lock(&open(1).known).len(), count()), (1, 1));
    }
}
