//! Finds the end of an existing log and repairs it after a crash: a torn line is truncated, and lines that the head
//! names but the files lack are counted as lost. Both are recorded in the log, where [`crate::verify`] finds them.

use crate::error::AuditError;
use crate::files::{self, HEAD_FILE, Head};
use crate::line::{ChainPosition, Line};
use crate::record::Record;
use crate::sealer::Seals;
use std::fs::{self, OpenOptions};
use std::path::Path;

/// The end of the log after recovery.
pub struct LogEnd {
    pub position: ChainPosition,
    /// Number of the last file, if there is one.
    pub file: Option<u64>,
    pub bytes: u64,
    pub seals: Seals,
    /// Record of the repair, to be written next.
    pub recovered: Option<Record>,
}

pub fn recover_end(folder: &Path) -> Result<LogEnd, AuditError> {
    let head = files::read_head(folder);
    let mut numbers = files::numbers(folder)?;
    let mut torn_bytes = 0;
    // A last file without a complete line was created just before a crash.
    let tail = loop {
        let Some(number) = numbers.last().copied() else { break None };
        let read = read_file(folder, number)?;
        torn_bytes += read.torn_bytes;
        if read.lines.is_empty() {
            let path = files::path_of(folder, number);
            fs::remove_file(&path).map_err(AuditError::io("remove", path))?;
            numbers.pop();
            continue;
        }
        break Some((number, read));
    };
    let last = tail.as_ref().and_then(|(_, read)| read.lines.last()).map_or_else(ChainPosition::start, Line::position);
    let (lost, head_missing) = match &head {
        Ok(Some(head)) => (lost_since(head, &last, tail.as_ref().map(|(number, read)| (*number, read)))?, false),
        Ok(None) => (0, tail.is_some()),
        Err(_) => (0, true),
    };
    if let Some((number, read)) = &tail
        && read.torn_bytes > 0
    {
        truncate(folder, *number, read.valid_bytes)?;
    }
    let repaired = torn_bytes > 0 || lost > 0 || head_missing;
    Ok(LogEnd {
        position: last,
        file: tail.as_ref().map(|(number, _)| *number),
        bytes: tail.as_ref().map_or(0, |(_, read)| read.valid_bytes),
        seals: tail.as_ref().map(|(_, read)| Seals::of(&read.lines)).unwrap_or_default(),
        recovered: repaired.then_some(Record::Recovered { torn_bytes, lost, head_missing }),
    })
}

/// Number of lines that the head knows and the files lack.
fn lost_since(head: &Head, last: &ChainPosition, tail: Option<(u64, &FileRead)>) -> Result<u64, AuditError> {
    if head.position.seq > last.seq {
        return Ok(head.position.seq - last.seq);
    }
    let Some((number, read)) = tail else { return Ok(0) };
    let recorded = read.lines.iter().find(|line| line.seq == head.position.seq).map(Line::position);
    // After a crash directly behind a rotation the head may still refer to the previous file.
    let before = read.lines.first().map(|first| ChainPosition { seq: first.seq - 1, hash: first.prev.clone() });
    match [recorded, before].into_iter().flatten().any(|position| position == head.position) {
        true => Ok(0),
        false => Err(AuditError::Damaged {
            place: HEAD_FILE.to_owned(),
            what: format!(
                "line {} of the log, in {}, is not the one that the head names",
                head.position.seq,
                files::file_name(number)
            ),
        }),
    }
}

struct FileRead {
    lines: Vec<Line>,
    valid_bytes: u64,
    torn_bytes: u64,
}

/// Reads a file into memory and checks its chain; rotation limits its size.
fn read_file(folder: &Path, number: u64) -> Result<FileRead, AuditError> {
    let path = files::path_of(folder, number);
    let bytes = files::read(&path).map_err(AuditError::io("read", &path))?;
    let mut read = FileRead { lines: Vec::new(), valid_bytes: 0, torn_bytes: 0 };
    for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let Some(complete) = line.strip_suffix(b"\n") else {
            read.torn_bytes = line.len() as u64;
            break;
        };
        let checked =
            std::str::from_utf8(complete).map_err(|_| "it is not valid UTF-8".to_owned()).and_then(Line::read);
        let follows = |line: Line| match read.lines.last() {
            Some(before) => line.follows(&before.position()).map(|()| line),
            None => Ok(line),
        };
        let place = || format!("{}:{}", files::file_name(number), index + 1);
        let line_read = checked.and_then(follows).map_err(|what| AuditError::damaged(place(), what))?;
        read.valid_bytes += line.len() as u64;
        read.lines.push(line_read);
    }
    Ok(read)
}

fn truncate(folder: &Path, number: u64, bytes: u64) -> Result<(), AuditError> {
    let path = files::path_of(folder, number);
    let file =
        toolbus_base::open_private(&path, OpenOptions::new().write(true)).map_err(AuditError::io("open", &path))?;
    file.set_len(bytes).and_then(|()| file.sync_all()).map_err(AuditError::io("truncate the torn end of", path))
}
