//! Appends lines to a file, for example on another mount.

use crate::error::ShipError;
use crate::target::Sink;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use toolbus_base::append_to_trusted;

pub struct FileSink {
    path: PathBuf,
}

impl FileSink {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Opened for every batch, so that the file may be moved away and the mount may come back.
    fn append(&self, lines: &[String]) -> io::Result<()> {
        let mut file = append_to_trusted(&self.path)?;
        let mut text = String::new();
        if !ends_with_a_line(&mut file)? {
            text.push('\n');
        }
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        file.write_all(text.as_bytes())?;
        file.sync_data()
    }
}

impl Sink for FileSink {
    fn send(&mut self, lines: &[String]) -> Result<(), ShipError> {
        self.append(lines).map_err(|source| ShipError::File { file: self.path.clone(), source })
    }
}

/// An interrupted write may have left a part of a line; the next one must not continue it.
fn ends_with_a_line(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}
