//! One line of the log. Its hash covers all bytes before it, which include the hash of the previous line.

use crate::canonical::sha256_hex;
use crate::record::Record;
use crate::record_text::push_members;
use serde::Deserialize;

/// The previous hash of the first line.
pub const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

const HASH_KEY: &str = ",\"hash\":\"";
const LINE_END: &str = "\"}";

/// A position in the chain: the number and the hash of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainPosition {
    pub seq: u64,
    pub hash: String,
}

impl ChainPosition {
    pub fn start() -> Self {
        Self { seq: 0, hash: NO_HASH.to_owned() }
    }

    /// Appends the line of a record to `text` and advances to it.
    pub fn append(&mut self, record: &Record, time: &str, text: &mut String) {
        let seq = self.seq + 1;
        let start = text.len();
        text.push_str("{\"seq\":");
        text.push_str(&seq.to_string());
        text.push_str(",\"time\":\"");
        text.push_str(time);
        text.push_str("\",");
        push_members(text, record);
        text.push_str(",\"prev\":\"");
        text.push_str(&self.hash);
        text.push('"');
        let hash = sha256_hex(&text.as_bytes()[start..]);
        text.push_str(HASH_KEY);
        text.push_str(&hash);
        text.push_str(LINE_END);
        text.push('\n');
        *self = Self { seq, hash };
    }
}

/// The fields of a line that the log itself uses.
#[derive(Debug, Clone, Deserialize)]
pub struct Line {
    pub seq: u64,
    pub time: String,
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
    /// Of a `continued` line: index of the next seal.
    #[serde(default)]
    pub seals: Option<u64>,
    /// The fields of a seal.
    #[serde(default)]
    pub log: String,
    #[serde(default)]
    pub index: u64,
    #[serde(default)]
    pub mac: String,
    #[serde(skip)]
    pub hash: String,
}

impl Line {
    /// Parses a line without its line end, and checks its hash.
    pub fn read(text: &str) -> Result<Self, String> {
        let malformed = || "it is malformed".to_owned();
        let head = text.strip_suffix(LINE_END).ok_or_else(malformed)?;
        let at = head.len().checked_sub(NO_HASH.len()).ok_or_else(malformed)?;
        let (head, hash) = head.split_at_checked(at).ok_or_else(malformed)?;
        let covered = head.strip_suffix(HASH_KEY).ok_or_else(malformed)?;
        if sha256_hex(covered.as_bytes()) != hash {
            return Err("it was modified: its hash does not match its content".to_owned());
        }
        let mut line: Self = serde_json::from_str(&format!("{covered}}}")).map_err(|_| malformed())?;
        line.hash = hash.to_owned();
        Ok(line)
    }

    /// Checks that the line is the successor of `before`.
    pub fn follows(&self, before: &ChainPosition) -> Result<(), String> {
        if self.seq != before.seq + 1 {
            return Err(format!("sequence number {} follows {}", self.seq, before.seq));
        }
        if self.prev != before.hash {
            return Err(format!("its previous hash is not that of line {}", before.seq));
        }
        Ok(())
    }

    pub fn is_seal(&self) -> bool {
        self.event == "seal"
    }

    pub fn position(&self) -> ChainPosition {
        ChainPosition { seq: self.seq, hash: self.hash.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_round_trips_and_any_modified_byte_is_detected() {
        let mut position = ChainPosition::start();
        let mut text = String::new();
        let record = Record::ConnectionsRefused { code: "TB0103".into(), count: 7 };
        position.append(&record, "2026-01-01T00:00:00Z", &mut text);
        let line = text.trim_end();
        let read = Line::read(line).expect("a valid line");
        assert_eq!((read.seq, read.event.as_str(), read.count), (1, "connections_refused", 7));
        assert_eq!(read.position(), position);
        for at in 0..line.len() {
            let mut bytes = line.as_bytes().to_vec();
            bytes[at] ^= 1;
            if let Ok(changed) = String::from_utf8(bytes) {
                assert!(Line::read(&changed).is_err(), "the change of byte {at} was not detected");
            }
        }
    }
}
