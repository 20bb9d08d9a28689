//! The `identity` file of a folder: its name and the secret that keys its checksums.
//!
//! ```text
//! toolbus log 4
//! <id>
//! <seed>
//! <checksum of the lines above>
//! ```
//!
//! While the folder is moved elsewhere, and afterwards, the first line is `toolbus moved 1`, and a line with the
//! [`MoveMark`] follows the seed. Brokers of earlier versions refuse that as another format.
//!
//! The file has a checksum of its own: with a wrong seed every record of the log would count as damaged, which would lose
//! every message of a broker and let a host run calls a second time.

use crate::MoveMark;
use xxhash_rust::xxh3::xxh3_64;

/// What stays the same over the life of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Names the durable namespace; clients compare it after a reconnect.
    pub id: String,
    /// Secret: keys the checksums of the log and the fingerprints of message ids.
    pub seed: u64,
}

/// How an identity file can be unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// The first line names another format.
    OtherFormat,
    /// The checksum doesn't match, or a line is missing.
    Damaged,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub identity: Identity,
    /// Written by an earlier version. It has to be replaced before a record of this version is written, because the earlier
    /// version would take that for damage.
    pub is_old: bool,
    /// The folder takes part in a move.
    pub mark: Option<MoveMark>,
}

const MOVED_FORMAT: &str = "toolbus moved 1";
const FORMAT: &str = "toolbus log 4";
/// The two logs had different records: see `old_format`.
const FORMAT_WITH_OLD_RECORDS: &str = "toolbus log 3";
const FORMAT_WITHOUT_CHECKSUM: &str = "toolbus log 2";

impl Identity {
    pub(crate) fn random() -> Self {
        Self { id: uuid::Uuid::new_v4().to_string(), seed: uuid::Uuid::new_v4().as_u64_pair().0 }
    }

    pub(crate) fn to_text(&self) -> String {
        self.text_of(FORMAT)
    }

    pub(crate) fn to_marked_text(&self, mark: &MoveMark) -> String {
        with_checksum(format!("{MOVED_FORMAT}\n{}\n{}\n{}\n", self.id, self.seed, mark.to_text()))
    }

    fn text_of(&self, format: &str) -> String {
        with_checksum(format!("{format}\n{}\n{}\n", self.id, self.seed))
    }

    pub(crate) fn parse(text: &str) -> Result<Parsed, Unusable> {
        let mut lines = text.lines();
        let known = [FORMAT, FORMAT_WITH_OLD_RECORDS, FORMAT_WITHOUT_CHECKSUM, MOVED_FORMAT];
        let format = lines.next().filter(|format| known.contains(format)).ok_or(Unusable::OtherFormat)?;
        let (Some(id), Some(seed)) = (lines.next(), lines.next()) else { return Err(Unusable::Damaged) };
        let seed = seed.parse().map_err(|_| Unusable::Damaged)?;
        let identity = Self { id: id.to_owned(), seed };
        if format == MOVED_FORMAT {
            let mark = lines.next().and_then(MoveMark::parse).ok_or(Unusable::Damaged)?;
            let is_whole = identity.to_marked_text(&mark) == text;
            return is_whole.then_some(Parsed { identity, is_old: false, mark: Some(mark) }).ok_or(Unusable::Damaged);
        }
        // One flipped bit makes the first line that of another format, so the number of lines has to fit as well.
        let is_whole =
            if format == FORMAT_WITHOUT_CHECKSUM { lines.next().is_none() } else { identity.text_of(format) == text };
        if is_whole { Ok(Parsed { identity, is_old: format != FORMAT, mark: None }) } else { Err(Unusable::Damaged) }
    }
}

fn with_checksum(lines: String) -> String {
    let checksum = xxh3_64(lines.as_bytes());
    format!("{lines}{checksum:016x}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MoveState;

    #[test]
    fn any_flipped_bit_is_refused() {
        let identity = Identity { id: "0c8a3a54-7b0f-4f9f-9d0b-0a8f5b1c2d3e".into(), seed: 12_345_678_901_234 };
        let mark = MoveMark { id: "7f".into(), state: MoveState::Leaving, other: "the cluster default".into() };
        assert_is_checked(&identity, None, &identity.to_text());
        assert_is_checked(&identity, Some(&mark), &identity.to_marked_text(&mark));
    }

    fn assert_is_checked(identity: &Identity, mark: Option<&MoveMark>, text: &str) {
        let parsed = Identity::parse(text).expect("readable");
        assert_eq!((&parsed.identity, parsed.mark.as_ref()), (identity, mark));
        for (at, bit) in (0..text.len()).flat_map(|at| (0..7).map(move |bit| (at, bit))) {
            let mut bytes = text.to_owned().into_bytes();
            bytes[at] ^= 1 << bit;
            let flipped = String::from_utf8(bytes).expect("still ASCII");
            assert!(Identity::parse(&flipped).is_err(), "bit {bit} of byte {at}");
        }
        for end in 0..text.len() {
            assert!(Identity::parse(&text[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn files_of_older_formats_are_read_and_marked_as_old() {
        let identity = Identity { id: "x".into(), seed: 7 };
        for text in ["toolbus log 2\nx\n7\n".to_owned(), identity.text_of(FORMAT_WITH_OLD_RECORDS)] {
            let parsed = Identity::parse(&text).expect("readable");
            assert!(parsed.is_old && parsed.identity == identity);
        }
        assert!(!Identity::parse(&identity.to_text()).expect("readable").is_old);
        assert_eq!(Identity::parse("toolbus log 5\nx\n7\n").err(), Some(Unusable::OtherFormat));
        assert_eq!(Identity::parse("").err(), Some(Unusable::OtherFormat));
    }
}
