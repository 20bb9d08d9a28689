//! Reads a log in batches, from a position that can be stored.

use crate::error::AuditError;
use crate::files;
use crate::line::NO_HASH;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The end of a line: its file and offset, and the line's number and hash.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    file: u64,
    offset: u64,
    /// Number of the line; 0 before the first one.
    pub seq: u64,
    hash: String,
}

/// Consecutive lines of one file.
#[derive(Debug)]
pub struct Batch {
    /// The lines, without line ends.
    pub lines: Vec<String>,
    /// The position behind them.
    pub next: Cursor,
    /// Number of lines before them that rotation removed.
    pub missed: u64,
}

/// Reads complete lines behind `from`, of about `max_bytes`. There are none at the end of the log. If the line at `from`
/// is not the one that was read there, because a crash lost it, its file is read from the start.
pub fn read_batch(folder: &Path, from: &Cursor, max_bytes: usize) -> Result<Batch, AuditError> {
    // Listed before a file is read: a file that has a successor is complete.
    let numbers = files::numbers(folder)?;
    let is_known = numbers.contains(&from.file);
    let after = numbers.iter().copied().filter(|number| !is_known || *number >= from.file);
    for number in after {
        let path = files::path_of(folder, number);
        let file = files::open(&path).map_err(AuditError::io("open", &path))?;
        let offset = if number == from.file && ends_at(&file, from) { from.offset } else { 0 };
        let bytes = read_at(&file, offset, max_bytes).map_err(AuditError::io("read", &path))?;
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if complete == 0 && bytes.len() >= max_bytes {
            return Err(AuditError::damaged(files::file_name(number), format!("no line ends behind byte {offset}")));
        }
        let text = String::from_utf8_lossy(&bytes[..complete]);
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if let (Some(first), Some(last)) = (lines.first(), lines.last()) {
            let missed = if from.seq > 0 { seq_of(first).saturating_sub(from.seq + 1) } else { 0 };
            let next = Cursor {
                file: number,
                offset: offset + complete as u64,
                seq: seq_of(last),
                hash: hash_of(last).into(),
            };
            return Ok(Batch { lines, next, missed });
        }
    }
    Ok(Batch { lines: Vec::new(), next: from.clone(), missed: 0 })
}

/// Number of the last line according to the head; 0 if there is none.
pub fn last_seq(folder: &Path) -> u64 {
    files::read_head(folder).ok().flatten().map_or(0, |head| head.position.seq)
}

/// Whether the line that ends at the cursor is still there.
fn ends_at(file: &File, cursor: &Cursor) -> bool {
    let end = format!("{}\"}}\n", cursor.hash);
    let mut bytes = vec![0; end.len()];
    let start = cursor.offset.checked_sub(end.len() as u64);
    start.is_some_and(|start| file.read_exact_at(&mut bytes, start).is_ok()) && bytes == end.as_bytes()
}

fn read_at(file: &File, offset: u64, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; max_bytes];
    let mut filled = 0;
    while filled < max_bytes {
        match file.read_at(&mut bytes[filled..], offset + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn seq_of(line: &str) -> u64 {
    let digits = line.strip_prefix("{\"seq\":").and_then(|rest| rest.split_once(','));
    digits.and_then(|(digits, _)| digits.parse().ok()).unwrap_or(0)
}

fn hash_of(line: &str) -> &str {
    let hash = line.strip_suffix("\"}").and_then(|line| line.get(line.len().checked_sub(NO_HASH.len())?..));
    hash.unwrap_or_default()
}
