//! Files that are replaced while the process runs: cheap change detection, and atomic replacement.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A fingerprint of file metadata, compared to detect that a file was replaced or modified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMark {
    inode: u64,
    mode: u32,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileMark {
    /// The mark of a file; `None` if it is missing or its metadata can't be read.
    pub fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            inode: metadata.ino(),
            mode: metadata.mode(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Whether group or others have write permission.
    pub fn others_may_write(&self) -> bool {
        self.mode & 0o022 != 0
    }
}

/// Atomically creates or replaces a file, readable by its owner only, and fsyncs it: a crash leaves the old or the new
/// content.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let temporary = folder.join(name);
    // A leftover of an earlier process with the same pid may have a less restrictive mode.
    fs::remove_file(&temporary).or_else(ignore_missing)?;
    let written = write_new(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        fs::remove_file(&temporary).ok();
    }
    written?;
    File::open(folder)?.sync_all()
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn ignore_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_replaced_file_is_private_and_has_a_new_mark() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f");
        assert_eq!(FileMark::of(&path), None);
        fs::write(&path, "1").expect("a file");
        let before = FileMark::of(&path);
        write_private(&path, b"2").expect("replaced");
        assert_ne!(FileMark::of(&path), before);
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "no temporary file is left");
    }
}
