//! Replacement of small files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Atomically creates or replaces a file, readable by its owner only, and syncs it and its folder: a crash leaves the old
/// or the new content.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_file_with_mode(path, bytes, 0o600)
}

/// Like [`replace_file`], for a file that others may read too.
pub fn replace_file_with_mode(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    replace(path, bytes, mode, File::sync_all)?;
    sync_folder(folder_of(path))
}

/// Like [`replace_file`] without a sync: the file survives a crash of the process, but a power failure may leave it missing or
/// incomplete.
pub fn replace_file_unsynced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, 0o600, |_| Ok(()))
}

fn replace(path: &Path, bytes: &[u8], mode: u32, sync: fn(&File) -> io::Result<()>) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let temporary = folder_of(path).join(name);
    // A leftover of an earlier process with the same pid may have a less restrictive mode.
    fs::remove_file(&temporary).or_else(ignore_missing)?;
    let written = write_new(&temporary, bytes, mode).and_then(|file| sync(&file));
    let replaced = written.and_then(|()| fs::rename(&temporary, path));
    if replaced.is_err() {
        fs::remove_file(&temporary).ok();
    }
    replaced
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Makes created, renamed and removed names of a folder durable.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(bytes)?;
    Ok(file)
}

fn ignore_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_replaced_file_is_private_and_leaves_no_temporary_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f");
        fs::write(&path, "1").expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("a mode");
        let mut temporary = path.clone().into_os_string();
        temporary.push(format!(".new-{}", std::process::id()));
        fs::write(&temporary, "a leftover that is longer").expect("a file");
        replace_file(&path, b"2").expect("replaced");
        assert_eq!(fs::read(&path).expect("a file"), b"2");
        let mode = || fs::metadata(&path).expect("a file").permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        replace_file_unsynced(&path, b"2b").expect("replaced");
        assert_eq!((fs::read(&path).expect("a file").as_slice(), mode()), (b"2b".as_slice(), 0o600));
        replace_file_with_mode(&path, b"3", 0o644).expect("replaced");
        assert_eq!(mode() & 0o444, 0o444);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_replaced_is_an_error_and_leaves_no_temporary_file() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("f/not-empty")).expect("a folder");
        assert!(replace_file(&folder.path().join("f"), b"2").is_err());
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
        assert!(replace_file(Path::new("/"), b"").is_err());
    }
}
