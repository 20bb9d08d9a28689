//! The folder: one process at a time, an identity that stays and is checked, an epoch that counts, a known format.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;
use toolbus_wal::{FolderDisk, Identity, MoveMark, MoveState, OpenError, Segments};

const LOG: Segments = Segments { prefix: "segment-" };

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn open(path: &Path) -> (FolderDisk, Identity) {
    FolderDisk::open(path).expect("the folder opens")
}

#[test]
fn a_folder_belongs_to_one_process_at_a_time() {
    let folder = folder();
    let first = open(folder.path());
    match FolderDisk::open(folder.path()) {
        Err(OpenError::Locked { folder: locked }) => assert_eq!(locked, folder.path()),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("two owners"),
    }
    drop(first);
    open(folder.path());
}

#[test]
fn the_identity_stays_the_same_and_differs_between_folders() {
    let (one, other) = (folder(), folder());
    let (disk, first) = open(one.path());
    drop(disk);
    assert_eq!(open(one.path()).1, first);
    let other = open(other.path()).1;
    assert_ne!((&first.id, first.seed), (&other.id, other.seed));
}

#[test]
fn a_missing_folder_is_created() {
    let folder = folder();
    open(&folder.path().join("a/b"));
    assert!(folder.path().join("a/b").is_dir());
}

#[test]
fn an_unknown_format_is_refused_and_left_alone() {
    for text in ["toolbus log 1\nid\n7\n", "toolbus log 5\nid\n7\n", "", "toolbus log 1\n"] {
        let folder = folder();
        let identity = folder.path().join("identity");
        fs::write(&identity, text).expect("writable");
        let refused = FolderDisk::open(folder.path()).err();
        assert!(matches!(refused, Some(OpenError::UnknownFormat { .. })), "{text:?}: {refused:?}");
        assert_eq!(fs::read_to_string(&identity).expect("still there"), text);
    }
}

#[test]
fn a_damaged_identity_is_refused_and_left_alone() {
    let folder = folder();
    drop(open(folder.path()));
    let file = folder.path().join("identity");
    let good = fs::read(&file).expect("an identity");
    for (at, bit) in [(14, 0), (20, 3), (52, 1), (60, 0), (70, 2), (14, 7)] {
        let mut damaged = good.clone();
        damaged[at] ^= 1 << bit;
        fs::write(&file, &damaged).expect("writable");
        let refused = FolderDisk::open(folder.path()).err();
        assert!(matches!(refused, Some(OpenError::DamagedIdentity { .. })), "{at} {bit}: {refused:?}");
        assert_eq!(fs::read(&file).expect("still there"), damaged);
    }
    fs::write(&file, good).expect("writable");
    open(folder.path());
}

#[test]
fn an_identity_without_a_checksum_is_given_one() {
    let folder = folder();
    fs::write(folder.path().join("identity"), "toolbus log 2\nthe-id\n77\n").expect("writable");
    let (disk, identity) = open(folder.path());
    assert_eq!((identity.id.as_str(), identity.seed), ("the-id", 77));
    drop(disk);
    let text = fs::read_to_string(folder.path().join("identity")).expect("an identity");
    assert!(text.starts_with("toolbus log 4\nthe-id\n77\n") && text.lines().count() == 4, "{text}");
    assert_eq!(open(folder.path()).1, identity);
}

#[test]
fn a_log_whose_identity_is_gone_is_refused() {
    let folder = folder();
    let (disk, _) = open(folder.path());
    let segment = LOG.create(&disk, 1).expect("created");
    drop(disk);
    fs::remove_file(folder.path().join("identity")).expect("it was there");
    drop(open(folder.path()));
    segment.append(b"something").expect("writable");
    fs::remove_file(folder.path().join("identity")).expect("an empty log needs no key");
    assert!(matches!(FolderDisk::open(folder.path()).err(), Some(OpenError::MissingIdentity { .. })));
    assert!(!folder.path().join("identity").exists());
}

