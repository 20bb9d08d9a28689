//! The state beside the message log, in a form that can be moved between a folder and the partitions of a cluster: claims of
//! journals with their fences, and generations of agents. Sequence numbers differ between the two, so that they are mapped.

use crate::claims::{self, Remembered};
use crate::generations::{self, Known};
use crate::state_file::{FolderFile, ReplacedFile, StateFile};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use toolbus_engine::{Fence, Seq};
use toolbus_store::Disk;

const CLAIMS: &str = "claims";
const GENERATIONS: &str = "generations";

/// Claims and generations of one log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MovedState {
    claims: BTreeMap<String, Remembered>,
    generations: BTreeMap<String, Known>,
}

/// Where claims and generations are kept.
pub struct StatePlace {
    claims: Arc<dyn StateFile>,
    generations: Arc<dyn StateFile>,
}

impl StatePlace {
    /// Beside the log of a data folder.
    pub fn in_folder(folder: &Path) -> Self {
        let file = |name: &str| Arc::new(FolderFile(folder.join(format!("{name}.json")))) as Arc<dyn StateFile>;
        Self { claims: file(CLAIMS), generations: file(GENERATIONS) }
    }

    /// In the log of a partition. The seed is the secret of the cluster.
    pub fn in_partition(disk: &Arc<dyn Disk>, seed: u64) -> Self {
        let file = |name| Arc::new(ReplacedFile::new(Arc::clone(disk), name, seed)) as Arc<dyn StateFile>;
        Self { claims: file(CLAIMS), generations: file(GENERATIONS) }
    }

    /// Reads the state. What a broker could start without is an error here: the move would make its loss final.
    pub fn read(&self) -> io::Result<MovedState> {
        let claims = read(&*self.claims, claims::parse)?;
        Ok(MovedState { claims, generations: read(&*self.generations, generations::parse)? })
    }

    /// Replaces the state durably.
    pub fn write(&self, state: &MovedState) -> io::Result<()> {
        self.claims.replace(claims::to_json(&state.claims).as_bytes())?;
        self.generations.replace(generations::to_json(&state.generations).as_bytes())
    }
}

fn read<T: Default>(file: &dyn StateFile, parse: impl Fn(&[u8]) -> Option<T>) -> io::Result<T> {
    let failed = |reason: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {reason}", file.name()));
    match file.read() {
        Ok(None) => Ok(T::default()),
        Ok(Some(bytes)) => parse(&bytes).ok_or_else(|| failed("it is damaged".into())),
        Err(error) => Err(failed(error.to_string())),
    }
}

impl MovedState {
    /// Number of mailboxes with a claim.
    pub fn claims(&self) -> usize {
        self.claims.len()
    }

    /// Number of mailboxes with a fence.
    pub fn fences(&self) -> usize {
        self.claims.values().filter(|remembered| remembered.fence.is_some()).count()
    }

    /// Number of names of which the generation is known.
    pub fn generations(&self) -> usize {
        self.generations.len()
    }

    /// Whether a journal was claimed for the mailbox, so that it is one of a host.
    pub fn has_claim(&self, mailbox: &str) -> bool {
        self.claims.contains_key(mailbox)
    }

    /// The fence of a mailbox.
    pub fn fence_of(&self, mailbox: &str) -> Option<Fence> {
        self.claims.get(mailbox)?.fence
    }

    /// The state of a partition: the claims of its own mailboxes and all generations, because agents have messages in all
    /// partitions. Every sequence number is that of the folder plus `first_seq`.
    pub fn of_partition(&self, first_seq: Seq, is_own: impl Fn(&str) -> bool) -> Self {
        let shifted = |fence: Fence| Fence { before: first_seq + fence.before, ..fence };
        let claim = |(mailbox, remembered): (&String, &Remembered)| {
            let remembered = Remembered { fence: remembered.fence.map(shifted), ..remembered.clone() };
            (mailbox.clone(), remembered)
        };
        let generation =
            |(name, known): (&String, &Known)| (name.clone(), Known { before: first_seq + known.before, ..*known });
        Self {
            claims: self.claims.iter().filter(|(mailbox, _)| is_own(mailbox)).map(claim).collect(),
            generations: self.generations.iter().map(generation).collect(),
        }
    }

    /// The end of the messages of an agent of that name that ended in this partition. `all` is the joined state: a partition
    /// that does not know yet of an end has no message of a later agent.
    pub fn ended_before(&self, all: &Self, agent: &str) -> Seq {
        let (known, latest) = (self.generations.get(agent), all.generations.get(agent));
        let (Some(known), Some(latest)) = (known, latest) else { return 0 };
        let is_behind = known.latest < latest.latest || (known.incarnation.is_some() && latest.incarnation.is_none());
        if is_behind {
            Seq::MAX
        } else if known.generation > 0 {
            known.before
        } else {
            0
        }
    }

