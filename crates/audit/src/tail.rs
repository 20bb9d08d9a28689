//! The end of a log, and what is added to it, as lines.

use crate::error::AuditError;
use crate::files;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Reads on from where it stopped, also over the end of a file.
pub struct Tail {
    folder: PathBuf,
    /// The file that is read, and how much of it was.
    place: Option<(u64, u64)>,
}

impl Tail {
    /// The last lines that are there.
    pub fn open(folder: &Path, last: usize) -> Result<(Self, Vec<String>), AuditError> {
        let mut tail = Self { folder: folder.to_owned(), place: None };
        let mut lines: VecDeque<String> = VecDeque::new();
        let numbers = files::numbers(folder)?;
        // As many files as it takes; the last one always, to know where it ends.
        for number in numbers.iter().rev() {
            let (read, end) = read_from(folder, *number, 0)?;
            tail.place.get_or_insert((*number, end));
            for line in read.into_iter().rev().take(last - lines.len()) {
                lines.push_front(line);
            }
            if lines.len() >= last {
                break;
            }
        }
        Ok((tail, lines.into()))
    }

    /// What was added since.
    pub fn more(&mut self) -> Result<Vec<String>, AuditError> {
        let mut lines = Vec::new();
        for number in files::numbers(&self.folder)? {
            let from = match self.place {
                Some((current, _)) if number < current => continue,
                Some((current, end)) if number == current => end,
                _ => 0,
            };
            let (read, end) = read_from(&self.folder, number, from)?;
            lines.extend(read);
            self.place = Some((number, end));
        }
        Ok(lines)
    }
}

/// The whole lines from that place on, and where they end.
fn read_from(folder: &Path, number: u64, from: u64) -> Result<(Vec<String>, u64), AuditError> {
    let path = files::path_of(folder, number);
    let mut bytes = Vec::new();
    let read = File::open(&path).and_then(|mut file| {
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut bytes)
    });
    read.map_err(AuditError::io("read", path))?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let text = String::from_utf8_lossy(&bytes[..whole]);
    Ok((text.lines().map(str::to_owned).collect(), from + whole as u64))
}
