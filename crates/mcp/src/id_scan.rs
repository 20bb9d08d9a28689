//! Finds the id of a JSON-RPC message without buffering it: for messages that are too long or invalid. A state machine
//! over bytes; it considers only the members of the outermost object.

use crate::Raw;

/// Longer ids are not expected from any peer.
const MAX_ID_BYTES: usize = 256;
const MAX_KEY_BYTES: usize = 16;

/// The state of a scan.
#[derive(Default)]
pub struct IdScan {
    depth: usize,
    state: State,
    escaped: bool,
    /// A string at depth 1: a key, or the value of `id`.
    text: Vec<u8>,
    key: Key,
    id: Option<Vec<u8>>,
    has_method: bool,
    broken: bool,
    bytes: u64,
}

#[derive(Default, Clone, Copy, PartialEq)]
enum State {
    #[default]
    Between,
    String,
}

#[derive(Default, Clone, Copy, PartialEq)]
enum Key {
    /// A key is expected, or is being read.
    #[default]
    None,
    Id,
    Other,
}

/// What a scan found in a message.
pub struct ScannedId {
    /// The last id of the outermost object.
    pub id: Option<Raw>,
    /// Whether it has a method, so that it is a request or a notification.
    pub has_method: bool,
    /// Whether all brackets are closed.
    pub balanced: bool,
    /// The size of the message.
    pub bytes: u64,
}

impl IdScan {
    /// Scans the next part of the message.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        for &byte in bytes {
            match self.state {
                State::String => self.in_string(byte),
                State::Between => self.between(byte),
            }
        }
    }

    /// The result, after the last part.
    pub fn finish(self) -> ScannedId {
        let id = self.id.and_then(|id| String::from_utf8(id).ok());
        let id = id.and_then(|id| Raw::parse(id.trim()).ok());
        let balanced = self.depth == 0 && self.state == State::Between && !self.broken;
        ScannedId { id, has_method: self.has_method, balanced, bytes: self.bytes }
    }

    fn in_string(&mut self, byte: u8) {
        self.keep(byte);
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => self.state = State::Between,
            _ => {}
        }
    }

    fn between(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.state = State::String;
                if self.depth == 1 && self.key == Key::None {
                    self.text.clear();
                }
                self.keep(byte);
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.broken |= self.depth == 0;
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    self.end_member();
                }
            }
            b':' if self.depth == 1 && self.key == Key::None => {
                self.key = if self.text == b"\"id\"" { Key::Id } else { Key::Other };
                self.has_method |= self.text == b"\"method\"";
                self.text.clear();
            }
            b',' if self.depth == 1 => self.end_member(),
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => self.keep(byte),
        }
    }

    fn end_member(&mut self) {
        if self.key == Key::Id && (1..=MAX_ID_BYTES).contains(&self.text.len()) {
            self.id = Some(std::mem::take(&mut self.text));
        }
        self.key = Key::None;
        self.text.clear();
    }

    fn keep(&mut self, byte: u8) {
        let limit = match self.key {
            Key::None => MAX_KEY_BYTES,
            // One byte more, to notice that the id is too long.
            Key::Id => MAX_ID_BYTES + 1,
            Key::Other => 0,
        };
        let wanted = self.depth == 1 && (self.state == State::String || self.key == Key::Id);
        if wanted && self.text.len() < limit {
            self.text.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, id: Option<&str>, has_method: bool) {
        for step in [1, 3, text.len()] {
            let mut scan = IdScan::default();
            text.as_bytes().chunks(step).for_each(|chunk| scan.feed(chunk));
            let found = scan.finish();
            assert_eq!(found.id.as_ref().map(|id| id.get()), id, "{text}");
            assert_eq!(found.has_method, has_method, "{text}");
            assert!(found.balanced, "{text}");
        }
    }

    #[test]
    fn the_outermost_id_is_found_at_any_position() {
        check(r#"{"jsonrpc":"2.0","id":17,"result":{"id":3}}"#, Some("17"), false);
        check(r#"{"result":{"id":3,"x":["id",":",{}]} , "id" : 17 }"#, Some("17"), false);
        check(r#"{"result":"\"id\":5,\\","id":"a\"b"}"#, Some(r#""a\"b""#), false);
        check(r#"{"id":4,"method":"x","params":{"id":1}}"#, Some("4"), true);
        check(r#"{"method":"x","params":[{"id":1}]}"#, None, true);
    }

    #[test]
    fn an_overlong_id_is_ignored_instead_of_truncated() {
        check(&format!(r#"{{"id":{},"result":1}}"#, "7".repeat(MAX_ID_BYTES + 1)), None, false);
        let longest = "7".repeat(MAX_ID_BYTES);
        check(&format!("{{\"id\":{0}{longest}{0},\"result\":1}}", " \n".repeat(200)), Some(&longest), false);
    }

    #[test]
    fn a_truncated_message_is_not_balanced() {
        let mut scan = IdScan::default();
        scan.feed(br#"{"id":1,"result":{"#);
        assert!(!scan.finish().balanced);
    }
}
