//! Names of mailboxes, roles and messages, and the one rule that all of them obey.

use bytestring::ByteString;
use std::fmt;

/// Longest name or message id, in bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// Why a name is not acceptable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("it is empty")]
    Empty,
    #[error("it is longer than {MAX_NAME_BYTES} bytes")]
    TooLong,
    #[error("it contains a control character")]
    ControlCharacter,
    #[error("it contains a slash or is a dot path")]
    PathLike,
}

/// Accepts a mailbox name, role or message id. Names never become paths here, but they end up in logs, terminals
/// and other people's file systems, so what looks like a path or hides in a terminal is refused at the door.
pub fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong);
    }
    if name == "." || name == ".." {
        return Err(NameError::PathLike);
    }
    // Almost every name is plain ASCII without surprises. This loop has no branches, so it runs on many bytes at once.
    let surprising = |byte: u8| !(0x20..0x7f).contains(&byte) | (byte == b'/') | (byte == b'\\');
    if !name.bytes().fold(false, |found, byte| found | surprising(byte)) {
        return Ok(());
    }
    if name.contains(['/', '\\']) {
        return Err(NameError::PathLike);
    }
    if name.chars().any(|c| c.is_control() || is_invisible(c)) {
        return Err(NameError::ControlCharacter);
    }
    Ok(())
}

/// Characters that no one sees but that change what one sees around them.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// The agent that a mailbox belongs to: NAME#suffix is a mailbox of NAME.
pub fn principal_of(mailbox: &str) -> &str {
    mailbox.split_once('#').map_or(mailbox, |(agent, _)| agent)
}

/// The id of a message: its idempotency key within a mailbox.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MsgId(ByteString);

impl MsgId {
    /// A new random id.
    pub fn new() -> Self {
        Self(ByteString::from(uuid::Uuid::new_v4().to_string()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn into_inner(self) -> ByteString {
        self.0
    }
}

impl Default for MsgId {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Into<ByteString>> From<T> for MsgId {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for MsgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for MsgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// An agent on the bus: the name of its mailbox and the role it acts in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AgentRef {
    pub session_id: ByteString,
    pub role: Option<ByteString>,
}

impl AgentRef {
    pub fn new(session_id: impl Into<ByteString>) -> Self {
        Self { session_id: session_id.into(), role: None }
    }

    pub fn with_role(mut self, role: impl Into<ByteString>) -> Self {
        self.role = Some(role.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_pass_and_hostile_ones_are_refused_by_kind() {
        for good in ["worker-7#mcp", "äöü", "a..b", "7c0e", "x y", &"n".repeat(MAX_NAME_BYTES)] {
            assert_eq!(check_name(good), Ok(()), "{good:?}");
        }
        let check = |name: &str, expected| assert_eq!(check_name(name), Err(expected), "{name:?}");
        check("", NameError::Empty);
        check(&"n".repeat(MAX_NAME_BYTES + 1), NameError::TooLong);
        check("a\0b", NameError::ControlCharacter);
        check("a\u{85}b", NameError::ControlCharacter);
        check("a\u{202e}b", NameError::ControlCharacter);
        check("../etc", NameError::PathLike);
        check("..", NameError::PathLike);
        check("a\\b", NameError::PathLike);
    }
}
