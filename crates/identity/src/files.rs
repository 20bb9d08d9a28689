//! Files that others replace while we run: a cheap way to see a change, and a way to write that no reader sees half of.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// What is compared to notice that a file was replaced or written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMark {
    inode: u64,
    mode: u32,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileMark {
    /// `None` if there is no such file, or it can't be looked at.
    pub fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self {
            inode: found.ino(),
            mode: found.mode(),
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }

    /// Whether anybody but its owner may write to it.
    pub fn others_may_write(&self) -> bool {
        self.mode & 0o022 != 0
    }
}

/// Replaces a file, or makes it, readable by its owner only. After a crash there is the old one or the new one.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let draft = folder.join(name);
    // What an earlier process of this number left behind may be readable by more than its owner.
    fs::remove_file(&draft).or_else(ignore_missing)?;
    let written = write_new(&draft, bytes).and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        fs::remove_file(&draft).ok();
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
    fn a_replaced_file_is_private_and_has_another_mark() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f");
        assert_eq!(FileMark::of(&path), None);
        fs::write(&path, "1").expect("a file");
        let before = FileMark::of(&path);
        write_private(&path, b"2").expect("it can be replaced");
        assert_ne!(FileMark::of(&path), before);
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "no draft is left");
    }
}
