//! A file whose end is filled with zeros in advance. A sync that only overwrites blocks is faster than one that makes a file
//! grow, because the file system has no change of its own to commit.
//!
//! A marker follows the data, so that the zeros behind it are not taken for data:
//!
//! ```text
//! data · marker · zeros
//! ```
//!
//! The next append overwrites the marker and writes a new one behind its own data. If a crash tears that write, there may
//! be no marker at the end: then everything up to the last byte of the file counts as data, and recovery finds the torn
//! write in it, as in a file without zeros.

use crate::DiskFile;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What the file needs of the file system.
pub trait RawFile: Send + Sync {
    /// Its length in bytes.
    fn length(&self) -> io::Result<u64>;
    /// Writes both parts at that offset, one behind the other.
    fn write_at(&self, offset: u64, parts: [&[u8]; 2]) -> io::Result<()>;
    /// Fills the buffer from that offset on, or fails.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
    /// Cuts the file to that length.
    fn set_len(&self, length: u64) -> io::Result<()>;
    /// Makes all writes so far durable.
    fn sync(&self) -> io::Result<()>;
}

/// How much is filled at a time.
const FILL_BYTES: usize = 256 << 10;
/// A larger append is not worth it: its own bytes take most of the time of its sync.
const MAX_SMALL_APPEND: usize = 16 << 10;

const MARKER_BYTES: usize = 16;
const MARKER_START: [u8; 7] = *b"\0tb-end";
/// Not zero, so that the last byte of the file that is not zero is that of the marker.
const MARKER_END: u8 = 0xed;
static ZEROS: [u8; FILL_BYTES] = [0; FILL_BYTES];

/// A file that is written to at its end only.
pub struct PrefilledFile<F> {
    file: F,
    end: Mutex<End>,
}

#[derive(Clone, Copy)]
struct End {
    /// Bytes of data.
    data: u64,
    /// Length of the file.
    filled: u64,
    /// Whether a marker follows the data. Otherwise nothing does.
    is_marked: bool,
}

impl<F: RawFile> PrefilledFile<F> {
    /// Opens a file, or takes an empty one over.
    pub fn open(file: F) -> io::Result<Self> {
        let filled = file.length()?;
        let marker = find_marker(&file, filled)?;
        let end = End { data: marker.unwrap_or(filled), filled, is_marked: marker.is_some() };
        Ok(Self { file, end: Mutex::new(end) })
    }

    fn end(&self) -> MutexGuard<'_, End> {
        self.end.lock().expect("no code panics while holding the lock")
    }
}

impl End {
    /// Makes room for a small append by zeros behind it, after a marker. On a full disk the append goes on without them.
    fn fill(&mut self, file: &impl RawFile, appended: usize) {
        let needed = self.data + (appended + MARKER_BYTES) as u64;
        if appended > MAX_SMALL_APPEND || needed <= self.filled {
            return;
        }
        let marker = marker(self.data);
        let missing: &[u8] = if self.is_marked { &[] } else { &marker };
        if file.write_at(self.filled, [missing, &ZEROS]).is_ok() {
            (self.filled, self.is_marked) = (self.filled + (missing.len() + FILL_BYTES) as u64, true);
        }
    }
}

impl<F: RawFile> DiskFile for PrefilledFile<F> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.end().data)
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut end = self.end();
        end.fill(&self.file, bytes.len());
        let data = end.data + bytes.len() as u64;
        // Without zeros behind the data, the end of the file is the end of the data.
        let (is_marked, marker) = (end.filled > data, marker(data));
        let behind: &[u8] = if is_marked { &marker } else { &[] };
        self.file.write_at(end.data, [bytes, behind])?;
        let filled = end.filled.max(data + behind.len() as u64);
        *end = End { data, filled, is_marked };
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buffer)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut end = self.end();
        self.file.set_len(length)?;
        *end = End { data: length, filled: length, is_marked: false };
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// The marker of data that ends at that offset. It names the offset: one that is left from before is not taken for it.
fn marker(data: u64) -> [u8; MARKER_BYTES] {
    let mut marker = [0; MARKER_BYTES];
    marker[..7].copy_from_slice(&MARKER_START);
    marker[7..15].copy_from_slice(&xxh3_64_with_seed(&data.to_le_bytes(), 0).to_le_bytes());
    marker[15] = MARKER_END;
    marker
}

/// The offset of the marker before the zeros at the end of a file of that length.
fn find_marker(file: &impl RawFile, length: u64) -> io::Result<Option<u64>> {
    let mut rest = length;
    let mut buffer = vec![0; 64 << 10];
    while rest > 0 {
        let from = rest.saturating_sub(buffer.len() as u64);
        let chunk = &mut buffer[..(rest - from) as usize];
        file.read_at(from, chunk)?;
        if let Some(last) = chunk.iter().rposition(|byte| *byte != 0) {
            let end = from + last as u64 + 1;
            let Some(data) = end.checked_sub(MARKER_BYTES as u64) else { return Ok(None) };
            let mut found = [0; MARKER_BYTES];
            file.read_at(data, &mut found)?;
            return Ok((found == marker(data)).then_some(data));
        }
        rest = from;
    }
    Ok(None)
}

impl RawFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn write_at(&self, offset: u64, [first, second]: [&[u8]; 2]) -> io::Result<()> {
        let written = match rustix::io::pwritev(self, &[IoSlice::new(first), IoSlice::new(second)], offset) {
            Err(rustix::io::Errno::INTR) => 0,
            written => written?,
        };
        // The system call may write less than all of it.
        self.write_all_at(first.get(written..).unwrap_or_default(), offset + written as u64)?;
        let rest = written.saturating_sub(first.len());
        self.write_all_at(&second[rest..], offset + (first.len() + rest) as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        File::set_len(self, length)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