#[test]
fn an_identity_that_a_crash_left_unfinished_is_written_anew() {
    let folder = folder();
    fs::write(folder.path().join("identity.new"), "toolb").expect("writable");
    open(folder.path());
}

#[test]
fn the_epoch_counts_the_openings_and_starts_again_where_it_is_unreadable() {
    let (folder, copy) = (folder(), folder());
    for expected in 1..=3 {
        let (disk, identity) = open(folder.path());
        assert_eq!(disk.next_opening(&identity).expect("written").epoch, expected);
        if expected == 1 {
            fs::copy(folder.path().join("identity"), copy.path().join("identity")).expect("copied");
            fs::copy(folder.path().join("epoch"), copy.path().join("epoch")).expect("copied");
        }
    }
    let (disk, identity) = open(copy.path());
    assert_eq!(disk.next_opening(&identity).expect("written").epoch, 2, "an older copy counts from where it was");
    for unreadable in ["3 0000000000000000\n", "x", "", "3"] {
        fs::write(copy.path().join("epoch"), unreadable).expect("writable");
        assert_eq!(disk.next_opening(&identity).expect("written").epoch, 1, "{unreadable:?}");
    }
}

#[test]
fn files_are_private_and_created_once() {
    let folder = folder();
    let (disk, identity) = open(folder.path());
    disk.next_opening(&identity).expect("written");
    LOG.create(&disk, 1).expect("created");
    for name in ["lock", "identity", "epoch", "segment-0000000001.log"] {
        let mode = fs::metadata(folder.path().join(name)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name}");
    }
    let again = LOG.create(&disk, 1).err().map(|error| error.kind());
    assert_eq!(again, Some(std::io::ErrorKind::AlreadyExists));
    fs::write(folder.path().join("segment-notes.txt"), "not ours").expect("writable");
    assert_eq!(LOG.list(&disk).expect("listed"), [1]);
}

#[test]
fn a_folder_that_takes_part_in_a_move_opens_only_for_the_move() {
    let folder = folder();
    assert!(FolderDisk::open_for_move(&folder.path().join("none"), None).expect("no error").is_none());
    assert!(FolderDisk::open_for_move(folder.path(), None).expect("no error").is_none(), "it has no identity");
    let identity = Identity { id: "the-id".into(), seed: 77 };
    let mark = |state| MoveMark { id: "m".into(), state, other: "the cluster default".into() };
    let arriving = mark(MoveState::Arriving);
    fs::write(folder.path().join("identity.new-17"), "toolb").expect("writable");
    for _ in 0..2 {
        let opened = FolderDisk::open_for_move(folder.path(), Some((&identity, &arriving))).expect("no error");
        let (_, found, marked) = opened.expect("an empty folder");
        assert_eq!((&found, marked.as_ref()), (&identity, Some(&arriving)));
    }
    for state in [MoveState::Arriving, MoveState::Leaving, MoveState::Left] {
        let (disk, ..) = FolderDisk::open_for_move(folder.path(), None).expect("no error").expect("an identity");
        disk.mark(&identity, Some(&mark(state))).expect("writable");
        drop(disk);
        assert_eq!(FolderDisk::mark_of(folder.path()), Some(mark(state)));
        let refused = FolderDisk::open(folder.path()).err();
        assert!(matches!(&refused, Some(OpenError::Moved { mark: found, .. }) if *found == mark(state)), "{refused:?}");
    }
    let (disk, ..) = FolderDisk::open_for_move(folder.path(), None).expect("no error").expect("an identity");
    disk.mark(&identity, None).expect("writable");
    drop(disk);
    assert_eq!((open(folder.path()).1, FolderDisk::mark_of(folder.path())), (identity.clone(), None));
    fs::remove_file(folder.path().join("identity")).expect("it was there");
    fs::write(folder.path().join("something"), "of another program").expect("writable");
    let opened = FolderDisk::open_for_move(folder.path(), Some((&identity, &arriving))).expect("no error");
    assert!(opened.is_none(), "it is not empty");
}
