//! The journals behind the mailboxes of hosts, as hosts claim them when they connect.
//!
//! A host that comes with another journal than the last one (a new or older state folder, a damaged journal, a second
//! host) can't tell which calls were started before. Then the mailbox is fenced: calls below the fence that may have been
//! pushed before are marked, and the host answers them as unknown instead of running them again.

use crate::state_file::StateFile;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use toolbus_engine::{Fence, JournalClaim};

/// Mailboxes whose claims are remembered. A claim beyond the limit always fences.
const MAX_CLAIMS: usize = 4096;

/// The last claim of each mailbox, kept in a file.
#[derive(Clone)]
pub struct Claims {
    file: Arc<dyn StateFile>,
    state: Arc<Mutex<State>>,
    /// Held while the file is written, so that an older state can't replace a newer one.
    writing: Arc<Mutex<()>>,
}

#[derive(Default)]
struct State {
    known: BTreeMap<String, Remembered>,
    /// The file could not be read, so an unknown mailbox may have had any claim.
    is_incomplete: bool,
    /// Number of changes, and how many of them the file has.
    changes: u64,
    saved: u64,
}

/// The last claim of a mailbox, and its fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub claim: JournalClaim,
    pub fence: Option<Fence>,
}

/// What a claim changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// The same process has the mailbox already.
    Unchanged,
    /// A later process with the same journal.
    Continued,
    /// Another journal: the mailbox was fenced.
    Fenced,
}

