//! Positions in a file.

use std::fmt;

/// A position in a file. Lines and columns are counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line number.
    pub line: usize,
    /// Column number, in characters.
    pub column: usize,
}

impl Position {
    /// The position of anything that is in no file, such as built-in rules.
    pub const NOWHERE: Self = Self { line: 0, column: 0 };
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// The lines of a text, to convert byte offsets to positions.
pub(crate) struct Lines<'a> {
    text: &'a str,
    /// Byte offset of the start of each line.
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub fn new(text: &'a str) -> Self {
        let starts = std::iter::once(0).chain(memchr::memchr_iter(b'\n', text.as_bytes()).map(|at| at + 1)).collect();
        Self { text, starts }
    }

    pub fn position(&self, offset: usize) -> Position {
        // An offset inside a character is moved to its start.
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let line = self.starts.partition_point(|start| *start <= offset);
        Position { line, column: self.text[self.starts[line - 1]..offset].chars().count() + 1 }
    }
}
