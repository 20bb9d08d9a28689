//! The data folder: one process at a time, an identity that stays, a format that is known.

use crate::support::{Folder, Place, puts, write};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use toolbus_store::{Disk, FolderDisk, StoreError};

#[test]
fn a_folder_belongs_to_one_process_at_a_time() {
    let folder = Folder::new();
    let first = FolderDisk::open(&folder.path()).unwrap();
    match FolderDisk::open(&folder.path()) {
        Err(StoreError::Locked { folder: locked }) => assert_eq!(locked, folder.path()),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("two owners"),
    }
    drop(first);
    FolderDisk::open(&folder.path()).expect("it is free again");
}

#[test]
fn the_identity_stays_the_same() {
    let folder = Folder::new();
    let (disk, first) = FolderDisk::open(&folder.path()).unwrap();
    drop(disk);
    let (_disk, second) = FolderDisk::open(&folder.path()).unwrap();
    assert_eq!(first, second);
    let other = Folder::new();
    let (_disk, other) = FolderDisk::open(&other.path()).unwrap();
    assert_ne!((&first.id, first.seed), (&other.id, other.seed));
}

#[test]
fn a_folder_that_does_not_exist_is_made() {
    let folder = Folder::new();
    let nested = folder.path().join("a/b");
    FolderDisk::open(&nested).unwrap();
    assert!(nested.is_dir());
}

#[test]
fn an_unknown_format_is_refused_and_left_alone() {
    for text in
        ["toolbus log 1\nid\n7\n", "toolbus log 3\nid\n7\n", "", "toolbus log 2\nid\nnot a number\n", "toolbus log 1\n"]
    {
        let folder = Folder::new();
        let identity = folder.path().join("identity");
        fs::write(&identity, text).unwrap();
        let refused = FolderDisk::open(&folder.path()).err();
        assert!(matches!(refused, Some(StoreError::UnknownFormat { .. })), "{text:?}: {refused:?}");
        assert_eq!(fs::read_to_string(&identity).unwrap(), text);
    }
}

#[test]
fn an_identity_that_is_not_text_is_an_error() {
    let folder = Folder::new();
    fs::write(folder.path().join("identity"), [0xff, 0xfe]).unwrap();
    assert!(FolderDisk::open(&folder.path()).is_err());
}

#[test]
fn an_identity_that_a_crash_left_unfinished_is_made_anew() {
    let folder = Folder::new();
    fs::write(folder.path().join("identity.new"), "toolb").unwrap();
    FolderDisk::open(&folder.path()).expect("the unfinished file does not count");
}

#[test]
fn files_are_for_the_owner_only() {
    let folder = Folder::new();
    write(&folder.open().store, &puts([1]));
    for name in ["lock".into(), "identity".into(), folder.names("segment-").remove(0)] {
        let mode = fs::metadata(folder.path().join(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name}");
    }
}

#[test]
fn files_that_are_not_ours_are_ignored() {
    let folder = Folder::new();
    fs::write(folder.path().join("segment-notes.txt"), "hello").unwrap();
    fs::write(folder.path().join("README"), "hello").unwrap();
    let opened = folder.open();
    write(&opened.store, &puts([1]));
    drop(opened);
    assert_eq!(folder.open().replayed.seqs(), [1]);
}

#[test]
fn a_file_is_made_only_once() {
    let folder = Folder::new();
    let (disk, _) = FolderDisk::open(&folder.path()).unwrap();
    disk.create("x").unwrap();
    let again = disk.create("x").err().map(|error| error.kind());
    assert_eq!(again, Some(std::io::ErrorKind::AlreadyExists));
}