impl Claims {
    /// Reads the claims. An unreadable file is logged and makes every mailbox's first claim a fence.
    pub fn open(file: Arc<dyn StateFile>) -> Self {
        let read = match file.read() {
            Ok(None) => Ok(BTreeMap::new()),
            Ok(Some(bytes)) => parse(&bytes).ok_or_else(|| "it is damaged".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let state = match read {
            Ok(known) => State { known, ..State::default() },
            Err(reason) => {
                tracing::error!(
                    file = file.name(),
                    reason,
                    "the claims of hosts are unreadable; their mailboxes are fenced"
                );
                State { is_incomplete: true, ..State::default() }
            }
        };
        Self { file, state: Arc::new(Mutex::new(state)), writing: Arc::default() }
    }

    /// The fences to restore after a restart.
    pub fn fences(&self) -> Vec<(String, Fence)> {
        let known = &self.lock().known;
        known.iter().filter_map(|(mailbox, remembered)| Some((mailbox.clone(), remembered.fence?))).collect()
    }

    /// Records a claim. `fence` is called if another journal had the mailbox before.
    pub fn record(&self, mailbox: &str, claim: JournalClaim, fence: impl FnOnce() -> Fence) -> Recorded {
        let mut state = self.lock();
        let is_full = state.known.len() >= MAX_CLAIMS;
        let earlier = state.known.get(mailbox);
        let continues = match earlier {
            Some(earlier) => claim.continues(&earlier.claim),
            None => !state.is_incomplete && !is_full,
        };
        // The next claim is compared with this one, whose own ancestors don't matter then.
        let claim = JournalClaim { ancestors: Vec::new(), ..claim };
        if earlier.is_some_and(|earlier| earlier.claim == claim) {
            return Recorded::Unchanged;
        }
        let fence = if continues { earlier.and_then(|earlier| earlier.fence) } else { Some(fence()) };
        if earlier.is_some() || !is_full {
            state.known.insert(mailbox.to_owned(), Remembered { claim, fence });
            state.changes += 1;
        }
        if continues { Recorded::Continued } else { Recorded::Fenced }
    }

    /// Runs `subscribe` if this is the last claim of the mailbox, while no other can be recorded. Returns whether it ran.
    pub fn if_current(&self, mailbox: &str, claim: &JournalClaim, subscribe: impl FnOnce()) -> bool {
        let state = self.lock();
        let is_same = |known: &Remembered| known.claim.is_same_process(claim);
        // A claim beyond the limit is not remembered; it has fenced the mailbox.
        let is_current = state.known.get(mailbox).is_none_or(is_same);
        if is_current {
            subscribe();
        }
        is_current
    }

    /// Whether all claims are durable.
    pub fn are_saved(&self) -> bool {
        let state = self.lock();
        state.changes == state.saved
    }

    /// Writes the claims durably. Blocks on the disk.
    pub fn save(&self) {
        let _writing = self.writing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (text, changes) = {
            let state = self.lock();
            (to_json(&state.known), state.changes)
        };
        match self.file.replace(text.as_bytes()) {
            Ok(()) => self.lock().saved = changes,
            Err(error) => tracing::error!(file = self.file.name(), %error, "can't write the claims of hosts"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the claims")
    }
}

impl Remembered {
    fn to_json(&self) -> Value {
        let JournalClaim { journal, epoch, instance, .. } = &self.claim;
        let (before, at) = self.fence.map_or((0, 0), |fence| (fence.before, fence.at));
        json!({"journal": &**journal, "epoch": epoch, "instance": &**instance, "fence": before, "fenced_at": at})
    }
}

pub(crate) fn to_json(known: &BTreeMap<String, Remembered>) -> String {
    let entries = known.iter().map(|(mailbox, remembered)| (mailbox.clone(), remembered.to_json()));
    Value::from(entries.collect::<serde_json::Map<String, Value>>()).to_string()
}

pub(crate) fn parse(bytes: &[u8]) -> Option<BTreeMap<String, Remembered>> {
    let entries: serde_json::Map<String, Value> = serde_json::from_slice(bytes).ok()?;
    let remembered = |entry: &Value| {
        let text = |key: &str| Some(entry.get(key)?.as_str()?.to_owned().into());
        let claim = JournalClaim {
            journal: text("journal")?,
            epoch: entry.get("epoch")?.as_u64()?,
            instance: text("instance")?,
            ancestors: Vec::new(),
        };
        let before = entry.get("fence")?.as_u64()?;
        // Absent in files of earlier versions.
        let at = entry.get("fenced_at").and_then(Value::as_u64).unwrap_or_default();
        Some(Remembered { claim, fence: (before > 0).then_some(Fence { before, at }) })
    };
    entries.iter().map(|(mailbox, entry)| Some((mailbox.clone(), remembered(entry)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_file::FolderFile;
    use std::fs;
    use std::path::Path;

    const FILE: &str = "claims.json";

    fn open(folder: &Path) -> Claims {
        Claims::open(Arc::new(FolderFile(folder.join(FILE))))
    }

    fn claim(journal: &'static str, epoch: u64) -> JournalClaim {
        let instance = format!("{journal}-{epoch}").into();
        JournalClaim { journal: journal.into(), epoch, instance, ancestors: Vec::new() }
    }

    #[test]
    fn an_older_copy_of_a_journal_that_was_opened_several_times_fences_the_mailbox() {
        let folder = tempfile::tempdir().expect("a folder");
        let with = |epoch, instance: &'static str, ancestors: &[&'static str]| JournalClaim {
            instance: instance.into(),
            ancestors: ancestors.iter().map(|name| (*name).into()).collect(),
            ..claim("a", epoch)
        };
        let record = |claim| {
            let claims = open(folder.path());
            let recorded = claims.record("host", claim, || Fence { before: 9, at: 9 });
            claims.save();
            recorded
        };
        assert_eq!(record(with(2, "two", &["one"])), Recorded::Continued, "the first claim");
        assert_eq!(record(with(2, "two", &["one"])), Recorded::Unchanged, "a reconnect after a restart of the broker");
        assert_eq!(record(with(4, "four", &["three", "two", "one"])), Recorded::Continued);
        assert_eq!(
            record(with(6, "copy", &["copied", "again", "two", "one"])),
            Recorded::Fenced,
            "it lacks three and four"
        );
        assert_eq!(record(with(7, "next", &["copy", "copied", "again"])), Recorded::Continued);
        assert_eq!(record(claim("a", 8)), Recorded::Continued, "a host of an earlier version");
    }

    #[test]
    fn another_journal_fences_the_mailbox_and_its_fence_survives_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let claims = open(folder.path());
        let fence = |before| Fence { before, at: before + 1_000 };
        let record = |name: &str, claim, before| claims.record(name, claim, || fence(before));
        assert_eq!(record("host", claim("a", 1), 50), Recorded::Continued, "the first claim");
        assert_eq!(record("host", claim("a", 2), 60), Recorded::Continued, "a restart");
        assert_eq!(record("host", claim("b", 9), 70), Recorded::Fenced);
        assert_eq!(record("host", claim("b", 9), 75), Recorded::Unchanged, "a reconnect keeps the fence");
        assert_eq!(record("other", claim("c", 1), 76), Recorded::Continued, "another mailbox");
        claims.save();
        let claims = open(folder.path());
        assert_eq!(claims.fences(), [("host".to_owned(), fence(70))]);
        let fenced = claims.record("host", claim("a", 3), || fence(80));
        assert_eq!(fenced, Recorded::Fenced, "the first journal has missed calls");
        fs::write(folder.path().join(FILE), "{").expect("writable");
        let fenced = open(folder.path()).record("host", claim("a", 3), || fence(90));
        assert_eq!(fenced, Recorded::Fenced, "it may have been any journal");
    }
}
