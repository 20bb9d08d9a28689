//! One line of the log. Its hash covers every byte before it, and the hash of the line before is among them.

use crate::canonical::sha256_hex;
use crate::record::Record;
use serde::Deserialize;

/// Before the first line.
pub const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

const HASH_KEY: &str = ",\"hash\":\"";
const LINE_END: &str = "\"}";

/// Where the chain stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub seq: u64,
    pub hash: String,
}

impl Link {
    pub fn start() -> Self {
        Self { seq: 0, hash: NO_HASH.to_owned() }
    }

    /// Appends the record's line to the text, and moves on.
    pub fn append(&mut self, record: &Record, time: &str, text: &mut String) {
        let fields = serde_json::to_string(record).expect("records have string keys and finite numbers");
        let fields =
            fields.strip_prefix('{').and_then(|fields| fields.strip_suffix('}')).expect("a record is an object");
        let seq = self.seq + 1;
        let covered = format!("{{\"seq\":{seq},\"time\":\"{time}\",{fields},\"prev\":\"{}\"", self.hash);
        let hash = sha256_hex(covered.as_bytes());
        text.push_str(&covered);
        text.push_str(HASH_KEY);
        text.push_str(&hash);
        text.push_str(LINE_END);
        text.push('\n');
        *self = Self { seq, hash };
    }
}

/// What the log itself needs of a line.
#[derive(Debug, Deserialize)]
pub struct Line {
    pub seq: u64,
    pub event: String,
    pub prev: String,
    #[serde(default)]
    pub file: Option<String>,
    #[serde(default)]
    pub last_seq: u64,
    #[serde(default)]
    pub last_hash: Option<String>,
    #[serde(default)]
    pub lost: u64,
    #[serde(default)]
    pub head_missing: bool,
    #[serde(default)]
    pub count: u64,
    #[serde(skip)]
    pub hash: String,
}

impl Line {
    /// Reads a line without its line end, and checks its own hash.
    pub fn read(text: &str) -> Result<Self, String> {
        let not_ours = || "it is not a line that toolbus wrote".to_owned();
        let head = text.strip_suffix(LINE_END).ok_or_else(not_ours)?;
        let at = head.len().checked_sub(NO_HASH.len()).ok_or_else(not_ours)?;
        let (head, hash) = head.split_at_checked(at).ok_or_else(not_ours)?;
        let covered = head.strip_suffix(HASH_KEY).ok_or_else(not_ours)?;
        if sha256_hex(covered.as_bytes()) != hash {
            return Err("it was changed: its hash is not that of its text".to_owned());
        }
        let mut line: Self = serde_json::from_str(&format!("{covered}}}")).map_err(|_| not_ours())?;
        line.hash = hash.to_owned();
        Ok(line)
    }

    /// Whether the line follows upon that one.
    pub fn follows(&self, before: &Link) -> Result<(), String> {
        if self.seq != before.seq + 1 {
            return Err(format!("line {} of the log follows upon line {}", self.seq, before.seq));
        }
        if self.prev != before.hash {
            return Err(format!("it does not follow upon the line {} that is there", before.seq));
        }
        Ok(())
    }

    pub fn link(&self) -> Link {
        Link { seq: self.seq, hash: self.hash.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_back_and_any_changed_byte_shows() {
        let mut link = Link::start();
        let mut text = String::new();
        let record = Record::ConnectionsRefused { code: "TB0103".into(), count: 7 };
        link.append(&record, "2026-01-01T00:00:00Z", &mut text);
        let line = text.trim_end();
        let read = Line::read(line).expect("a good line");
        assert_eq!((read.seq, read.event.as_str(), read.count), (1, "connections_refused", 7));
        assert_eq!(read.link(), link);
        for at in 0..line.len() {
            let mut bytes = line.as_bytes().to_vec();
            bytes[at] ^= 1;
            if let Ok(changed) = String::from_utf8(bytes) {
                assert!(Line::read(&changed).is_err(), "byte {at} was changed unseen");
            }
        }
    }
}
