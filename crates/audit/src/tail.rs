//! Reads the last lines of a log, and the lines added later.

use crate::error::AuditError;
use crate::files;
use std::collections::VecDeque;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Continues where it stopped, across file rotation.
pub struct Tail {
    folder: PathBuf,
    /// Number of the current file, and the offset read so far.
    offset: Option<(u64, u64)>,
}

impl Tail {
    /// Returns the last `last` lines.
    pub fn open(folder: &Path, last: usize) -> Result<(Self, Vec<String>), AuditError> {
        let mut tail = Self { folder: folder.to_owned(), offset: None };
        let mut lines: VecDeque<String> = VecDeque::new();
        let numbers = files::numbers(folder)?;
        // Reads backwards until there are enough lines; always the last file, to know its end.
        for number in numbers.iter().rev() {
            let (read, end) = read_from(folder, *number, 0)?;
            tail.offset.get_or_insert((*number, end));
            for line in read.into_iter().rev().take(last - lines.len()) {
                lines.push_front(line);
            }
            if lines.len() >= last {
                break;
            }
        }
        Ok((tail, lines.into()))
    }

    /// Returns the lines added since the last call.
    pub fn more(&mut self) -> Result<Vec<String>, AuditError> {
        let mut lines = Vec::new();
        for number in files::numbers(&self.folder)? {
            let from = match self.offset {
                Some((current, _)) if number < current => continue,
                Some((current, end)) if number == current => end,
                _ => 0,
            };
            let (read, end) = read_from(&self.folder, number, from)?;
            lines.extend(read);
            self.offset = Some((number, end));
        }
        Ok(lines)
    }
}

/// The complete lines from that offset on, and the offset of their end.
fn read_from(folder: &Path, number: u64, from: u64) -> Result<(Vec<String>, u64), AuditError> {
    let path = files::path_of(folder, number);
    let mut bytes = Vec::new();
    let read = files::open(&path).and_then(|mut file| {
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut bytes)
    });
    read.map_err(AuditError::io("read", path))?;
    let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let text = String::from_utf8_lossy(&bytes[..complete]);
    Ok((text.lines().map(str::to_owned).collect(), from + complete as u64))
}
