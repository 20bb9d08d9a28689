//! Tests of private folders and files.

use super::*;
use std::os::unix::fs::{chown, symlink};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it exists").mode() & 0o7777
}

fn reason(result: io::Result<impl Sized>) -> Option<UnsafeReason> {
    UnsafePath::in_chain(&result.err()?).map(|found| found.reason)
}

#[test]
fn folders_and_files_are_private_and_open_folders_are_closed() {
    let root = tempfile::tempdir().expect("a folder");
    let (outer, inner) = (root.path().join("a"), root.path().join("a/b"));
    private_folder(&inner).expect("created");
    assert_eq!((mode(&outer), mode(&inner)), (0o700, 0o700));
    fs::set_permissions(&inner, Permissions::from_mode(0o777)).expect("a mode");
    private_folder(&inner).expect("closed");
    assert_eq!(mode(&inner), 0o700);
    let file = inner.join("f");
    drop(open_private(&file, OpenOptions::new().write(true).create(true).truncate(false)).expect("created"));
    assert_eq!(mode(&file), 0o600);
    fs::set_permissions(&inner, Permissions::from_mode(0o1777)).expect("a mode");
    assert_eq!(reason(private_folder(&inner)), Some(UnsafeReason::Shared));
    assert_eq!(mode(&inner), 0o1777, "a folder like /tmp is not changed");
}

#[test]
fn links_are_refused_as_folder_as_file_and_in_a_folder() {
    let root = tempfile::tempdir().expect("a folder");
    let (real, link) = (root.path().join("real"), root.path().join("link"));
    private_folder(&real).expect("created");
    fs::write(real.join("f"), "1").expect("a file");
    symlink(&real, &link).expect("a link");
    assert_eq!(reason(private_folder(&link)), Some(UnsafeReason::Link));
    assert_eq!(crate::private_root(&link).expect("its own link"), real.canonicalize().expect("a folder"));
    let missing = root.path().join("missing");
    symlink(root.path().join("nothing"), &missing).expect("a link");
    assert_eq!(reason(private_folder(&missing)), Some(UnsafeReason::Link));
    symlink(real.join("f"), real.join("g")).expect("a link");
    assert_eq!(reason(read_private(&real.join("g"))), Some(UnsafeReason::Link));
    assert_eq!(reason(read_private_text(&real.join("g"))), Some(UnsafeReason::Link));
    let create = reason(open_unlinked(&real.join("g"), OpenOptions::new().append(true).create(true)));
    assert_eq!(create, Some(UnsafeReason::Link));
    fs::set_permissions(&real, Permissions::from_mode(0o755)).expect("permissions");
    assert_eq!(reason(private_folder(&real)), Some(UnsafeReason::Link));
    assert_eq!(mode(&real), 0o755, "a folder that is not used is not changed");
}

#[test]
fn a_pipe_in_place_of_a_file_is_refused_without_waiting() {
    let root = tempfile::tempdir().expect("a folder");
    let pipe = root.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).expect("a pipe");
    assert_eq!(reason(read_private(&pipe)), Some(UnsafeReason::WrongType));
    assert_eq!(reason(read_private(root.path())), Some(UnsafeReason::WrongType));
}

/// Only root can give a file to another user, so that others skip these checks.
#[test]
fn folders_and_files_of_another_user_are_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let (folder, file) = (root.path().join("d"), root.path().join("f"));
    private_folder(&folder).expect("created");
    fs::write(&file, "1").expect("a file");
    if !rustix::process::geteuid().is_root() {
        return;
    }
    chown(&folder, Some(12_345), None).expect("given away");
    chown(&file, Some(12_345), None).expect("given away");
    assert_eq!(reason(private_folder(&folder)), Some(UnsafeReason::ForeignOwner(12_345)));
    assert_eq!(reason(read_private(&file)), Some(UnsafeReason::ForeignOwner(12_345)));
    assert!(open_unlinked(&file, OpenOptions::new().read(true)).is_ok());
    fs::remove_dir(&folder).expect("removed");
    assert_eq!(reason(private_folder(root.path())), Some(UnsafeReason::ForeignOwner(12_345)), "a file in it");
}
