//! Files outside of private folders that decide something: configuration, keys, certificates, secrets and locks. They have
//! to belong to root or to the user of this process, as has every link on the way to them, and must not be writable by all
//! users: otherwise another user would decide. All readers of such files use these functions, also when they read again.

use crate::private::{FILE_MODE, UnsafePath, UnsafeReason, is_own};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// As many as the kernel follows.
const MAX_LINKS: usize = 40;

/// Whose files are trusted: those of root and of the user of this process, and of one more user at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trust {
    also: Option<u32>,
}

impl Trust {
    /// Trusts the owner of a file too, for what belongs to that file. Only for a file that the user named: it is used
    /// regardless of its owner, who decides anyway.
    pub fn in_owner_of(file: &Path) -> Self {
        Self { also: fs::metadata(file).ok().map(|found| found.uid()) }
    }

    /// Reads a trusted text file.
    pub fn read_text(self, path: &Path) -> io::Result<String> {
        let mut text = String::new();
        self.open(path)?.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Opens a trusted file for reading. What is checked is what was opened; a link that is replaced between the check
    /// and the opening can only lead to another file of a trusted owner.
    fn open(self, path: &Path) -> io::Result<File> {
        // Before it is opened, because opening the pipe of another user would wait for that user.
        self.check(path, &fs::metadata(self.resolved(path)?).or_else(|_| fs::metadata(path))?)?;
        let file = File::open(path)?;
        self.check(path, &file.metadata()?)?;
        Ok(file)
    }

    fn check(self, path: &Path, found: &Metadata) -> io::Result<()> {
        self.check_owner(path, found)?;
        // What is written to a device such as /dev/null is not what others read from it.
        let is_shared = found.mode() & 0o002 != 0 && !found.file_type().is_char_device();
        if is_shared { Err(UnsafePath::error(path, UnsafeReason::Shared)) } else { Ok(()) }
    }

    fn check_owner(self, path: &Path, found: &Metadata) -> io::Result<()> {
        let is_trusted = is_own(found) || self.also == Some(found.uid());
        if is_trusted { Ok(()) } else { Err(UnsafePath::error(path, UnsafeReason::ForeignOwner(found.uid()))) }
    }

    /// The path without links, all of which have to be trusted. Missing parts are reported when the file is opened.
    fn resolved(self, path: &Path) -> io::Result<PathBuf> {
        let parts = |path: &Path| path.components().rev().map(|part| part.as_os_str().to_owned()).collect::<Vec<_>>();
        let (mut resolved, mut rest, mut links) = (PathBuf::new(), parts(path), 0);
        while let Some(part) = rest.pop() {
            if part == ".." && resolved.file_name().is_some() {
                resolved.pop();
                continue;
            }
            resolved.push(part);
            let Ok(found) = fs::symlink_metadata(&resolved) else { continue };
            if !found.is_symlink() {
                continue;
            }
            self.check_owner(&resolved, &found)?;
            links += 1;
            if links > MAX_LINKS {
                return Err(rustix::io::Errno::LOOP.into());
            }
            rest.extend(parts(&fs::read_link(&resolved)?));
            resolved.pop();
        }
        Ok(resolved)
    }
}

/// Reads a trusted file.
pub fn read_trusted(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_trusted(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a trusted text file.
pub fn read_trusted_text(path: &Path) -> io::Result<String> {
    Trust::default().read_text(path)
}

/// Opens a trusted file for reading.
pub fn open_trusted(path: &Path) -> io::Result<File> {
    Trust::default().open(path)
}

/// Checks a file that a library reads by its path. Prefer the functions that read it.
pub fn check_trusted(path: &Path) -> io::Result<()> {
    open_trusted(path).map(drop)
}

/// Opens a file to append to it, with mode 0600 if it is created. It may be writable by others, but it and the links to it
/// must not be another user's: that user would choose which file is changed, or read what is written.
pub fn append_to_trusted(path: &Path) -> io::Result<File> {
    let trust = Trust::default();
    if let Ok(found) = fs::metadata(trust.resolved(path)?) {
        trust.check_owner(path, &found)?;
    }
    let file = OpenOptions::new().read(true).append(true).create(true).mode(FILE_MODE).open(path)?;
    trust.check_owner(path, &file.metadata()?)?;
    Ok(file)
}

/// Resolves the path of a data or state folder: it may be or contain links, as systemd makes for a dynamic user, if they
/// are the user's or root's. Links inside the folder are refused by [`private_folder`](crate::private_folder).
pub fn private_root(path: &Path) -> io::Result<PathBuf> {
    let resolved = Trust::default().resolved(path)?;
    Ok(if resolved.as_os_str().is_empty() { path.to_owned() } else { resolved })
}

#[cfg(test)]
#[path = "trusted_tests.rs"]
mod tests;