    /// Joins the states of all partitions. `fence` maps the end of a fence of a mailbox, given with the position of its
    /// partition. The messages of agents that have ended must not be moved, so that nothing is left to remove below the
    /// generations.
    pub fn joined(parts: &[Self], fence: impl Fn(usize, &str, Seq) -> Seq) -> Self {
        let mut joined = Self::default();
        for (number, part) in parts.iter().enumerate() {
            for (mailbox, remembered) in &part.claims {
                let mapped = |found: Fence| Fence { before: fence(number, mailbox, found.before).max(1), ..found };
                let remembered = Remembered { fence: remembered.fence.map(mapped), ..remembered.clone() };
                joined.claims.insert(mailbox.clone(), remembered);
            }
            for (name, known) in &part.generations {
                let known = Known { before: 0, ..*known };
                let kept = joined.generations.entry(name.clone()).or_insert(known);
                let generation = kept.generation.max(known.generation);
                // An end is later than the agent that it ended.
                let is_later = (known.latest, known.incarnation.is_none()) > (kept.latest, kept.incarnation.is_none());
                *kept = Known { generation, ..if is_later { known } else { *kept } };
            }
        }
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_engine::JournalClaim;

    fn claim(journal: &str, fence: Option<Seq>) -> Remembered {
        let claim = JournalClaim {
            journal: journal.into(),
            epoch: 2,
            instance: format!("{journal}-2").into(),
            ancestors: Vec::new(),
        };
        Remembered { claim, fence: fence.map(|before| Fence { before, at: 9 }) }
    }

    fn agent(incarnation: Option<u64>, latest: u64, generation: u64, before: Seq) -> Known {
        Known { incarnation, latest, generation, before, ..Known::default() }
    }

    fn state(claims: &[(&str, Remembered)], generations: &[(&str, Known)]) -> MovedState {
        MovedState {
            claims: claims.iter().map(|(name, claim)| ((*name).to_owned(), claim.clone())).collect(),
            generations: generations.iter().map(|(name, known)| ((*name).to_owned(), *known)).collect(),
        }
    }

    #[test]
    fn a_state_is_read_as_it_was_written_and_damage_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = StatePlace::in_folder(folder.path());
        assert_eq!(place.read().expect("no files"), MovedState::default());
        let written = state(&[("host", claim("a", Some(7)))], &[("ana", agent(Some(3), 3, 1, 5))]);
        place.write(&written).expect("writable");
        assert_eq!(place.read().expect("readable"), written);
        for file in ["claims.json", "generations.json"] {
            let good = std::fs::read(folder.path().join(file)).expect("written");
            std::fs::write(folder.path().join(file), &good[1..]).expect("writable");
            assert!(place.read().expect_err(file).to_string().contains("damaged"));
            std::fs::write(folder.path().join(file), good).expect("writable");
        }
    }

    #[test]
    fn a_partition_gets_its_own_claims_and_all_generations() {
        let all = state(
            &[("host", claim("a", Some(7))), ("other", claim("b", None))],
            &[("ana", agent(Some(3), 3, 1, 5)), ("bo", agent(None, 2, 1, 6))],
        );
        let part = all.of_partition(100, |mailbox| mailbox == "host");
        let expected = state(
            &[("host", claim("a", Some(107)))],
            &[("ana", agent(Some(3), 3, 1, 105)), ("bo", agent(None, 2, 1, 106))],
        );
        assert_eq!(part, expected);
    }

    #[test]
    fn the_latest_known_of_an_agent_wins() {
        let parts = [
            state(
                &[("host", claim("a", Some(107)))],
                &[("ana", agent(Some(3), 3, 0, 0)), ("bo", agent(Some(2), 2, 1, 4))],
            ),
            state(
                &[("other", claim("b", None))],
                &[("ana", agent(None, 3, 1, 250)), ("bo", agent(Some(2), 2, 1, 240))],
            ),
        ];
        let joined = MovedState::joined(&parts, |part, mailbox, before| {
            assert_eq!((part, mailbox), (0, "host"));
            before - 100
        });
        let expected = state(
            &[("host", claim("a", Some(7))), ("other", claim("b", None))],
            &[("ana", agent(None, 3, 1, 0)), ("bo", agent(Some(2), 2, 1, 0))],
        );
        assert_eq!(joined, expected);
        let before = |part: usize, name| parts[part].ended_before(&joined, name);
        assert_eq!([before(0, "ana"), before(1, "ana"), before(0, "bo"), before(1, "bo")], [Seq::MAX, 250, 4, 240]);
        assert_eq!(before(0, "nobody"), 0);
    }
}
