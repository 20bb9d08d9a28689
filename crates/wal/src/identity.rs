//! The `identity` file of a folder: its name and the secret that keys its checksums.
//!
//! ```text
//! toolbus log 3
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
    /// Written by a version that had no checksum yet.
    pub is_old: bool,
}

const FORMAT: &str = "toolbus log 3";
const FORMAT_WITHOUT_CHECKSUM: &str = "toolbus log 2";

impl Identity {
    pub(crate) fn random() -> Self {
        Self { id: uuid::Uuid::new_v4().to_string(), seed: uuid::Uuid::new_v4().as_u64_pair().0 }
    }

    pub(crate) fn to_text(&self) -> String {
        let lines = format!("{FORMAT}\n{}\n{}\n", self.id, self.seed);
        let checksum = xxh3_64(lines.as_bytes());
        format!("{lines}{checksum:016x}\n")
    }

    pub(crate) fn parse(text: &str) -> Result<Parsed, Unusable> {
        let mut lines = text.lines();
        let is_old = match lines.next() {
            Some(FORMAT) => false,
            Some(FORMAT_WITHOUT_CHECKSUM) => true,
            _ => return Err(Unusable::OtherFormat),
        };
        let (Some(id), Some(seed)) = (lines.next(), lines.next()) else { return Err(Unusable::Damaged) };
        let seed = seed.parse().map_err(|_| Unusable::Damaged)?;
        let identity = Self { id: id.to_owned(), seed };
        // One flipped bit makes the new format's first line the old one's, so the number of lines has to fit as well.
        let is_whole = if is_old { lines.next().is_none() } else { identity.to_text() == text };
        if is_whole { Ok(Parsed { identity, is_old }) } else { Err(Unusable::Damaged) }
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
    fn a_file_of_the_format_without_checksum_is_read_and_marked_as_old() {
        let parsed = Identity::parse("toolbus log 2\nx\n7\n").expect("readable");
        assert!(parsed.is_old && parsed.identity.seed == 7);
        assert_eq!(Identity::parse("toolbus log 4\nx\n7\n").err(), Some(Unusable::OtherFormat));
        assert_eq!(Identity::parse("").err(), Some(Unusable::OtherFormat));
    }
}
