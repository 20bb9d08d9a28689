//! Names of mailboxes, roles and messages, and the validation that all of them share.

use bytestring::ByteString;
use std::fmt;

/// Maximum length of a name or message id, in bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// Why a name is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("it is empty")]
    Empty,
    /// The name exceeds [`MAX_NAME_BYTES`].
    #[error("it is longer than {MAX_NAME_BYTES} bytes")]
    TooLong,
    /// The name contains a control character or an invisible formatting character.
    #[error("it contains a control character")]
    ControlCharacter,
    /// The name contains a slash or backslash, or is `.` or `..`.
    #[error("it contains a slash or is a dot path")]
    PathLike,
}

/// Validates a mailbox name, role or message id. Names are never used as paths here, but they end up in logs, terminals
/// and other systems' files, so path-like names and invisible characters are rejected on input.
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
    // Fast path for printable ASCII. The loop has no branches, so the compiler vectorises it.
    let needs_check = |byte: u8| !(0x20..0x7f).contains(&byte) | (byte == b'/') | (byte == b'\\');
    if !name.bytes().fold(false, |found, byte| found | needs_check(byte)) {
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

/// Whether the character is invisible but changes the display of the text around it, such as a bidi override.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Id of a message: its idempotency key within a mailbox.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MsgId(ByteString);

impl MsgId {
    /// Creates a random id.
    pub fn new() -> Self {
        Self(ByteString::from(uuid::Uuid::new_v4().to_string()))
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the underlying string.
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

/// An agent on the bus: its mailbox and its role.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AgentRef {
    /// Name of the agent's mailbox.
    pub session_id: ByteString,
    /// Role of the agent, if it has one.
    pub role: Option<ByteString>,
}

impl AgentRef {
    /// Creates a reference to an agent without a role.
    pub fn new(session_id: impl Into<ByteString>) -> Self {
        Self { session_id: session_id.into(), role: None }
    }

    /// Sets the role.
    pub fn with_role(mut self, role: impl Into<ByteString>) -> Self {
        self.role = Some(role.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_valid_and_each_kind_of_invalid_name_is_rejected() {
        for good in ["worker-7#mcp", "äöü", "a..b", "7c0e", "x y", &"n".repeat(MAX_NAME_BYTES)] {
            assert_eq!(check_name(good), Ok(()), "{good:?}");
        }
        let check = |name: &str, expected| assert_eq!(check_name(name), Err(expected), "{name:?}");
        check("", NameError::Empty);
        check(&"n".repeat(MAX_NAME_BYTES + 1), NameError::TooLong);
        check("a\0b", NameError::ControlCharacter);
        check("a\u{85}b", NameError::ControlCharacter);
        check("a\u{202e}b", NameError::ControlCharacter);
        let joiners_and_marks = (0x200b..=0x200f).chain(0x2028..=0x202e);
        let isolates = (0x2060..=0x206f).chain([0xfeff]);
        let others = [0xad, 0x61c, 0x180e].into_iter().chain(0xfff9..=0xfffb).chain(0xe0000..=0xe007f);
        for invisible in joiners_and_marks.chain(isolates).chain(others).filter_map(char::from_u32) {
            check(&format!("a{invisible}b"), NameError::ControlCharacter);
            check(&invisible.to_string(), NameError::ControlCharacter);
        }
        check("a\u{7f}b", NameError::ControlCharacter);
        check("../etc", NameError::PathLike);
        check("..", NameError::PathLike);
        check(".", NameError::PathLike);
        check("ä/b", NameError::PathLike);
        check("a\\b", NameError::PathLike);
    }
}
