//! Cheap detection of changes to a file.

use std::fs;
use std::os::unix::fs::MetadataExt;
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

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_base::replace_file;

    #[test]
    fn a_replaced_file_has_a_new_mark() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f");
        assert_eq!(FileMark::of(&path), None);
        fs::write(&path, "1").expect("a file");
        let before = FileMark::of(&path);
        replace_file(&path, b"2").expect("replaced");
        assert_ne!(FileMark::of(&path), before);
    }
}
