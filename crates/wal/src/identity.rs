//! The `identity` file of a folder: its name and the secret that keys its checksums.
//!
//! ```text
//! toolbus log 4
//! <id>
//! <seed>
//! <checksum of the lines above>
//! ```
//!
//! The file has a checksum of its own: with a wrong seed every record of the log would count as damaged, which would lose
//! every message of a broker and let a host run calls a second time.

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
}

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

    fn text_of(&self, format: &str) -> String {
        let lines = format!("{format}\n{}\n{}\n", self.id, self.seed);
        let checksum = xxh3_64(lines.as_bytes());
        format!("{lines}{checksum:016x}\n")
    }

    pub(crate) fn parse(text: &str) -> Result<Parsed, Unusable> {
        let mut lines = text.lines();
        let known = [FORMAT, FORMAT_WITH_OLD_RECORDS, FORMAT_WITHOUT_CHECKSUM];
        let format = lines.next().filter(|format| known.contains(format)).ok_or(Unusable::OtherFormat)?;
        let (Some(id), Some(seed)) = (lines.next(), lines.next()) else { return Err(Unusable::Damaged) };
        let seed = seed.parse().map_err(|_| Unusable::Damaged)?;
        let identity = Self { id: id.to_owned(), seed };
        // One flipped bit makes the first line that of another format, so the number of lines has to fit as well.
        let is_whole =
            if format == FORMAT_WITHOUT_CHECKSUM { lines.next().is_none() } else { identity.text_of(format) == text };
        if is_whole { Ok(Parsed { identity, is_old: format != FORMAT }) } else { Err(Unusable::Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_flipped_bit_is_refused() {
        let identity = Identity { id: "0c8a3a54-7b0f-4f9f-9d0b-0a8f5b1c2d3e".into(), seed: 12_345_678_901_234 };
        let text = identity.to_text();
        assert_eq!(Identity::parse(&text).map(|parsed| parsed.identity), Ok(identity));
        for (at, bit) in (0..text.len()).flat_map(|at| (0..7).map(move |bit| (at, bit))) {
            let mut bytes = text.clone().into_bytes();
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
