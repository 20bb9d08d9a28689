//! Folders and files that belong to one user: data and state folders, and everything in them. Folders get mode 0700 and
//! files 0600, whatever the umask. Symbolic links are not followed, and nothing that belongs to another user is used, root
//! aside: otherwise a user who could once write to the folder would choose what is read, or which files are written.

use std::error::Error;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FOLDER_MODE: u32 = 0o700;
pub(crate) const FILE_MODE: u32 = 0o600;
/// Set on folders that all users share, such as /tmp.
const STICKY: u32 = 0o1000;
const ROOT: u32 = 0;

/// A path in a data or state folder that must not be used. It is inside an [`io::Error`] of the kind `Other`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} {reason}", path.display())]
pub struct UnsafePath {
    /// The folder or file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: UnsafeReason,
}

/// Why a path must not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnsafeReason {
    /// A symbolic link.
    #[error("is a symbolic link")]
    Link,
    /// It is neither the user's nor root's.
    #[error("belongs to another user (uid {0})")]
    ForeignOwner(u32),
    /// Others may write to it, and it can't be or must not be closed to them.
    #[error("can be written by other users")]
    Shared,
    /// A pipe, a device, or a folder in place of a file or the reverse.
    #[error("is of another type than expected")]
    WrongType,
}

impl UnsafePath {
    /// The unsafe path that an error or one of its sources is about.
    pub fn in_chain<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            // `io::Error::source` skips the error that it wraps.
            let shared = || error.downcast_ref::<Arc<io::Error>>().map(|error| &**error);
            let wrapped = error.downcast_ref::<io::Error>().or_else(shared).and_then(io::Error::get_ref);
            let found = wrapped.and_then(|inner| inner.downcast_ref()).or_else(|| error.downcast_ref());
            if found.is_some() {
                return found;
            }
            next = error.source();
        }
        None
    }

    pub(crate) fn error(path: &Path, reason: UnsafeReason) -> io::Error {
        io::Error::other(Self { path: path.to_owned(), reason })
    }
}

/// Creates a folder for its owner only, with its parents, or closes an existing one to all others. Refuses a link, and a
/// folder that is another user's or contains a link or a file of another user.
pub fn private_folder(path: &Path) -> io::Result<()> {
    if let Err(error) = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path) {
        // In place of a folder, a link to nothing or to a file is reported as one.
        fs::symlink_metadata(path).map_or(Ok(()), |found| check(path, &found))?;
        return Err(error);
    }
    let folder = fs::symlink_metadata(path)?;
    check(path, &folder)?;
    if !folder.is_dir() {
        return Err(UnsafePath::error(path, UnsafeReason::WrongType));
    }
    if folder.mode() & STICKY != 0 {
        return Err(UnsafePath::error(path, UnsafeReason::Shared));
    }
    // Before the mode is changed: a folder that others use too, given by mistake, stays as it is.
    check_entries(path)?;
    if folder.mode() & 0o7777 != FOLDER_MODE {
        let is_shared = folder.mode() & 0o022 != 0;
        match fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE)) {
            // Root's folder can be used as it is if only root and its own users can write to it.
            Err(_) if !is_shared => {}
            Err(_) => return Err(UnsafePath::error(path, UnsafeReason::Shared)),
            Ok(()) => {}
        }
        // Others may have added an entry meanwhile.
        check_entries(path)?;
    }
    Ok(())
}

/// Refuses a symbolic link. A missing path is none.
pub fn refuse_link(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Err(UnsafePath::error(path, UnsafeReason::Link)),
        _ => Ok(()),
    }
}

/// Opens a file of a private folder; one that is created gets mode 0600.
pub fn open_private(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = open_unlinked(path, options)?;
    check_owner(path, &file.metadata()?)?;
    Ok(file)
}

/// Like [`open_private`] for a file of any owner, to inspect a copy of a folder.
pub fn open_unlinked(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // Without NONBLOCK, opening a pipe would wait for its other end. It has no effect on files.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let opened = options.mode(FILE_MODE).custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => UnsafePath::error(path, UnsafeReason::Link),
        _ => error,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(UnsafePath::error(path, UnsafeReason::WrongType)) }
}

/// Reads a file of a private folder.
pub fn read_private(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_private(path, OpenOptions::new().read(true))?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a text file of a private folder.
pub fn read_private_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open_private(path, OpenOptions::new().read(true))?.read_to_string(&mut text)?;
    Ok(text)
}

/// Whether a file belongs to this process's user or to root.
pub(crate) fn is_own(metadata: &Metadata) -> bool {
    metadata.uid() == ROOT || metadata.uid() == rustix::process::geteuid().as_raw()
}

fn check_entries(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(found) => check(&entry.path(), &found)?,
            // Another process that uses the folder may remove its temporary file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Takes the metadata of the path itself, not of a link's target.
fn check(path: &Path, found: &Metadata) -> io::Result<()> {
    if found.is_symlink() {
        return Err(UnsafePath::error(path, UnsafeReason::Link));
    }
    check_owner(path, found)
}

fn check_owner(path: &Path, found: &Metadata) -> io::Result<()> {
    if is_own(found) { Ok(()) } else { Err(UnsafePath::error(path, UnsafeReason::ForeignOwner(found.uid()))) }
}

#[cfg(test)]
#[path = "private_tests.rs"]
mod tests;
