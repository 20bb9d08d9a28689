//! Where an existing log goes on. A line that a crash cut short is taken away; what the head says and is not there counts
//! as lost. Both are written into the log, where [`crate::verify`] finds them.

use crate::error::AuditError;
use crate::files::{self, HEAD_FILE, Head};
use crate::line::{Line, Link};
use crate::record::Record;
use std::fs::{self, OpenOptions};
use std::path::Path;

/// The end of the log, repaired.
pub struct End {
    pub link: Link,
    /// The last file, if there is one.
    pub file: Option<u64>,
    pub bytes: u64,
    /// To be written next, if something had to be repaired.
    pub recovered: Option<Record>,
}

pub fn find_end(folder: &Path) -> Result<End, AuditError> {
    let head = files::read_head(folder);
    let mut numbers = files::numbers(folder)?;
    let mut torn_bytes = 0;
    // A file without a whole line is one that was begun when the crash came.
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
    let last = tail.as_ref().and_then(|(_, read)| read.lines.last()).map_or_else(Link::start, Line::link);
    let (lost, head_missing) = match &head {
        Ok(Some(head)) => (lost_since(head, &last, tail.as_ref().map(|(number, read)| (*number, read)))?, false),
        Ok(None) => (0, tail.is_some()),
        Err(_) => (0, true),
    };
    if let Some((number, read)) = &tail
        && read.torn_bytes > 0
    {
        cut(folder, *number, read.good_bytes)?;
    }
    let repaired = torn_bytes > 0 || lost > 0 || head_missing;
    Ok(End {
        link: last,
        file: tail.as_ref().map(|(number, _)| *number),
        bytes: tail.as_ref().map_or(0, |(_, read)| read.good_bytes),
        recovered: repaired.then_some(Record::Recovered { torn_bytes, lost, head_missing }),
    })
}

/// How many lines there were that are not there any more.
fn lost_since(head: &Head, last: &Link, tail: Option<(u64, &FileRead)>) -> Result<u64, AuditError> {
    if head.link.seq > last.seq {
        return Ok(head.link.seq - last.seq);
    }
    let Some((number, read)) = tail else { return Ok(0) };
    let known = read.lines.iter().find(|line| line.seq == head.link.seq).map(Line::link);
    // The head may be one file behind, if the crash came right after a new one was begun.
    let before = read.lines.first().map(|first| Link { seq: first.seq - 1, hash: first.prev.clone() });
    match [known, before].into_iter().flatten().any(|link| link == head.link) {
        true => Ok(0),
        false => Err(AuditError::Damaged {
            place: HEAD_FILE.to_owned(),
            what: format!(
                "line {} of the log, in {}, is not the one it names",
                head.link.seq,
                files::file_name(number)
            ),
        }),
    }
}

struct FileRead {
    lines: Vec<Line>,
    good_bytes: u64,
    torn_bytes: u64,
}

/// Reads a whole file and checks its chain; its size is limited by rotation.
fn read_file(folder: &Path, number: u64) -> Result<FileRead, AuditError> {
    let path = files::path_of(folder, number);
    let bytes = fs::read(&path).map_err(AuditError::io("read", &path))?;
    let mut read = FileRead { lines: Vec::new(), good_bytes: 0, torn_bytes: 0 };
    for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let Some(whole) = line.strip_suffix(b"\n") else {
            read.torn_bytes = line.len() as u64;
            break;
        };
        let checked = std::str::from_utf8(whole).map_err(|_| "it is not text".to_owned()).and_then(Line::read);
        let follows = |line: Line| match read.lines.last() {
            Some(before) => line.follows(&before.link()).map(|()| line),
            None => Ok(line),
        };
        let place = || format!("{}:{}", files::file_name(number), index + 1);
        let line_read = checked.and_then(follows).map_err(|what| AuditError::Damaged { place: place(), what })?;
        read.good_bytes += line.len() as u64;
        read.lines.push(line_read);
    }
    Ok(read)
}

fn cut(folder: &Path, number: u64, bytes: u64) -> Result<(), AuditError> {
    let path = files::path_of(folder, number);
    let file = OpenOptions::new().write(true).open(&path).map_err(AuditError::io("open", &path))?;
    file.set_len(bytes).and_then(|()| file.sync_all()).map_err(AuditError::io("cut the torn end of", path))
}
